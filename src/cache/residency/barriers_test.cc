#include "cache/residency/barriers.h"

#include <gtest/gtest.h>

#include <vector>

namespace aquifer {
namespace {

TEST(BarriersTest, ThousandsAreToldALittleAtATimeInTheOrderOfWhatTheyWaitFor) {
  Barriers barriers;
  std::vector<uint64_t> told;
  const auto add = [&](uint64_t last) {
    barriers.Add(last, [&told, last] { told.push_back(last); });
  };
  for (uint64_t i = 0; i < 1000; ++i) add(i);
  add(5000);
  add(3);  // What it waits for is over before the others'.
  EXPECT_FALSE(barriers.Settle(0));
  EXPECT_TRUE(told.empty());
  EXPECT_FALSE(barriers.Settle(4));
  EXPECT_EQ(told, (std::vector<uint64_t>{0, 1, 2, 3, 3}));
  size_t tasks = 1;
  for (size_t before = told.size(); barriers.Settle(1000); ++tasks) {
    EXPECT_LE(told.size() - before, 64u);
    before = told.size();
  }
  EXPECT_EQ(told.size(), 1001u);
  EXPECT_GT(tasks, 15u);
  EXPECT_FALSE(barriers.Settle(5001));
  EXPECT_EQ(told.back(), 5000u);
}

}  // namespace
}  // namespace aquifer
