#include "policy/eviction/block_weight.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(BlockWeightTest, AClassIsHalfAPowerOfTwo) {
  EXPECT_EQ(WeightClassOf(1, kMiB), 0);
  EXPECT_EQ(WeightClassOf(2, kMiB), 2);
  EXPECT_EQ(WeightClassOf(2, 2 * kMiB), 0);
  EXPECT_EQ(WeightClassOf(1.4, kMiB), 1);
  EXPECT_EQ(WeightClassOf(1, 8 * kMiB), -6);
  EXPECT_EQ(WeightClassOf(1e30, 1), 60);
  EXPECT_EQ(WeightClassOf(1e-30, kMiB), -60);
}

TEST(BlockWeightTest, WhatIsNotKnownHasNoClass) {
  EXPECT_EQ(WeightClassOf(0, kMiB), kUnknownWeight);
  EXPECT_EQ(WeightClassOf(-1, kMiB), kUnknownWeight);
  EXPECT_EQ(WeightClassOf(1, 0), kUnknownWeight);
}

TEST(BlockWeightTest, TheUnknownWeighAsMuchAsTheMeanOfTheKnown) {
  BlockWeights weights;
  EXPECT_EQ(weights.Of(0, kUnknownWeight), 1);
  EXPECT_EQ(weights.Of(0, 40), 1);  // Nobody was heard of.
  weights.Note(0, kUnknownWeight);
  weights.Note(0, 6);
  EXPECT_EQ(weights.Of(0, 6), 1);
  EXPECT_EQ(weights.Of(0, 4), 0.5);
  weights.Note(0, 2);
  EXPECT_EQ(weights.Of(0, kUnknownWeight), 1);
  EXPECT_EQ(weights.Of(0, 6), 2);
  EXPECT_EQ(weights.Of(0, 2), 0.5);
}

TEST(RecentMeanTest, AllCountAtFirstAndLaterTheLast) {
  RecentMean mean;
  mean.Add(6, 1);
  EXPECT_EQ(mean.mean, 6);
  mean.Add(2, 3);
  EXPECT_EQ(mean.mean, 3);
  mean.Add(5, RecentMean::kBlocks);
  EXPECT_EQ(mean.mean, 5);
  mean.Add(9, RecentMean::kBlocks / 4);
  EXPECT_EQ(mean.mean, 6);
  EXPECT_EQ(mean.known_blocks, RecentMean::kBlocks);
}

// Whoever says that computing its blocks takes hours has no more for it than who says nothing.
TEST(BlockWeightTest, NobodyGetsMoreThanOthersByWhatItSays) {
  BlockWeights weights;
  for (int i = 0; i < 1000; ++i) {
    weights.Note(1, 60);
    weights.Note(2, -60);
  }
  EXPECT_EQ(weights.Of(1, 60), weights.Of(2, -60));
  weights.Note(2, 60);
  EXPECT_EQ(weights.Of(2, 60), 16);  // At the most.
  EXPECT_EQ(weights.Of(1, -60), 1.0 / 16);
  const ChainSaving liar = {.owner = 1, .block_bytes = kMiB, .first_ms = 1e9};
  const ChainSaving other = {.owner = 2, .block_bytes = kMiB, .first_ms = 1};
  const ChainSaving silent = {.owner = 3, .block_bytes = kMiB};
  for (const ChainSaving& saving : {liar, other, silent}) {
    weights.NoteAsked(saving, 10);
    EXPECT_EQ(weights.BytesOf(saving, 10), 10.0 * kMiB) << saving.owner;
  }
}

TEST(BlockWeightTest, AChainThatSavesMoreThanItsOwnersOthersCountsAsMoreBytes) {
  BlockWeights weights;
  const ChainSaving cheap = {.owner = 1, .block_bytes = kMiB, .first_ms = 1};
  const ChainSaving dear = {.owner = 1, .block_bytes = kMiB, .first_ms = 4};
  weights.NoteAsked(cheap, 1 << 16);
  EXPECT_EQ(weights.BytesOf(dear, 3), 12.0 * kMiB);
  EXPECT_EQ(weights.BytesOf(cheap, 3), 3.0 * kMiB);
  EXPECT_EQ(weights.BytesOf(dear, 0), 0);
}

TEST(ChainSavingTest, TheDeeperBlocksSaveMore) {
  const ChainSaving saving = {.block_bytes = kMiB, .first_ms = 2, .deeper_ms = 0.5};
  EXPECT_EQ(saving.At(0), 2);
  EXPECT_EQ(saving.At(4), 4);
  EXPECT_EQ(saving.Of(0), 0);
  EXPECT_EQ(saving.Of(1), 2);
  EXPECT_EQ(saving.Of(3), 2 + 2.5 + 3);
}

}  // namespace
}  // namespace aquifer
