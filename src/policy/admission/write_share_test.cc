#include "policy/admission/write_share.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr uint64_t kTier = 4000;
constexpr uint64_t kChain = 10;  // Blocks of a request.

struct Played {
  uint64_t offered = 0;
  uint64_t written = 0;
  uint64_t hits = 0;
  uint64_t lru_hits = 0;
};

// Chains of which one block leaves: how likely to return is drawn, and `returns` says whether it
// does. So many requests in a hundred LRU misses, and we do not.
class Load {
 public:
  explicit Load(std::function<bool(double likely)> returns, uint64_t gains_in_hundred = 0)
      : returns_(std::move(returns)), gains_in_hundred_(gains_in_hundred) {}

  Played Play(int chains) {
    Played played;
    for (int i = 0; i < chains; ++i) {
      const double likely = static_cast<double>(1 + random_.Below(999)) / 1000;
      const uint8_t rank = share_.Rank(likely);
      const bool written = share_.Writes(rank);
      ++played.offered;
      played.written += written ? 1 : 0;
      const bool gain = random_.Below(100) < gains_in_hundred_;
      const bool returns = returns_(likely);
      // The first block is in DRAM, and the second the one that left.
      WriteShare::Request request = {.blocks = kChain, .rank = [&](uint64_t position) {
                                       return position == 1 && returns ? rank : uint8_t{0};
                                     }};
      request.lru_hits = gain ? 0 : returns ? kChain : 1;
      request.hits = gain ? kChain : written ? request.lru_hits : 1;
      share_.NoteRequest(request);
      played.hits += request.hits;
      played.lru_hits += request.lru_hits;
    }
    return played;
  }

  WriteShare& share() { return share_; }

 private:
  const std::function<bool(double)> returns_;
  const uint64_t gains_in_hundred_;
  SeededRandom random_{1};
  WriteShare share_{kTier};
};

double PartWritten(const Played& played) {
  return static_cast<double>(played.written) / static_cast<double>(played.offered);
}

TEST(WriteShareTest, UntilTheTierTurnedOverEverythingIsWritten) {
  Load load([](double) { return false; });
  EXPECT_EQ(PartWritten(load.Play(kTier - 1)), 1);
  EXPECT_LT(PartWritten(load.Play(1000)), 0.05);
}

TEST(WriteShareTest, NoMoreIsWrittenThanIsAskedForAgain) {
  Load load([](double likely) { return likely > 0.75; });
  load.Play(2 * kTier);
  const Played played = load.Play(20'000);
  EXPECT_NEAR(PartWritten(played), 0.25, 0.04);
  EXPECT_EQ(played.hits, played.lru_hits);
}

TEST(WriteShareTest, WhatReturnsIsWrittenUpToTheUsualPartWithoutALoss) {
  Load load([](double likely) { return likely > 0.4; });
  load.Play(2 * kTier);
  const Played played = load.Play(20'000);
  EXPECT_NEAR(PartWritten(played), 0.7, 0.04);
  EXPECT_EQ(played.hits, played.lru_hits);
}

// Of the unlikely ones one in a thousand comes, all the same, and nine of its ten blocks are lost.
TEST(WriteShareTest, ALittleIsLostWhereThatSavesMostOfTheWrites) {
  int chains = 0;
  Load load([&](double likely) { return likely > 0.7 || ++chains % 1000 == 0; });
  load.Play(2 * kTier);
  const Played played = load.Play(20'000);
  EXPECT_LE(PartWritten(played), 0.4);
  EXPECT_GE(played.hits, played.lru_hits - 20'000 / 1000 * kChain);
}

TEST(WriteShareTest, WhereEverythingReturnsAndNothingIsGainedEverythingIsWritten) {
  Load load([](double) { return true; });
  load.Play(2 * kTier);
  const Played played = load.Play(20'000);
  EXPECT_GE(PartWritten(played), 0.97);
  EXPECT_GE(played.hits * 1000, played.lru_hits * 998);
}

TEST(WriteShareTest, WhereThereAreMoreHitsThanLruHasTheUsualPartIsEnough) {
  Load load([](double likely) { return likely > 0.2; }, 40);
  load.Play(2 * kTier);
  const Played played = load.Play(20'000);
  EXPECT_NEAR(PartWritten(played), 0.7, 0.04);
  EXPECT_GE(played.hits, played.lru_hits);
}

TEST(WriteShareTest, BlocksThatAreAlikeAreWrittenTogether) {
  WriteShare share(kTier);
  for (uint64_t i = 0; i < 2 * kTier; ++i) {
    const uint8_t likelier = share.Rank(0.9);
    const uint8_t alike = share.Rank(0.5);
    if (i < kTier) continue;
    EXPECT_EQ(alike, WriteShare::kRanks);
    EXPECT_NEAR(likelier, WriteShare::kRanks / 2, 1);
  }
}

}  // namespace
}  // namespace aquifer
