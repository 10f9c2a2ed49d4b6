#include "policy/admission/write_budget.h"

#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(WriteBudgetTest, WithoutARateEverythingMayBeWritten) {
  WriteBudget budget({.bytes_per_second = 0, .burst_bytes = 1});
  EXPECT_TRUE(budget.unlimited());
  EXPECT_TRUE(budget.TakeBytes(0, UINT64_MAX));
  EXPECT_EQ(budget.NextAt(5, 100), 5);
  EXPECT_EQ(budget.AvailableBytes(0), INT64_MAX);
}

TEST(WriteBudgetTest, ABurstThenTheRate) {
  WriteBudget budget({.bytes_per_second = 10, .burst_bytes = 100});
  EXPECT_TRUE(budget.TakeBytes(0, 100));
  EXPECT_FALSE(budget.TakeBytes(0, 1));
  EXPECT_EQ(budget.NextAt(0, 1), kSecond / 10);
  EXPECT_FALSE(budget.TakeBytes(kSecond / 10 - 1, 1));
  EXPECT_TRUE(budget.TakeBytes(kSecond / 10, 1));
  EXPECT_EQ(budget.AvailableBytes(1000 * kSecond), 100);
}

TEST(WriteBudgetTest, AWriteLargerThanTheBurstWaitsForAFullBucketAndLeavesADebt) {
  WriteBudget budget({.bytes_per_second = 10, .burst_bytes = 100});
  EXPECT_TRUE(budget.TakeBytes(0, 250));
  EXPECT_EQ(budget.AvailableBytes(0), -150);
  EXPECT_EQ(budget.NextAt(0, 250), 25 * kSecond);
  EXPECT_EQ(budget.NextAt(0, 1), (150 + 1) * kSecond / 10);
}

TEST(WriteBudgetTest, WhatHadToBeWrittenDelaysWhatCanWait) {
  WriteBudget budget({.bytes_per_second = 10, .burst_bytes = 100});
  budget.ChargeBytes(0, 120);
  EXPECT_FALSE(budget.TakeBytes(0, 1));
  EXPECT_EQ(budget.NextAt(0, 10), 3 * kSecond);
  budget.RefundBytes(0, 1000);
  EXPECT_EQ(budget.AvailableBytes(0), 100);
}

TEST(WriteBudgetTest, TimeThatRunsBackwardsAddsNothing) {
  WriteBudget budget({.bytes_per_second = 10, .burst_bytes = 100});
  EXPECT_TRUE(budget.TakeBytes(100 * kSecond, 100));
  EXPECT_FALSE(budget.TakeBytes(50 * kSecond, 1));
  EXPECT_EQ(budget.NextAt(50 * kSecond, 10), 101 * kSecond);
  EXPECT_TRUE(budget.TakeBytes(101 * kSecond, 10));
}

TEST(WriteBudgetTest, ExtremesDoNotOverflow) {
  WriteBudget budget({.bytes_per_second = UINT64_MAX, .burst_bytes = UINT64_MAX});
  EXPECT_TRUE(budget.TakeBytes(INT64_MIN + 1, UINT64_MAX));
  EXPECT_EQ(budget.AvailableBytes(INT64_MAX), INT64_MAX);
  WriteBudget slow({.bytes_per_second = 1, .burst_bytes = UINT64_MAX});
  EXPECT_TRUE(slow.TakeBytes(0, UINT64_MAX));
  EXPECT_EQ(slow.NextAt(0, UINT64_MAX), INT64_MAX);
}

TEST(WriteBudgetTest, NoMoreThanBurstAndRateIsEverWritten) {
  SeededRandom random(3);
  constexpr uint64_t kRate = 1'234'567;
  WriteBudget budget({.bytes_per_second = kRate, .burst_bytes = 50'000});
  int64_t now = 0;
  uint64_t written = 0;
  for (int step = 0; step < 100'000; ++step) {
    const uint64_t bytes = 1 + random.Below(10'000);
    const int64_t next = budget.NextAt(now, bytes);
    const bool taken = budget.TakeBytes(now, bytes);
    ASSERT_EQ(taken, next == now);
    if (taken) written += bytes;
    const double allowed = 50'000 + static_cast<double>(kRate) * static_cast<double>(now) / 1e9;
    ASSERT_LE(static_cast<double>(written), allowed + 1);
    // Either some time passes, or exactly as much as it takes.
    now = random.Below(2) == 0 ? now + static_cast<int64_t>(random.Below(5'000'000))
                               : budget.NextAt(now, bytes);
  }
}

}  // namespace
}  // namespace aquifer
