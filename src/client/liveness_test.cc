// Tests when a node counts as lost, by looks at how much it has read.
#include "client/liveness.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

using Finding = Liveness::Finding;
constexpr int64_t kLook = Liveness::kLookNanos;

TEST(LivenessTest, ANodeThatReadsNothingIsLostAfterSomeLooks) {
  Liveness liveness;
  EXPECT_EQ(liveness.Look(1, 0, false), Finding::kFine);
  for (int look = 1; look < Liveness::kMaxMissedLooks; ++look) {
    EXPECT_EQ(liveness.Look(1 + look * kLook, 0, false), Finding::kFine) << look;
    EXPECT_EQ(liveness.Look(2 + look * kLook, 0, false), Finding::kFine)
        << "between looks " << look;
  }
  EXPECT_EQ(liveness.Look(1 + Liveness::kMaxMissedLooks * kLook, 0, false), Finding::kLost);
}

TEST(LivenessTest, ANodeThatReadsALittleIsNotLost) {
  Liveness liveness;
  for (int look = 0; look < 4 * Liveness::kMaxMissedLooks; ++look) {
    const auto taken = static_cast<uint64_t>(look / (Liveness::kMaxMissedLooks - 1));
    EXPECT_EQ(liveness.Look(1 + look * kLook, taken, false), Finding::kFine) << look;
  }
}

TEST(LivenessTest, ANodeThatReadEverythingIsAskedBeforeItIsLost) {
  Liveness liveness;
  EXPECT_EQ(liveness.Look(1, 64, true), Finding::kFine);
  for (int look = 1; look < 100; ++look) {  // An answer may take long.
    EXPECT_EQ(liveness.Look(1 + look * kLook, 64, true), Finding::kAsk) << look;
  }
  // The node does not read the question either.
  for (int missed = 1; missed < Liveness::kMaxMissedLooks; ++missed) {
    EXPECT_EQ(liveness.Look(1 + (99 + missed) * kLook, 64, false), Finding::kFine) << missed;
  }
  EXPECT_EQ(liveness.Look(1 + (99 + Liveness::kMaxMissedLooks) * kLook, 64, false), Finding::kLost);
}

TEST(LivenessTest, TimeWithoutRequestsDoesNotCount) {
  Liveness liveness;
  liveness.Look(1, 64, true);
  liveness.Rest();
  EXPECT_EQ(liveness.Look(100 * kLook, 64, false), Finding::kFine);
  EXPECT_EQ(liveness.next_nanos(), 101 * kLook);
}

// However long the pause was: if the whole host stood still, the first process that runs knows
// nothing of the others.
TEST(LivenessTest, TimeInWhichNobodyLookedDoesNotCount) {
  Liveness liveness;
  liveness.Look(1, 64, false);
  EXPECT_EQ(liveness.Look(1000 * kLook, 64, false), Finding::kFine);
}

}  // namespace
}  // namespace aquifer
