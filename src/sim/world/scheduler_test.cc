#include "sim/world/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace aquifer {
namespace {

using testing::ElementsAre;

TEST(SchedulerTest, EventsRunInTheOrderOfTheirTimesAndThenOfAsking) {
  Scheduler scheduler;
  const int64_t start = scheduler.now();
  std::vector<int> order;
  scheduler.At(start + 20, 0, [&] { order.push_back(3); });
  scheduler.At(start + 10, 0, [&] { order.push_back(1); });
  scheduler.At(start + 10, 0, [&] { order.push_back(2); });
  scheduler.At(start - 5, 0, [&] { order.push_back(0); });  // In the past is now.
  while (scheduler.RunOne()) {
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(scheduler.now(), start + 20);
  EXPECT_EQ(scheduler.steps(), 4u);
}

TEST(SchedulerTest, WhatDiesTakesItsEventsWithIt) {
  Scheduler scheduler;
  const Scheduler::Party one = scheduler.NewParty();
  const Scheduler::Party other = scheduler.NewParty();
  std::vector<int> ran;
  for (int i = 0; i < 10; ++i) {
    scheduler.At(scheduler.now() + 10 - i, i % 2 == 0 ? one : other,
                 [&ran, i] { ran.push_back(i); });
  }
  scheduler.Forget(one);
  while (scheduler.RunOne()) {
  }
  EXPECT_THAT(ran, ElementsAre(9, 7, 5, 3, 1));
}

TEST(SchedulerTest, AnIdleHourIsOneStepAndTheCalendarGoesAlong) {
  Scheduler scheduler;
  const int64_t unix_seconds = scheduler.unix_seconds();
  scheduler.At(scheduler.now() + int64_t{3600} * 1'000'000'000, 0, [] {});
  ASSERT_TRUE(scheduler.RunOne());
  EXPECT_EQ(scheduler.unix_seconds(), unix_seconds + 3600);
  scheduler.ShiftCalendar(-100);
  EXPECT_EQ(scheduler.unix_seconds(), unix_seconds + 3500);
}

TEST(SchedulerTest, WhatWasDueWhileTheHostSleptIsLate) {
  Scheduler scheduler;
  const int64_t start = scheduler.now();
  int64_t ran_at = 0;
  scheduler.At(start + 10, 0, [&] { ran_at = scheduler.now(); });
  scheduler.Suspend(1000);
  ASSERT_TRUE(scheduler.RunOne());
  EXPECT_EQ(ran_at, start + 1000);
}

}  // namespace
}  // namespace aquifer
