#include "policy/cost/chain_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace aquifer {
namespace {

struct Outcome {
  size_t found = 0;
  size_t rounds = 0;
  size_t asked = 0;
};

// Answers in an order of its own: the last first.
Outcome SearchFor(size_t there, size_t keys, size_t width, const std::set<size_t>& lost = {}) {
  ChainSearch search(keys, width);
  Outcome outcome;
  std::set<size_t> asked;
  while (!search.done()) {
    ++outcome.rounds;
    const std::vector<size_t> round(search.round().begin(), search.round().end());
    EXPECT_LE(round.size(), width);
    EXPECT_TRUE(std::is_sorted(round.begin(), round.end()));
    for (size_t i = round.size(); i-- > 0;) {
      EXPECT_TRUE(asked.insert(round[i]).second) << "asked twice for " << round[i];
      const bool last = search.Answer(i, round[i] < there && !lost.contains(round[i]));
      EXPECT_EQ(last, i == 0);
    }
    outcome.asked += round.size();
  }
  outcome.found = search.found();
  return outcome;
}

TEST(ChainSearchTest, FindsEveryEndOfEveryLength) {
  for (const size_t width : {2, 3, 16}) {
    for (size_t keys = 0; keys <= 70; ++keys) {
      for (size_t there = 0; there <= keys; ++there) {
        EXPECT_EQ(SearchFor(there, keys, width).found, there) << keys << " keys by " << width;
      }
    }
  }
}

TEST(ChainSearchTest, AskedForAllOrNothingOneRoundIsEnough) {
  for (const size_t keys : {1, 16, 4000}) {
    EXPECT_EQ(SearchFor(0, keys, 16).rounds, 1u) << keys;
    EXPECT_EQ(SearchFor(keys, keys, 16).rounds, 1u) << keys;
  }
}

TEST(ChainSearchTest, AnEndAnywhereTakesFewRounds) {
  for (size_t there = 0; there <= 4000; ++there) {
    const Outcome outcome = SearchFor(there, 4000, 16);
    EXPECT_EQ(outcome.found, there);
    EXPECT_LE(outcome.rounds, 3u) << there;
    EXPECT_LE(outcome.asked, 48u) << there;
  }
}

TEST(ChainSearchTest, ABlockBehindAGapDoesNotCount) {
  EXPECT_EQ(SearchFor(12, 12, 16, {3}).found, 3u);
  // Whether the gap is seen depends on what is asked for; what is behind a gap that was seen does
  // not count.
  const size_t found = SearchFor(100, 100, 4, {0}).found;
  EXPECT_EQ(found, 0u);
}

TEST(ChainSearchTest, AnEmptyChainAsksNothing) {
  const ChainSearch search(0, 16);
  EXPECT_TRUE(search.done());
  EXPECT_EQ(search.found(), 0u);
}

}  // namespace
}  // namespace aquifer
