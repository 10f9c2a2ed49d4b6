#include "policy/eviction/takeover.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

constexpr uint32_t kBlocks = 100;  // Of a request.

// Requests of which neither has a hit, until the other one decides: so many blocks.
uint64_t BlocksUntil(Takeover* takeover, bool lru_decides) {
  uint64_t blocks = 0;
  for (; takeover->lru_decides() != lru_decides; blocks += kBlocks) {
    takeover->NoteRequest(kBlocks, 0, 0, 0);
  }
  return blocks;
}

void FallBehind(Takeover* takeover) {
  while (!takeover->lru_decides()) takeover->NoteRequest(kBlocks, 0, 10, 0);
}

TEST(TakeoverTest, WhoIsAheadDecides) {
  Takeover takeover;
  for (int i = 0; i < 100'000; ++i) takeover.NoteRequest(kBlocks, 11, 10, 100);
  EXPECT_FALSE(takeover.lru_decides());
  EXPECT_EQ(takeover.times(), 0u);
}

TEST(TakeoverTest, WhoFallsBehindLetsLruDecideForLongerEachTime) {
  Takeover takeover;
  takeover.NoteRequest(kBlocks, 0, 5, 0);
  EXPECT_FALSE(takeover.lru_decides());  // That is no proof.
  FallBehind(&takeover);
  const uint64_t first = BlocksUntil(&takeover, false);
  EXPECT_GT(first, 8000u);
  FallBehind(&takeover);
  EXPECT_NEAR(static_cast<double>(BlocksUntil(&takeover, false)), 4.0 * first, 2 * kBlocks);
  EXPECT_EQ(takeover.times(), 2u);
}

TEST(TakeoverTest, WhoHasSeenMuchMayBeFurtherBehind) {
  Takeover takeover;
  for (int i = 0; i < 2000; ++i) takeover.NoteRequest(kBlocks, 10, 10, 0);
  for (int i = 0; i < 4; ++i) takeover.NoteRequest(kBlocks, 0, 10, 0);
  EXPECT_FALSE(takeover.lru_decides());
  for (int i = 0; i < 8; ++i) takeover.NoteRequest(kBlocks, 0, 10, 0);
  EXPECT_TRUE(takeover.lru_decides());
}

TEST(TakeoverTest, ASliverOfManyRequestsIsNoReason) {
  Takeover takeover;
  for (int i = 0; i < 10'000; ++i) takeover.NoteRequest(kBlocks, 10, 10.02, 0);
  EXPECT_FALSE(takeover.lru_decides());
}

// A load of large and small blocks: each request is far ahead or far behind.
TEST(TakeoverTest, WhereRequestsAreUnevenItTakesMoreThanChance) {
  Takeover even, uneven;
  for (int i = 0; i < 100; ++i) {
    const double lru_hits = i % 4 < 2 ? 40 : 0;
    even.NoteRequest(kBlocks, 20, lru_hits, 0);
    uneven.NoteRequest(kBlocks, 20, lru_hits, 0, /*uneven=*/true);
  }
  EXPECT_TRUE(even.lru_decides());
  EXPECT_EQ(uneven.times(), 0u);
  for (int i = 0; i < 20; ++i) uneven.NoteRequest(kBlocks, 20, 40, 0, /*uneven=*/true);
  EXPECT_TRUE(uneven.lru_decides());
}

TEST(TakeoverTest, WhatIsLikelyToBeLostCountsBeforeItIs) {
  Takeover takeover;
  for (int i = 0; i < 100; ++i) {
    takeover.NoteMissedAsked();
    takeover.NoteExtraGivenUp();
  }
  takeover.NoteRequest(kBlocks, 0, 0, /*missed=*/6);
  EXPECT_FALSE(takeover.lru_decides());
  takeover.NoteRequest(kBlocks, 0, 0, /*missed=*/60);
  EXPECT_TRUE(takeover.lru_decides());
  const uint64_t first = BlocksUntil(&takeover, false);
  takeover.NoteRequest(kBlocks, 0, 0, /*missed=*/60);
  ASSERT_TRUE(takeover.lru_decides());
  // A fear is less than a loss.
  EXPECT_NEAR(static_cast<double>(BlocksUntil(&takeover, false)), 2.0 * first, 2 * kBlocks);
}

TEST(TakeoverTest, AFewOutcomesProveNothing) {
  Takeover takeover;
  for (int i = 0; i < 60; ++i) {
    takeover.NoteMissedAsked();
    takeover.NoteExtraGivenUp();
  }
  takeover.NoteRequest(kBlocks, 0, 0, /*missed=*/60);
  EXPECT_FALSE(takeover.lru_decides());
}

TEST(TakeoverTest, WhatNobodyHasSeenTheEndOfIsFeared) {
  Takeover takeover;
  takeover.NoteMissedRightly(1000);
  for (int i = 0; i < 100; ++i) takeover.NoteExtraGivenUp();
  takeover.NoteRequest(kBlocks, 0, 0, /*missed=*/1100);
  EXPECT_FALSE(takeover.lru_decides());
  takeover.NoteRequest(kBlocks, 0, 0, /*missed=*/1300);
  EXPECT_TRUE(takeover.lru_decides());
}

TEST(TakeoverTest, WhereExtraBlocksAreAskedForAsOftenNothingIsFeared) {
  Takeover takeover;
  for (int i = 0; i < 1000; ++i) {
    takeover.NoteMissedAsked();
    takeover.NoteExtraAsked();
  }
  takeover.NoteRequest(kBlocks, 0, 0, /*missed=*/1000);
  EXPECT_FALSE(takeover.lru_decides());
}

TEST(TakeoverTest, WhatLruGivesUpIsNotHeldAgainstTheOther) {
  Takeover takeover;
  for (int i = 0; i < 1000; ++i) {
    takeover.NoteExtraAsked();
    takeover.NoteMissedAsked();
  }
  FallBehind(&takeover);
  for (int i = 0; i < 4000; ++i) takeover.NoteExtraGivenUp();
  BlocksUntil(&takeover, false);
  takeover.NoteRequest(kBlocks, 0, 0, /*missed=*/1000);
  EXPECT_FALSE(takeover.lru_decides());
}

TEST(TakeoverTest, ARepeatedRequestOnlyMakesTimeGoBy) {
  Takeover takeover;
  for (int i = 0; i < 1000; ++i) takeover.NoteRepeated(kBlocks);
  EXPECT_FALSE(takeover.lru_decides());
  FallBehind(&takeover);
  for (int i = 0; i < 82; ++i) takeover.NoteRepeated(kBlocks);
  EXPECT_FALSE(takeover.lru_decides());
}

}  // namespace
}  // namespace aquifer
