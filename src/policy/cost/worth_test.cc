#include "policy/cost/worth.h"

#include <vector>

#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr PrefillCoefficients kPrefill = {
    .step_ms = 5, .ms_per_token = 0.1, .ms_per_token_pair = 1e-6};

LoadRun RunOf(uint8_t tier, uint32_t blocks) {
  return {.tier = tier, .blocks = blocks, .tokens_per_block = 16, .bytes_per_block = 1 << 20};
}

TEST(WorthTest, AFastTierIsLoadedToTheEnd) {
  const std::vector<LoadRun> runs = {RunOf(0, 10), RunOf(0, 20)};
  const std::vector<TierCost> tiers = {{.latency_ms = 0.1, .ms_per_byte = 1e-8, .ms_per_op = 0}};
  const WorthAnswer answer =
      WorthLoading({}, {.runs = runs, .tiers = tiers, .tokens_total = 500, .prefill = kPrefill});
  EXPECT_EQ(answer.blocks, 30u);
  EXPECT_EQ(answer.runs, 2u);
  EXPECT_DOUBLE_EQ(answer.prefill_ms, kPrefill.Milliseconds(20, 480));
  EXPECT_DOUBLE_EQ(answer.recompute_ms, kPrefill.Milliseconds(500, 0));
  EXPECT_LT(answer.load_ms + answer.prefill_ms, answer.recompute_ms);
}

TEST(WorthTest, ASlowTierIsNotLoadedAtAll) {
  const std::vector<LoadRun> runs = {RunOf(0, 10)};
  const std::vector<TierCost> tiers = {{.latency_ms = 1e6, .ms_per_byte = 0, .ms_per_op = 0}};
  const WorthAnswer answer =
      WorthLoading({}, {.runs = runs, .tiers = tiers, .tokens_total = 500, .prefill = kPrefill});
  EXPECT_EQ(answer.blocks, 0u);
  EXPECT_EQ(answer.load_ms, 0);
  EXPECT_EQ(answer.prefill_ms, answer.recompute_ms);
}

TEST(WorthTest, ASlowRunIsLoadedForTheSakeOfAFastOneBehindIt) {
  // 1.6 ms a block to compute; 3 ms from tier 1, nothing from tier 0.
  const PrefillCoefficients linear{.step_ms = 0, .ms_per_token = 0.1, .ms_per_token_pair = 0};
  const std::vector<TierCost> tiers = {{}, {.latency_ms = 0, .ms_per_byte = 0, .ms_per_op = 3}};
  std::vector<LoadRun> runs = {RunOf(0, 5), RunOf(1, 10), RunOf(0, 8)};
  WorthQuery query{.runs = runs, .tiers = tiers, .tokens_total = 23 * 16, .prefill = linear};
  EXPECT_EQ(WorthLoading({}, query).blocks, 5u);  // 14 ms lost before 12.8 are won.
  runs[2].blocks = 9;
  query.tokens_total = 24 * 16;
  EXPECT_EQ(WorthLoading({}, query).blocks, 24u);  // 14.4 are won now.
  EXPECT_EQ(WorthLoading({}, query).runs, 3u);
}

TEST(WorthTest, ATiersLatencyCountsOnce) {
  const std::vector<LoadRun> runs = {RunOf(1, 1), RunOf(0, 1), RunOf(1, 1)};
  const std::vector<TierCost> tiers = {{.latency_ms = 1, .ms_per_byte = 0, .ms_per_op = 0.5},
                                       {.latency_ms = 2, .ms_per_byte = 0, .ms_per_op = 0.25}};
  std::vector<double> run_ms(3);
  const WorthAnswer answer =
      WorthLoading({}, {.runs = runs, .tiers = tiers, .tokens_total = 48}, run_ms);
  EXPECT_EQ(run_ms, (std::vector<double>{2.25, 1.5, 0.25}));
  EXPECT_DOUBLE_EQ(answer.load_ms, 4);
}

