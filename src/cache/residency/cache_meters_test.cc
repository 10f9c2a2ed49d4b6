#include "cache/residency/cache_meters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace aquifer {
namespace {

TEST(CacheMetersTest, ATenantCountsForItselfAndForAll) {
  CacheMeters meters;
  meters.AddTenant(3);
  meters.AddTenant(1);
  meters.Count(3, &CacheCounters::committed);
  meters.Count(1, &CacheCounters::committed, 4);
  EXPECT_EQ(meters.all().committed, 5u);
  EXPECT_EQ(meters.of(3).committed, 1u);
  EXPECT_EQ(meters.of(1).committed, 4u);
  EXPECT_EQ(meters.of(2).committed, 0u);
  EXPECT_EQ(meters.of(500).committed, 0u) << "it never had a client";
}

TEST(CacheMetersTest, RefusalsCountByTheirReason) {
  CacheMeters meters;
  meters.AddTenant(0);
  meters.CountRefusal(0, Refusal::kQuota);
  meters.CountRefusal(0, Refusal::kQuota);
  EXPECT_EQ(meters.all().reserve_refused, 2u);
  EXPECT_EQ(meters.refused_for()[static_cast<size_t>(Refusal::kQuota)], 2u);
  EXPECT_EQ(meters.refused_for()[static_cast<size_t>(Refusal::kFull)], 0u);
}

TEST(CacheMetersTest, GainsAndLossesOfFetchesAreKeptApart) {
  CacheMeters meters;
  meters.AddTenant(0);
  meters.CountSaved(0, 30);
  meters.CountSaved(0, -10);
  EXPECT_EQ(meters.saved_ms(0), 30);
  EXPECT_EQ(meters.lost_ms(0), 10);
  EXPECT_EQ(meters.saved_ms(7), 0);
}

TEST(CacheMetersTest, TheTableHasEveryCounterOnceAndSaysWhatItCounts) {
  EXPECT_EQ(CounterTable().size() * sizeof(uint64_t), sizeof(CacheCounters));
  std::set<std::string_view> names;
  CacheCounters counters;
  for (const CounterLine& line : CounterTable()) {
    EXPECT_EQ(counters.*line.field, 0u) << line.name << " is there twice";
    counters.*line.field = 1;
    EXPECT_TRUE(line.help.ends_with('.')) << line.help;
    if (line.name.empty()) continue;
    EXPECT_TRUE(names.insert(line.name).second) << line.name;
  }
}

TEST(CacheMetersTest, StatsHasTheCountersByName) {
  CacheCounters counters;
  counters.overdue = 7;
  counters.committed_bytes = 9;
  CacheStats stats;
  AddCounters(counters, &stats);
  const auto has = [&](std::pair<std::string, uint64_t> counter) {
    return std::ranges::count(stats.counters, counter) == 1;
  };
  EXPECT_TRUE(has({"overdue_reservations", 7}));
  EXPECT_TRUE(has({"match_hits", 0}));
  EXPECT_FALSE(has({"", 9}));
}

}  // namespace
}  // namespace aquifer
