// When a node counts as lost, by looks at what it has taken.
#include "client/pulse.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

using Finding = Pulse::Finding;
constexpr int64_t kBeat = Pulse::kBeatNanos;

TEST(PulseTest, ANodeThatTakesNothingIsLostAfterSomeLooks) {
  Pulse pulse;
  EXPECT_EQ(pulse.Look(1, 0, false), Finding::kFine);
  for (int beat = 1; beat < Pulse::kMissedBeats; ++beat) {
    EXPECT_EQ(pulse.Look(1 + beat * kBeat, 0, false), Finding::kFine) << beat;
    EXPECT_EQ(pulse.Look(2 + beat * kBeat, 0, false), Finding::kFine) << "between beats " << beat;
  }
  EXPECT_EQ(pulse.Look(1 + Pulse::kMissedBeats * kBeat, 0, false), Finding::kLost);
}

TEST(PulseTest, OneThatTakesALittleIsNot) {
  Pulse pulse;
  for (int beat = 0; beat < 4 * Pulse::kMissedBeats; ++beat) {
    const auto taken = static_cast<uint64_t>(beat / (Pulse::kMissedBeats - 1));
    EXPECT_EQ(pulse.Look(1 + beat * kBeat, taken, false), Finding::kFine) << beat;
  }
}

TEST(PulseTest, OneThatTookEverythingIsAskedBeforeItIsLost) {
  Pulse pulse;
  EXPECT_EQ(pulse.Look(1, 64, true), Finding::kFine);
  for (int beat = 1; beat < 100; ++beat) {  // An answer may take its time.
    EXPECT_EQ(pulse.Look(1 + beat * kBeat, 64, true), Finding::kAsk) << beat;
  }
  for (int missed = 1; missed < Pulse::kMissedBeats; ++missed) {  // Nor is the question taken.
    EXPECT_EQ(pulse.Look(1 + (99 + missed) * kBeat, 64, false), Finding::kFine) << missed;
  }
  EXPECT_EQ(pulse.Look(1 + (99 + Pulse::kMissedBeats) * kBeat, 64, false), Finding::kLost);
}

TEST(PulseTest, ARestIsNotHeldAgainstIt) {
  Pulse pulse;
  pulse.Look(1, 64, true);
  pulse.Rest();
  EXPECT_EQ(pulse.Look(100 * kBeat, 64, false), Finding::kFine);
  EXPECT_EQ(pulse.next_nanos(), 101 * kBeat);
}

// However long it was: everyone stood still, and who comes first knows nothing of the others.
TEST(PulseTest, TimeInWhichNobodyLookedIsNotHeldAgainstItEither) {
  Pulse pulse;
  pulse.Look(1, 64, false);
  EXPECT_EQ(pulse.Look(1000 * kBeat, 64, false), Finding::kFine);
}

}  // namespace
}  // namespace aquifer
