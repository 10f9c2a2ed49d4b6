#include "policy/turnover_clock.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(TurnoverClockTest, IsTheCallersWhereLittleIsGivenUp) {
  TurnoverClock clock;
  EXPECT_EQ(clock.At(5 * kSecond), 5 * kSecond);
  clock.NoteGivenUp(1000);
  EXPECT_EQ(clock.At(6 * kSecond), 6 * kSecond);
  EXPECT_EQ(clock.At(6 * kSecond), 6 * kSecond);
}

TEST(TurnoverClockTest, GoesOnWhileTheCallersStandsStill) {
  TurnoverClock clock;
  EXPECT_EQ(clock.At(0), 0);
  for (int i = 0; i < 1000; ++i) clock.NoteGivenUp(1000);
  const int64_t turned = clock.At(0);
  EXPECT_NEAR(static_cast<double>(turned), 20.0 * kSecond, 10);
  EXPECT_EQ(clock.At(0), turned);
  EXPECT_EQ(clock.At(3 * kSecond), turned + 3 * kSecond);
}

TEST(TurnoverClockTest, NeverGoesBack) {
  TurnoverClock clock;
  EXPECT_EQ(clock.At(9 * kSecond), 9 * kSecond);
  EXPECT_EQ(clock.At(3 * kSecond), 9 * kSecond);
  EXPECT_EQ(clock.At(10 * kSecond), 10 * kSecond);
}

TEST(TurnoverClockTest, ASecondIsOneOfTheCallers) {
  TurnoverClock clock;
  const int64_t first = clock.At(10 * kSecond);
  EXPECT_TRUE(clock.IsWithinSecond(first));
  for (int i = 0; i < 10; ++i) clock.NoteGivenUp(10);
  const int64_t second = clock.At(10 * kSecond + kSecond / 2);
  EXPECT_GT(second, first + 19 * kSecond);
  EXPECT_TRUE(clock.IsWithinSecond(first));
  clock.At(11 * kSecond + kSecond / 4);
  EXPECT_FALSE(clock.IsWithinSecond(first));
  EXPECT_TRUE(clock.IsWithinSecond(second));
  clock.At(20 * kSecond);
  EXPECT_FALSE(clock.IsWithinSecond(second));
}

}  // namespace
}  // namespace aquifer
