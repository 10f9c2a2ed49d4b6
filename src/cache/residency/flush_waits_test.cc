#include "cache/residency/flush_waits.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

constexpr uint16_t kTenant = 3;
constexpr uint16_t kOther = 4;

auto Oldest(uint64_t sequence) {
  return [sequence](uint16_t) { return sequence; };
}

FlushWaits::Wait Of(uint16_t tenant) { return {.tenant = tenant, .client = 0, .on_done = {}}; }

using Numbers = std::vector<uint64_t>;

TEST(FlushWaitsTest, WhoeverWaitsIsTakenWhenAllBeforeItIsWritten) {
  FlushWaits waits;
  const auto first = waits.Add(kTenant, 10, Of(kTenant));
  waits.Add(kTenant, 11, Of(kTenant));
  EXPECT_EQ(waits.TakeWritten(Oldest(10), 8), Numbers{});  // The tenth itself is not.
  EXPECT_EQ(waits.TakeWritten(Oldest(11), 8), Numbers{first.number});
  EXPECT_EQ(waits.LastOf(kTenant), 11u);
  EXPECT_TRUE(waits.Finish(first.number).has_value());
  EXPECT_FALSE(waits.Finish(first.number).has_value()) << "it was told twice";
}

TEST(FlushWaitsTest, ATenantWaitsForItsOwnBlocksOnly) {
  FlushWaits waits;
  waits.Add(kTenant, 10, Of(kTenant));
  const auto other = waits.Add(kOther, 10, Of(kOther));
  const auto oldest = [](uint16_t of) { return of == kTenant ? uint64_t{1} : uint64_t{100}; };
  EXPECT_EQ(waits.TakeWritten(oldest, 8), Numbers{other.number});
  EXPECT_EQ(waits.Whose(), std::vector<uint16_t>{kTenant});
}

TEST(FlushWaitsTest, WhoeverIsPostponedWaitsForTheLaterSequence) {
  FlushWaits waits;
  const auto before = waits.Add(kTenant, 10, Of(kTenant));
  waits.WaitUntil(50);
  const auto after = waits.Add(kOther, 20, Of(kOther));
  EXPECT_EQ(waits.LastOf(kTenant), 50u);
  EXPECT_EQ(waits.TakeWritten(Oldest(30), 8), Numbers{after.number});
  EXPECT_EQ(waits.TakeWritten(Oldest(51), 8), Numbers{before.number});
}

TEST(FlushWaitsTest, WhoeverEndsIsNotFinishedWhereverItIs) {
  FlushWaits waits;
  const auto at_tier = waits.Add(kTenant, 1, Of(kTenant));
  const auto for_blocks = waits.Add(kTenant, 9, Of(kTenant));
  EXPECT_EQ(waits.TakeWritten(Oldest(5), 8), Numbers{at_tier.number});
  waits.End(at_tier);
  waits.End(for_blocks);
  EXPECT_TRUE(waits.empty());
  EXPECT_FALSE(waits.Finish(at_tier.number).has_value());
  EXPECT_EQ(waits.TakeWritten(Oldest(100), 8), Numbers{});
}

TEST(FlushWaitsTest, AnyAreTakenThoseAtTheTierFirstAndNoMoreThanAskedFor) {
  FlushWaits waits;
  waits.Add(kTenant, 5, Of(kTenant));
  const auto written = waits.Add(kOther, 1, Of(kOther));
  waits.Add(kOther, 9, Of(kOther));
  EXPECT_EQ(waits.TakeWritten(Oldest(2), 8), Numbers{written.number});
  const Numbers two = waits.TakeAny(2);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0], written.number);
  for (const uint64_t number : two) EXPECT_TRUE(waits.Finish(number).has_value());
  EXPECT_EQ(waits.TakeAny(8).size(), 1u);
}

}  // namespace
}  // namespace aquifer