TEST(WorthTest, WhileThePrefillIsUnknownEverythingPays) {
  const std::vector<LoadRun> runs = {RunOf(0, 10)};
  const std::vector<TierCost> tiers = {{.latency_ms = 1e6, .ms_per_byte = 0, .ms_per_op = 0}};
  const WorthQuery query{.runs = runs, .tiers = tiers, .tokens_total = 160};
  EXPECT_EQ(WorthLoading({}, query).blocks, 10u);
  EXPECT_EQ(WorthLoading({}, query).recompute_ms, 0);
  const WorthOptions options{.default_prefill_tokens_per_second = 10'000};
  EXPECT_EQ(WorthLoading(options, query).blocks, 0u);
  EXPECT_DOUBLE_EQ(WorthLoading(options, query).recompute_ms, 16);
}

TEST(WorthTest, AMarginLeansToRecomputing) {
  const std::vector<LoadRun> runs = {RunOf(0, 10)};
  const PrefillCoefficients linear{.step_ms = 0, .ms_per_token = 0.1, .ms_per_token_pair = 0};
  const std::vector<TierCost> tiers = {{.latency_ms = 10, .ms_per_byte = 0, .ms_per_op = 0}};
  const WorthQuery query{
      .runs = runs, .tiers = tiers, .tokens_total = 160, .prefill = linear};  // Saves 16 ms.
  EXPECT_EQ(WorthLoading({}, query).blocks, 10u);
  EXPECT_EQ(WorthLoading({.max_load_part = 0.5}, query).blocks, 0u);
  EXPECT_DOUBLE_EQ(WorthLoading({.max_load_part = 0.7}, query).load_ms, 10);
}

TEST(WorthTest, NothingMatchedIsNothingLoaded) {
  const WorthAnswer answer = WorthLoading({}, {.tokens_total = 100, .prefill = kPrefill});
  EXPECT_EQ(answer.blocks, 0u);
  EXPECT_DOUBLE_EQ(answer.recompute_ms, kPrefill.Milliseconds(100, 0));
}

TEST(WorthTest, WhatTheEngineHasAlreadyIsContext) {
  const WorthAnswer answer =
      WorthLoading({}, {.tokens_before = 60, .tokens_total = 100, .prefill = kPrefill});
  EXPECT_DOUBLE_EQ(answer.recompute_ms, kPrefill.Milliseconds(40, 60));
}

TEST(WorthTest, IsTheBestOfAllCutsAtAnyBlock) {
  SeededRandom random(1);
  int partial = 0;
  for (int round = 0; round < 5'000; ++round) {
    const PrefillCoefficients prefill = {
        .step_ms = static_cast<double>(random.Below(20)),
        .ms_per_token = static_cast<double>(random.Below(100)) / 500,
        .ms_per_token_pair = static_cast<double>(random.Below(100)) / 1e5};
    std::vector<TierCost> tiers;
    for (int tier = 0; tier < 4; ++tier) {
      tiers.push_back({.latency_ms = static_cast<double>(random.Below(30)),
                       .ms_per_byte = static_cast<double>(random.Below(40)) / 1e7,
                       .ms_per_op = static_cast<double>(random.Below(3))});
    }
    std::vector<LoadRun> runs;
    uint32_t tokens = static_cast<uint32_t>(random.Below(500));
    WorthQuery query;
    query.tokens_before = tokens;
    for (uint64_t left = random.Below(7); left > 0; --left) {
      runs.push_back(RunOf(static_cast<uint8_t>(random.Below(4)),
                           static_cast<uint32_t>(1 + random.Below(40))));
      tokens += runs.back().blocks * 16;
    }
    query.runs = runs;
    query.tiers = tiers;
    query.tokens_total = tokens + static_cast<uint32_t>(random.Below(300));
    query.prefill = prefill;
    const WorthAnswer answer = WorthLoading({}, query);

    double best =
        prefill.Milliseconds(query.tokens_total - query.tokens_before, query.tokens_before);
    double load = 0;
    double there = query.tokens_before;
    std::vector<bool> seen(4);
    for (const LoadRun& run : runs) {
      if (!seen[run.tier]) load += tiers[run.tier].latency_ms;
      seen[run.tier] = true;
      for (uint32_t block = 0; block < run.blocks; ++block) {
        load += static_cast<double>(run.bytes_per_block) * tiers[run.tier].ms_per_byte +
                tiers[run.tier].ms_per_op;
        there += run.tokens_per_block;
        best = std::min(best, load + prefill.Milliseconds(query.tokens_total - there, there));
      }
    }
    ASSERT_NEAR(answer.load_ms + answer.prefill_ms, best, 1e-6 * (1 + best));
    partial += answer.runs > 0 && answer.runs < runs.size();
  }
  EXPECT_GT(partial, 100);  // The rounds were not all trivial.
}

}  // namespace
}  // namespace aquifer
