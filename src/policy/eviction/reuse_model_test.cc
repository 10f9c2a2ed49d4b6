#include "policy/eviction/reuse_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr size_t kClass = 30;
constexpr uint8_t kLast = kAgeBuckets - 1;

ReuseCounts RandomCounts(uint64_t seed) {
  ReuseCounts counts = ReuseModel().TakeCounts();
  SeededRandom random(seed);
  for (ReuseCell& cell : counts.cells) {
    cell.reused = static_cast<float>(random.Below(20'000));
    cell.outlived = static_cast<float>(random.Below(20'000));
  }
  return counts;
}

double SecondsOf(uint8_t bucket) {
  const int64_t begin = bucket == 0 ? 0 : AgeBucketEnd(bucket - 1);
  return static_cast<double>(AgeBucketEnd(bucket) - begin) / 1e9;
}

// Of kClass: how likely a block is asked for that is kept through this bucket alone.
std::array<double, kAgeBuckets> HazardsIn(const ReuseCounts& counts) {
  std::array<double, kAgeBuckets> hazards{};
  for (uint8_t b = 0; b < kAgeBuckets; ++b) {
    hazards[b] = BuildReuseTable(counts, b + 1).reuse[kClass * kAgeBuckets + b];
  }
  return hazards;
}

TEST(ReuseModelTest, ABlockIsWorthWhatItBringsIfItIsGivenUpAtTheBestTime) {
  for (const uint64_t seed : {1, 2, 3}) {
    ReuseCounts counts = RandomCounts(seed);
    // The last bucket has no end: nothing is to be gained in it.
    counts.cells[kClass * kAgeBuckets + kLast] = {.reused = 0, .outlived = 1e9F};
    const std::array<double, kAgeBuckets> hazards = HazardsIn(counts);
    const ReuseTable table = BuildReuseTable(counts, kAgeBuckets);
    for (uint8_t from = 0; from < kLast; ++from) {
      double best = 0;
      double waiting = 1;
      double asked = 0;
      double held = 0;
      for (uint8_t until = from; until < kLast; ++until) {
        asked += waiting * hazards[until];
        held += waiting * SecondsOf(until) * (1 - hazards[until] / 2);
        waiting *= 1 - hazards[until];
        best = std::max(best, asked / held);
      }
      EXPECT_NEAR(table.value[kClass * kAgeBuckets + from] / best, 1, 1e-4) << int{from};
    }
  }
}

TEST(ReuseModelTest, RanksAreInTheOrderOfValues) {
  const ReuseTable table = BuildReuseTable(RandomCounts(4), kAgeBuckets);
  for (size_t i = 1; i < kReuseCells; ++i) {
    ASSERT_LE(table.value[table.at_rank[i - 1]], table.value[table.at_rank[i]]);
    ASSERT_EQ(table.rank[table.at_rank[i]], i);
  }
}

}  // namespace
}  // namespace aquifer
