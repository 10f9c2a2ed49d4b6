#include "sim/world/inspector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aquifer {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Two tenants with 100 and 200 bytes of DRAM, and 50 each of NVMe.
std::vector<Accounts> Good() {
  std::vector<Accounts> tenants(2);
  for (size_t i = 0; i < 2; ++i) {
    CacheStats& stats = tenants[i].stats;
    stats.tiers.resize(2);
    stats.tiers[0] = {.tier = TierKind::kDram,
                      .capacity_bytes = 1000,
                      .used_bytes = 300,
                      .tenant_bytes = 100 * (i + 1)};
    stats.tiers[1] = {
        .tier = TierKind::kNvme, .capacity_bytes = 1000, .used_bytes = 500, .tenant_bytes = 50};
    stats.counters = {{"pool_bytes", 1000}, {"quarantined_bytes", 10}};
    tenants[i].lent_bytes = 100;
    tenants[i].dram_ceiling_bytes = 200;
    tenants[i].nvme_ceiling_bytes = 50;
  }
  return tenants;
}

TEST(InspectorTest, GoodAccountsAreGood) { EXPECT_THAT(FindWrongAccounts(Good()), IsEmpty()); }

TEST(InspectorTest, EveryWrongAccountIsFound) {
  const auto wrong = [](auto&& doctor) {
    std::vector<Accounts> tenants = Good();
    doctor(&tenants);
    return FindWrongAccounts(tenants);
  };
  EXPECT_THAT(wrong([](auto* t) { (*t)[0].stats.tiers[0].used_bytes = 1001; }),
              HasSubstr("of DRAM are used"));
  EXPECT_THAT(wrong([](auto* t) { (*t)[0].stats.tiers[1].used_bytes = 1001; }),
              HasSubstr("of NVMe are used"));
  EXPECT_THAT(wrong([](auto* t) { (*t)[1].dram_ceiling_bytes = 199; }),
              HasSubstr("over its ceiling"));
  EXPECT_THAT(wrong([](auto* t) { (*t)[1].nvme_ceiling_bytes = 49; }),
              HasSubstr("over its ceiling"));
  EXPECT_THAT(wrong([](auto* t) { (*t)[0].lent_bytes = 101; }), HasSubstr("charged only 100"));
  EXPECT_THAT(wrong([](auto* t) { (*t)[0].stats.tiers[0].tenant_bytes = 101; }),
              HasSubstr("but 301 charged"));
  EXPECT_THAT(wrong([](auto* t) { (*t)[0].stats.counters[0].second = 1001; }),
              HasSubstr("over its cap"));
  EXPECT_THAT(wrong([](auto* t) { (*t)[0].stats.counters[1].second = 301; }),
              HasSubstr("quarantine"));
}

TEST(InspectorTest, WhatTheCacheBelievesToBeOnNvmeIsThere) {
  std::vector<Accounts> tenants = Good();
  tenants[0].stats.tiers[1].blocks = 7;
  tenants[0].stats.counters.emplace_back("nvme_live_blocks", 7);
  EXPECT_THAT(FindDisagreement(tenants), IsEmpty());
  tenants[0].stats.tiers[1].blocks = 8;
  EXPECT_THAT(FindDisagreement(tenants), HasSubstr("8 blocks are said to be on NVMe"));
}

TEST(InspectorTest, WhatIsLeftAtTheEndIsFound) {
  std::vector<Accounts> tenants(1);
  tenants[0].stats.tiers.resize(1);
  EXPECT_THAT(FindLeftovers(tenants), IsEmpty());
  tenants[0].stats.counters = {{"pending_erasures", 1}};
  EXPECT_THAT(FindLeftovers(tenants), HasSubstr("pending_erasures is 1"));
  tenants[0].stats.counters.clear();
  tenants[0].stats.tiers[0] = {.capacity_bytes = 10, .used_bytes = 5, .tenant_bytes = 5};
  EXPECT_THAT(FindLeftovers(tenants), HasSubstr("charged 5 bytes"));
}

}  // namespace
}  // namespace aquifer
