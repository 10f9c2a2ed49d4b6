#include "policy/admission/quota.h"

#include <vector>

#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

TEST(QuotaTest, CapacityIsHardToTheByte) {
  Quota quota({.capacity_bytes = 100});
  EXPECT_TRUE(quota.Charge(1, 100));
  EXPECT_EQ(quota.CanTake(2, 0), QuotaTake::kFits);
  EXPECT_EQ(quota.CanTake(2, 1), QuotaTake::kSomeonePays);
  EXPECT_FALSE(quota.Charge(2, 1));
  quota.Uncharge(1, 1);
  EXPECT_TRUE(quota.Charge(2, 1));
  EXPECT_EQ(quota.charged(), 100u);
  EXPECT_EQ(quota.charged(1), 99u);
}

TEST(QuotaTest, WhatCanNeverFitIsSaidSo) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 0, .ceiling_bytes = 50}).ok());
  EXPECT_EQ(quota.CanTake(1, 51), QuotaTake::kNever);
  EXPECT_EQ(quota.CanTake(2, 101), QuotaTake::kNever);
  EXPECT_EQ(quota.CanTake(2, UINT64_MAX), QuotaTake::kNever);
}

TEST(QuotaTest, FloorsMustFitTheCapacityAndTheCeiling) {
  Quota quota({.capacity_bytes = 100});
  EXPECT_TRUE(quota.SetTenant(1, {.floor_bytes = 60}).ok());
  EXPECT_EQ(quota.SetTenant(2, {.floor_bytes = 41}).code(), Code::kInvalid);
  EXPECT_EQ(quota.SetTenant(2, {.floor_bytes = 20, .ceiling_bytes = 19}).code(), Code::kInvalid);
  EXPECT_EQ(quota.SetTenant(2, {.floor_bytes = UINT64_MAX}).code(), Code::kInvalid);
  EXPECT_TRUE(quota.SetTenant(2, {.floor_bytes = 40}).ok());
  EXPECT_TRUE(quota.SetTenant(1, {.floor_bytes = 60}).ok());  // Its own floor is not counted twice.
}

TEST(QuotaTest, ATenantAtItsCeilingPaysByItself) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 0, .ceiling_bytes = 30}).ok());
  ASSERT_TRUE(quota.Charge(1, 30));
  ASSERT_TRUE(quota.Charge(2, 10));
  EXPECT_EQ(quota.CanTake(1, 10), QuotaTake::kOwnPays);
  EXPECT_FALSE(quota.Charge(1, 10));
}

TEST(QuotaTest, WhatIsNotGivenBackCountsAlsoAboveTheCeiling) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 0, .ceiling_bytes = 30}).ok());
  ASSERT_TRUE(quota.Charge(1, 20));
  quota.ChargeAnyway(1, 50);
  EXPECT_EQ(quota.charged(1), 70u);
  EXPECT_EQ(quota.CanTake(1, 10), QuotaTake::kOwnPays);
  EXPECT_EQ(quota.CanTake(2, 31), QuotaTake::kSomeonePays);
  quota.Uncharge(1, 50);
  EXPECT_TRUE(quota.Charge(1, 10));
}

TEST(QuotaTest, OnlyWhatIsOverTheFloorMayBeTaken) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 55}).ok());
  ASSERT_TRUE(quota.Charge(1, 60));
  ASSERT_TRUE(quota.Charge(2, 40));
  EXPECT_EQ(quota.OverFloor(1), 5u);
  EXPECT_EQ(quota.OverFloor(2), 40u);
  EXPECT_EQ(quota.OverFloor(3), 0u);
}

TEST(QuotaTest, AnIdleFloorIsLent) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 50}).ok());
  ASSERT_TRUE(quota.Charge(2, 100));
  EXPECT_EQ(quota.CanTake(1, 10), QuotaTake::kSomeonePays);
  quota.Uncharge(2, 10);
  EXPECT_TRUE(quota.Charge(1, 10));
}

TEST(QuotaTest, ALowerCeilingTakesNothingBack) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.Charge(1, 80));
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 0, .ceiling_bytes = 50}).ok());
  EXPECT_EQ(quota.charged(1), 80u);
  EXPECT_EQ(quota.CanTake(1, 1), QuotaTake::kOwnPays);
}

// Tenants take blocks of random sizes; who is refused gives up something of its own, or takes it
// from one that is over its floor.
TEST(QuotaTest, CapsHoldUnderRandomLoad) {
  SeededRandom random(1);
  constexpr uint16_t kTenants = 5;
  Quota quota({.capacity_bytes = 10'000});
  for (uint16_t tenant = 0; tenant < kTenants; ++tenant) {
    const TenantQuota limits{.floor_bytes = tenant * 500u,
                             .ceiling_bytes = tenant == 4 ? 3'000u : 8'000u};
    ASSERT_TRUE(quota.SetTenant(tenant, limits).ok());
  }
  std::vector<std::vector<uint64_t>> blocks(kTenants);
  uint64_t charges = 0;
  for (int step = 0; step < 20'000; ++step) {
    const auto tenant = static_cast<uint16_t>(random.Below(kTenants));
    const uint64_t bytes = 1 + random.Below(200);
    const QuotaTake take = quota.CanTake(tenant, bytes);
    ASSERT_EQ(quota.Charge(tenant, bytes), take == QuotaTake::kFits);
    if (take == QuotaTake::kFits) {
      blocks[tenant].push_back(bytes);
      ++charges;
    } else {
      uint16_t payer = tenant;
      const auto other = static_cast<uint16_t>(random.Below(kTenants));
      if (take == QuotaTake::kSomeonePays && !blocks[other].empty() &&
          quota.OverFloor(other) >= blocks[other].back()) {
        payer = other;
      }
      if (!blocks[payer].empty()) {
        quota.Uncharge(payer, blocks[payer].back());
        blocks[payer].pop_back();
      }
    }
    uint64_t sum = 0;
    for (uint16_t each = 0; each < kTenants; ++each) {
      ASSERT_LE(quota.charged(each), quota.quota(each).ceiling_bytes);
      sum += quota.charged(each);
    }
    ASSERT_EQ(sum, quota.charged());
    ASSERT_LE(sum, quota.capacity_bytes());
  }
  EXPECT_GT(charges, 1'000u);
}

}  // namespace
}  // namespace aquifer
