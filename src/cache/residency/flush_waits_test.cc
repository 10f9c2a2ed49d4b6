#include "cache/residency/flush_waits.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

constexpr uint16_t kTenant = 3;
constexpr uint16_t kOther = 4;
constexpr uint32_t kFirst = 1;
constexpr uint32_t kSecond = 2;

FlushWaits::Wait Of(uint16_t tenant, uint32_t client) {
  return {.tenant = tenant, .client = client, .on_done = {}};
}

TEST(FlushWaitsTest, AFlushIsTakenOnceWhenAllBeforeItIsWritten) {
  FlushWaits waits;
  waits.Add(kTenant, 10, Of(kTenant, kFirst));
  waits.Add(kTenant, 11, Of(kTenant, kSecond));
  EXPECT_FALSE(waits.TakeWritten(kTenant, 10).has_value());  // The tenth itself is not.
  const auto taken = waits.TakeWritten(kTenant, 11);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->client, kFirst);
  EXPECT_FALSE(waits.TakeWritten(kTenant, 11).has_value()) << "it was told twice";
  EXPECT_EQ(waits.LastOf(kTenant), 11u);
}

TEST(FlushWaitsTest, ATenantWaitsForItsOwnBlocksOnly) {
  FlushWaits waits;
  waits.Add(kTenant, 10, Of(kTenant, kFirst));
  waits.Add(kOther, 10, Of(kOther, kSecond));
  EXPECT_FALSE(waits.TakeWritten(kTenant, 1).has_value());
  EXPECT_TRUE(waits.TakeWritten(kOther, 100).has_value());
  EXPECT_EQ(waits.Whose(), std::vector<uint16_t>{kTenant});
}

TEST(FlushWaitsTest, APostponedFlushWaitsForTheLaterSequence) {
  FlushWaits waits;
  waits.Add(kTenant, 10, Of(kTenant, kFirst));
  waits.WaitUntil(50);
  waits.Add(kOther, 20, Of(kOther, kSecond));
  EXPECT_EQ(waits.LastOf(kTenant), 50u);
  EXPECT_TRUE(waits.TakeWritten(kOther, 30).has_value());
  EXPECT_FALSE(waits.TakeWritten(kTenant, 30).has_value());
  EXPECT_TRUE(waits.TakeWritten(kTenant, 51).has_value());
}

TEST(FlushWaitsTest, AFlushThatEndedIsNotTaken) {
  FlushWaits waits;
  const auto ended = waits.Add(kTenant, 1, Of(kTenant, kFirst));
  waits.Add(kTenant, 2, Of(kTenant, kSecond));
  waits.End(ended);
  const auto taken = waits.TakeWritten(kTenant, 100);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->client, kSecond);
  EXPECT_TRUE(waits.empty());
  waits.End(ended);  // It is gone already: nothing happens.
}

TEST(FlushWaitsTest, AnyAreTakenWhateverTheyWaitFor) {
  FlushWaits waits;
  waits.Add(kTenant, 5, Of(kTenant, kFirst));
  waits.Add(kTenant, UINT64_MAX - 1, Of(kTenant, kSecond));
  EXPECT_TRUE(waits.TakeWritten(kTenant, UINT64_MAX).has_value());
  EXPECT_TRUE(waits.TakeWritten(kTenant, UINT64_MAX).has_value());
  EXPECT_FALSE(waits.TakeWritten(kTenant, UINT64_MAX).has_value());
  EXPECT_TRUE(waits.empty());
}

}  // namespace
}  // namespace aquifer
