#include "policy/quota.h"

#include <algorithm>
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
  EXPECT_EQ(quota.WhoPays(2, 101, std::vector<QuotaOffer>{{2, 101, 0}}), std::nullopt);
}

TEST(QuotaTest, FloorsMustFitTheCapacityAndTheCeiling) {
  Quota quota({.capacity_bytes = 100});
  EXPECT_TRUE(quota.SetTenant(1, {.floor_bytes = 60}).ok());
  EXPECT_EQ(quota.SetTenant(2, {.floor_bytes = 41}).code(), Code::kInvalid);
  EXPECT_EQ(quota.SetTenant(2, {.floor_bytes = 20, .ceiling_bytes = 19}).code(), Code::kInvalid);
  EXPECT_EQ(quota.SetTenant(2, {.floor_bytes = UINT64_MAX}).code(), Code::kInvalid);
  EXPECT_TRUE(quota.SetTenant(2, {.floor_bytes = 40}).ok());
  EXPECT_TRUE(quota.SetTenant(1, {.floor_bytes = 60}).ok());  // Its own floor is not counted twice.
  EXPECT_EQ(quota.SetCapacity(99).code(), Code::kInvalid);
  EXPECT_TRUE(quota.SetCapacity(200).ok());
}

TEST(QuotaTest, ATenantAtItsCeilingPaysByItself) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 0, .ceiling_bytes = 30}).ok());
  ASSERT_TRUE(quota.Charge(1, 30));
  ASSERT_TRUE(quota.Charge(2, 10));
  EXPECT_EQ(quota.CanTake(1, 10), QuotaTake::kOwnPays);
  EXPECT_FALSE(quota.Charge(1, 10));
  const std::vector<QuotaOffer> offers = {{2, 10, 0}, {1, 10, 99}};
  EXPECT_EQ(quota.WhoPays(1, 10, offers), 1u);
  EXPECT_EQ(quota.WhoPays(1, 10, std::vector<QuotaOffer>{{2, 10, 0}}), std::nullopt);
  EXPECT_EQ(quota.WhoPays(1, 10, std::vector<QuotaOffer>{{1, 0, 0}}), std::nullopt);
}

TEST(QuotaTest, NobodyIsPushedBelowItsFloorForAnother) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 55}).ok());
  ASSERT_TRUE(quota.Charge(1, 60));
  ASSERT_TRUE(quota.Charge(2, 40));
  // Ten bytes would leave tenant 1 with 50.
  EXPECT_EQ(quota.WhoPays(3, 10, std::vector<QuotaOffer>{{1, 10, 0}}), std::nullopt);
  EXPECT_EQ(quota.WhoPays(3, 10, std::vector<QuotaOffer>{{1, 10, 0}, {2, 10, 9}}), 1u);
  EXPECT_EQ(quota.WhoPays(3, 5, std::vector<QuotaOffer>{{1, 5, 0}}), 0u);
  EXPECT_EQ(quota.OverFloor(1), 5u);
  EXPECT_EQ(quota.OverFloor(3), 0u);
}

TEST(QuotaTest, AnIdleFloorIsLentAndTakenBack) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 50}).ok());
  ASSERT_TRUE(quota.Charge(2, 100));
  while (quota.charged(1) < 50) {
    ASSERT_EQ(quota.CanTake(1, 10), QuotaTake::kSomeonePays);
    const std::vector<QuotaOffer> offers = {{1, quota.charged(1) > 0 ? 10u : 0u, -5}, {2, 10, 0}};
    ASSERT_EQ(quota.WhoPays(1, 10, offers), 1u);
    quota.Uncharge(2, 10);
    ASSERT_TRUE(quota.Charge(1, 10));
  }
}

TEST(QuotaTest, WhoFloodsTheTierPaysForIt) {
  Quota quota({.capacity_bytes = 90});
  ASSERT_TRUE(quota.Charge(1, 20));
  ASSERT_TRUE(quota.Charge(2, 60));
  ASSERT_TRUE(quota.Charge(3, 10));
  EXPECT_EQ(quota.FairShare(1), 30u);
  EXPECT_EQ(quota.FairShare(4), 22u);  // It would be the fourth.
  const std::vector<QuotaOffer> offers = {{1, 5, 0}, {2, 5, 100}, {3, 5, 1}};
  EXPECT_EQ(quota.WhoPays(1, 5, offers), 1u);
  EXPECT_EQ(quota.WhoPays(2, 5, offers), 1u);
}

