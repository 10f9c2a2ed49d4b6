#include "policy/write_share.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace aquifer {
namespace {

constexpr uint64_t kBlocks = 100;  // Of a request.

struct Hits {
  uint64_t ours = 0;
  uint64_t lru = 0;
  bool unwritten = false;  // What is missing was.
};

void Ask(WriteShare* share, int requests, const Hits& hits) {
  for (int i = 0; i < requests; ++i) {
    share->NoteRequest(
        {.blocks = kBlocks, .hits = hits.ours, .lru_hits = hits.lru, .unwritten = hits.unwritten});
  }
}

TEST(WriteShareTest, WhereNothingUnwrittenIsMissedLittleIsWritten) {
  WriteShare share;
  EXPECT_NEAR(share.part(), 0.7, 0.01);
  Ask(&share, 100, {.ours = 20, .lru = 20});
  EXPECT_LT(share.part(), 0.45);
}

// That it is behind for other reasons is none to end the saving.
TEST(WriteShareTest, WhatIsMissedForOtherReasonsIsNotMissedForBeingUnwritten) {
  WriteShare share;
  Ask(&share, 100, {.ours = 19, .lru = 20, .unwritten = false});
  EXPECT_LT(share.part(), 0.45);
}

TEST(WriteShareTest, WhereUnwrittenBlocksAreMissedTheUsualPartIsWrittenWhileItIsAhead) {
  WriteShare share;
  for (int i = 0; i < 1000; ++i) {
    Ask(&share, 1, {.ours = 19, .lru = 20, .unwritten = true});
    Ask(&share, 1, {.ours = 23, .lru = 20});
  }
  EXPECT_NEAR(share.part(), 0.7, 0.01);
}

TEST(WriteShareTest, WhoIsFarBehindWritesEverything) {
  WriteShare share;
  EXPECT_EQ(share.eagerness(), 0);
  Ask(&share, 200, {.ours = 18, .lru = 20, .unwritten = true});
  EXPECT_EQ(share.eagerness(), 1);
  Ask(&share, 200, {.ours = 24, .lru = 20, .unwritten = true});
  EXPECT_EQ(share.eagerness(), 0);
}

TEST(WriteShareTest, SavingEndsWhenItIsMissedAndIsTriedAgainLater) {
  WriteShare share;
  Ask(&share, 100, {.ours = 20, .lru = 20});
  ASSERT_LT(share.part(), 0.45);
  Ask(&share, 100, {.ours = 19, .lru = 20, .unwritten = true});
  EXPECT_GE(share.part(), 0.7);
  Ask(&share, 100, {.ours = 20, .lru = 20});
  EXPECT_GE(share.part(), 0.7);  // For longer than at first.
  Ask(&share, 1000, {.ours = 20, .lru = 20});
  EXPECT_LT(share.part(), 0.45);
}

}  // namespace
}  // namespace aquifer
