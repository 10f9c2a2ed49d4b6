// The watch itself: what it calls wrong, and what not.
#include "sim/world/floor_watch.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(FloorWatchTest, AQuietTenantDoesNotFallBelowItsFloor) {
  FloorWatch watch({{.dram_bytes = 100, .nvme_bytes = 0}});
  EXPECT_EQ(watch.See(0, 0, 4 * kSecond, {.dram_bytes = 150}), "");
  EXPECT_EQ(watch.See(0, 0, 5 * kSecond, {.dram_bytes = 100}), "");
  EXPECT_NE(watch.See(0, 0, 6 * kSecond, {.dram_bytes = 99}), "");
}

TEST(FloorWatchTest, TheSameOnNvmeAlsoWhereItHasLessThanItsFloor) {
  FloorWatch watch({{.dram_bytes = 0, .nvme_bytes = 100}});
  EXPECT_EQ(watch.See(0, 0, 4 * kSecond, {.dram_bytes = 9, .nvme_bytes = 40}), "");
  EXPECT_EQ(watch.See(0, 0, 5 * kSecond, {.dram_bytes = 0, .nvme_bytes = 60}), "");
  EXPECT_NE(watch.See(0, 0, 6 * kSecond, {.dram_bytes = 0, .nvme_bytes = 59}), "");
}

TEST(FloorWatchTest, WhatHangsBelowABlockThatWentMayGoWithIt) {
  FloorWatch watch({{.dram_bytes = 100, .nvme_bytes = 0}});
  EXPECT_EQ(watch.See(0, 0, 4 * kSecond, {.dram_bytes = 150}), "");
  EXPECT_EQ(watch.See(0, 0, 5 * kSecond, {.dram_bytes = 80, .orphaned = 3}), "");
  EXPECT_NE(watch.See(0, 0, 6 * kSecond, {.dram_bytes = 79, .orphaned = 3}), "");
}

TEST(FloorWatchTest, WhatATenantDoesItselfIsItsOwnBusiness) {
  FloorWatch watch({{.dram_bytes = 100, .nvme_bytes = 0}});
  EXPECT_EQ(watch.See(0, 0, 4 * kSecond, {.dram_bytes = 150}), "");
  EXPECT_EQ(watch.See(0, 5 * kSecond, 9 * kSecond, {.dram_bytes = 10}), "");
  EXPECT_EQ(watch.See(0, 10 * kSecond, 11 * kSecond, {.dram_bytes = 90}), "");
  EXPECT_EQ(watch.See(0, 10 * kSecond, 14 * kSecond, {.dram_bytes = 50}), "");
  watch.Forget(0);
  EXPECT_EQ(watch.See(0, 10 * kSecond, 15 * kSecond, {.dram_bytes = 20}), "");
}

}  // namespace
}  // namespace aquifer
