#include "base/clock.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

TEST(SystemClockTest, MonotonicTimeNeverGoesBack) {
  int64_t previous = SystemClock()->NowNanos();
  for (int i = 0; i < 10'000; ++i) {
    const int64_t now = SystemClock()->NowNanos();
    ASSERT_GE(now, previous);
    previous = now;
  }
}

TEST(SystemClockTest, TheCalendarIsInOurCentury) {
  EXPECT_GT(SystemClock()->UnixSeconds(), 1'700'000'000);
  EXPECT_LT(SystemClock()->UnixSeconds(), 4'000'000'000);
}

}  // namespace
}  // namespace aquifer