TEST(QuotaTest, AtEqualSharesTheAskerPays) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.Charge(1, 50));
  ASSERT_TRUE(quota.Charge(2, 50));
  const std::vector<QuotaOffer> offers = {{1, 5, 0}, {2, 5, 0}};
  EXPECT_EQ(quota.WhoPays(1, 5, offers), 0u);
  EXPECT_EQ(quota.WhoPays(2, 5, offers), 1u);
}

TEST(QuotaTest, ByTheOtherRuleTheLeastValuableGoes) {
  Quota quota({.capacity_bytes = 90, .rule = PayRule::kLeastValuable});
  ASSERT_TRUE(quota.Charge(1, 20));
  ASSERT_TRUE(quota.Charge(2, 70));
  EXPECT_EQ(quota.WhoPays(2, 5, std::vector<QuotaOffer>{{1, 5, 3}, {2, 5, 4}}), 0u);
  EXPECT_EQ(quota.WhoPays(2, 5, std::vector<QuotaOffer>{{1, 5, 4}, {2, 5, 4}}), 0u);
}

TEST(QuotaTest, ALowerCeilingOrCapacityIsAnExcessToGiveUp) {
  Quota quota({.capacity_bytes = 100});
  ASSERT_TRUE(quota.Charge(1, 80));
  ASSERT_TRUE(quota.SetTenant(1, {.floor_bytes = 0, .ceiling_bytes = 50}).ok());
  EXPECT_EQ(quota.Excess(1), 30u);
  EXPECT_EQ(quota.CanTake(1, 1), QuotaTake::kOwnPays);
  ASSERT_TRUE(quota.SetCapacity(60).ok());
  EXPECT_EQ(quota.Excess(), 20u);
  EXPECT_EQ(quota.CanTake(2, 1), QuotaTake::kSomeonePays);
  quota.Uncharge(1, 30);
  EXPECT_EQ(quota.Excess(1), 0u);
  EXPECT_EQ(quota.Excess(), 0u);
}

// Tenants take blocks of random sizes and evict whoever has to pay.
TEST(QuotaTest, CapsAndFloorsHoldUnderRandomLoad) {
  SeededRandom random(1);
  for (const PayRule rule : {PayRule::kFurthestOverShare, PayRule::kLeastValuable}) {
    constexpr uint16_t kTenants = 5;
    Quota quota({.capacity_bytes = 10'000, .rule = rule});
    for (uint16_t tenant = 0; tenant < kTenants; ++tenant) {
      const TenantQuota limits{.floor_bytes = tenant * 500u,
                               .ceiling_bytes = tenant == 4 ? 3'000u : 8'000u};
      ASSERT_TRUE(quota.SetTenant(tenant, limits).ok());
    }
    std::vector<std::vector<uint64_t>> blocks(kTenants);
    uint64_t refused = 0;
    for (int step = 0; step < 20'000; ++step) {
      const auto tenant = static_cast<uint16_t>(random.Below(kTenants));
      const uint64_t bytes = 1 + random.Below(200);
      while (quota.CanTake(tenant, bytes) != QuotaTake::kFits) {
        std::vector<QuotaOffer> offers;
        for (uint16_t other = 0; other < kTenants; ++other) {
          const uint64_t offered = blocks[other].empty() ? 0 : blocks[other].back();
          offers.push_back({other, offered, static_cast<double>(random.Below(10))});
        }
        const auto payer = quota.WhoPays(tenant, bytes, offers);
        if (!payer.has_value()) break;
        const uint16_t who = offers[*payer].tenant;
        const uint64_t before = quota.charged(who);
        quota.Uncharge(who, offers[*payer].bytes);
        blocks[who].pop_back();
        if (who != tenant) {
          ASSERT_GE(before, quota.quota(who).floor_bytes);
          ASSERT_GE(quota.charged(who), quota.quota(who).floor_bytes);
        }
      }
      if (quota.Charge(tenant, bytes)) {
        blocks[tenant].push_back(bytes);
      } else {
        ++refused;
      }
      uint64_t sum = 0;
      for (uint16_t other = 0; other < kTenants; ++other) {
        ASSERT_LE(quota.charged(other), quota.quota(other).ceiling_bytes);
        sum += quota.charged(other);
      }
      ASSERT_EQ(sum, quota.charged());
      ASSERT_LE(sum, quota.capacity_bytes());
    }
    EXPECT_EQ(refused, 0u);  // Everyone who asks can at least replace something of its own.
  }
}

}  // namespace
}  // namespace aquifer
