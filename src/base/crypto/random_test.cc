#include "base/crypto/random.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "testing/seeded_random.h"

namespace aquifer {
namespace {

TEST(SystemRandomTest, NumbersDoNotRepeat) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(SystemRandom()->Next64()).second);
}

TEST(SystemRandomTest, ManyBytesAreAllFilled) {
  // More than the kernel gives at once when a signal comes, and every byte value occurs.
  std::vector<std::byte> bytes(1 << 20);
  SystemRandom()->Fill(bytes);
  std::set<std::byte> values(bytes.end() - 16384, bytes.end());
  EXPECT_EQ(values.size(), 256u);
}

TEST(SystemRandomTest, FillingNothingIsAllowed) { SystemRandom()->Fill({}); }

TEST(SeededRandomTest, TheSameSeedGivesTheSameNumbersThroughBothDoors) {
  SeededRandom first(42);
  SeededRandom second(42);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(first.Next(), second.Next64());
}

}  // namespace
}  // namespace aquifer
