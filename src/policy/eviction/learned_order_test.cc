#include "policy/eviction/learned_order.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::unique_ptr<EvictionOrder> MakeOrder(uint32_t max_blocks = 1000) {
  auto order = NewLearnedOrder({.max_blocks = max_blocks});
  EXPECT_TRUE(order.ok());
  return *std::move(order);
}

uint64_t NameOf(uint64_t number) {
  uint64_t z = (number + 1) * 0x9E3779B97F4A7C15u;
  return z ^ (z >> 29);
}

BlockFeatures Of(uint16_t tenant, uint64_t name = 0, int8_t priority = 0) {
  BlockFeatures features;
  features.tenant = tenant;
  features.name = name;
  features.priority = priority;
  return features;
}

// A tier of one order that is asked for chains of blocks, which are numbers and names at once.
class AskedTier {
 public:
  AskedTier(EvictionOrder* order, uint32_t capacity, const ChainSaving& saving = {})
      : order_(order), capacity_(capacity), saving_(saving) {}

  // Returns how many were there, from the first on.
  size_t Ask(const std::vector<uint32_t>& blocks, int64_t now,
             SessionHint session = SessionHint::kNone) {
    size_t hits = 0;
    while (hits < blocks.size() && order_->Contains(blocks[hits])) ++hits;
    const AskedChain chain = {.blocks = static_cast<uint32_t>(blocks.size()),
                              .full_blocks = static_cast<uint32_t>(blocks.size()),
                              .input_tokens = 16 * blocks.size(),
                              .session = session,
                              .saving = saving_,
                              .name = [&](uint32_t i) { return NameOf(blocks[i]); }};
    AskProgress progress;
    while (order_->Ask(chain, &progress, 3, now)) {
    }
    for (size_t i = blocks.size(); i-- > 0;) {
      BlockFeatures features = Of(0, NameOf(blocks[i]));
      features.position = static_cast<uint32_t>(i);
      features.bytes = saving_.block_bytes;
      features.saved_ms = saving_.At(features.position);
      if (order_->Contains(blocks[i])) {
        order_->Touch(blocks[i], features, now);
        continue;
      }
      order_->Add(blocks[i], features, now);
      // Chains share nothing but what they begin with: whoever is not last has a child.
      order_->SetLeaf(blocks[i], i + 1 == blocks.size());
      if (i > 0) parent_[blocks[i]] = blocks[i - 1];
      if (i > 0 && order_->Contains(blocks[i - 1])) order_->SetLeaf(blocks[i - 1], false);
      ++children_[i > 0 ? blocks[i - 1] : UINT32_MAX];
    }
    while (order_->size() > capacity_) {
      const uint32_t victim = order_->Victim(uint16_t{0});
      if (victim == kNoVictim) break;
      order_->Remove(victim);
      const auto parent = parent_.find(victim);
      if (parent != parent_.end() && --children_[parent->second] == 0 &&
          order_->Contains(parent->second)) {
        order_->SetLeaf(parent->second, true);
      }
    }
    return hits;
  }

 private:
  EvictionOrder* const order_;
  const uint32_t capacity_;
  const ChainSaving saving_;
  std::map<uint32_t, uint32_t> parent_;
  std::map<uint32_t, int> children_;
};

TEST(LearnedOrderTest, RefusesOptionsThatMakeNoSense) {
  EXPECT_EQ(NewLearnedOrder({.max_blocks = 0}).status().code(), Code::kInvalid);
}

TEST(LearnedOrderTest, BeforeItHasLearnedTheLeastRecentlyUsedGoesFirst) {
  const auto order = MakeOrder();
  EXPECT_EQ(order->Victim(uint16_t{0}), kNoVictim);
  order->Add(1, Of(0), 10 * kSecond);
  order->Add(2, Of(0), 40 * kSecond);
  order->Add(3, Of(0), 90 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{0}), 1u);
  order->Touch(1, Of(0), 200 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
  order->Remove(2);
  EXPECT_EQ(order->Victim(uint16_t{0}), 3u);
  EXPECT_GT(order->Value(1), order->Value(3));
}

TEST(LearnedOrderTest, HeldAndInnerBlocksAreNoVictims) {
  const auto order = MakeOrder();
  order->Add(1, Of(0), 10);
  order->SetLeaf(1, false);
  order->Add(2, Of(0), 20);
  order->Hold(2);
  order->Hold(2);
  EXPECT_EQ(order->Victim(uint16_t{0}), kNoVictim);
  order->Unhold(2);
  EXPECT_EQ(order->Victim(uint16_t{0}), kNoVictim);
  order->Unhold(2);
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
  order->Hold(2);
  order->Remove(2);
  EXPECT_FALSE(order->Contains(2));
  order->SetLeaf(1, true);
  EXPECT_EQ(order->Victim(uint16_t{0}), 1u);
  order->Add(2, Of(0), 5);  // As good as new: neither held nor inner.
  order->Remove(1);
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
}

TEST(LearnedOrderTest, TenantsAndPrioritiesAreKeptApart) {
  const auto order = MakeOrder();
  order->Add(3, Of(7, 0, 1), 5 * kSecond);
  order->Add(2, Of(7), 10 * kSecond);
  order->Add(1, Of(3), 30 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{3}), 1u);
  EXPECT_EQ(order->Victim(uint16_t{7}), 2u);
  EXPECT_EQ(order->Victim(uint16_t{5}), kNoVictim);
  EXPECT_EQ(order->Victim(uint16_t{60'000}), kNoVictim);
  EXPECT_EQ(order->Victim([](uint16_t) { return true; }), 2u);
  EXPECT_EQ(order->Victim([](uint16_t tenant) { return tenant != 7; }), 1u);
  EXPECT_EQ(order->Victim([](uint16_t) { return false; }), kNoVictim);
}

TEST(LearnedOrderTest, WhatWasSaidToHaveEndedGoesFirst) {
  const auto order = MakeOrder();
  order->Add(1, Of(0), 10 * kSecond);
  order->Add(2, Of(0), 11 * kSecond);
  BlockFeatures ended = Of(0);
  ended.session = SessionHint::kEnded;
  order->Touch(2, ended, 11 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
}

// Before anything was learned, a caller who says when is believed: while one is due, the other,
// whose time is over or has not come, goes first.
TEST(LearnedOrderTest, WhoIsDueIsKept) {
  const auto order = MakeOrder();
  const auto add = [&](uint32_t ref, SessionHint session) {
    BlockFeatures features = Of(0);
    order->Add(ref, features, 0);
    features.session = session;
    order->Touch(ref, features, 0);
  };
  add(1, SessionHint::kWithinMinute);
  add(2, SessionHint::kWithinHour);
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
  order->Add(3, Of(0, 0, 1), 1200 * kSecond);  // Time goes by.
  EXPECT_EQ(order->Victim(uint16_t{0}), 1u);
}

// Conversations come back after a minute, and between them pass many that never do.
TEST(LearnedOrderTest, LearnsWhichChainsComeBack) {
  const auto order = MakeOrder(1 << 20);
  AskedTier tier(order.get(), 300);
  uint32_t fresh = 100'000;
  size_t late_hits = 0;
  size_t late_asked = 0;
  for (int64_t second = 0; second < 6000; ++second) {
    std::vector<uint32_t> passing;
    for (int i = 0; i < 10; ++i) passing.push_back(fresh++);
    tier.Ask(passing, second * kSecond);
    if (second % 4 != 0) continue;
    // Fifteen of them, each every minute, and of three blocks.
    const auto who = static_cast<uint32_t>(second / 4 % 15);
    const size_t hits = tier.Ask({who * 3, who * 3 + 1, who * 3 + 2}, second * kSecond);
    if (second < 3000) continue;
    late_hits += hits;
    late_asked += 3;
  }
  // LRU forgets them within 30 seconds.
  EXPECT_GE(late_hits, late_asked * 9 / 10);
  EXPECT_GT(order->stats().tables, 10u);
  EXPECT_FALSE(order->stats().lru_decides);
  EXPECT_GT(order->stats().hits, order->stats().lru_hits);
}

// What comes back depends on what nobody can know, and soon: LRU is the best there is.
TEST(LearnedOrderTest, IsNeverFarBehindLru) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const auto order = MakeOrder(1 << 20);
    AskedTier tier(order.get(), 200);
    SeededRandom random(seed);
    std::vector<std::vector<uint32_t>> chains;
    uint32_t fresh = 0;
    for (int64_t step = 0; step < 10'000; ++step) {
      const size_t back = std::min<size_t>(chains.size(), 1 + random.Below(40));
      if (!chains.empty() && random.Below(2) == 0) {
        tier.Ask(chains[chains.size() - back], step * kSecond / 2);
      } else {
        std::vector<uint32_t> chain;
        for (uint64_t i = 0; i < 1 + random.Below(8); ++i) chain.push_back(fresh++);
        tier.Ask(chain, step * kSecond / 2);
        chains.push_back(std::move(chain));
      }
    }
    const EvictionStats stats = order->stats();
    EXPECT_GE(stats.hits + stats.asked_blocks / 1000, stats.lru_hits) << seed;
  }
}

// --- What blocks save

constexpr uint64_t kMiB = 1 << 20;

BlockFeatures Saving(double saved_ms, uint64_t bytes) {
  BlockFeatures features = Of(0);
  features.saved_ms = saved_ms;
  features.bytes = bytes;
  return features;
}

TEST(LearnedOrderTest, OfEqualReuseWhatSavesLessByTheByteGoesFirst) {
  const auto order = MakeOrder();
  order->Add(1, Saving(8, 64 << 10), 10 * kSecond);  // A small model's, and slow to compute.
  order->Add(2, Saving(80, 8 * kMiB), 11 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
  EXPECT_GT(order->Value(1), order->Value(2));
}

TEST(LearnedOrderTest, OfEqualSavingsTheLargeOneGoesFirst) {
  const auto order = MakeOrder();
  order->Add(1, Saving(5, 64 << 10), 10 * kSecond);
  order->Add(2, Saving(5, 8 * kMiB), 11 * kSecond);
  order->Add(3, Saving(5, 8 * kMiB), 12 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
  order->Remove(2);
  EXPECT_EQ(order->Victim(uint16_t{0}), 3u);
}

TEST(LearnedOrderTest, WhatIsUnknownCountsLikeTheMeanOfTheKnown) {
  const auto order = MakeOrder();
  order->Add(1, Saving(0, 8 * kMiB), 10 * kSecond);
  order->Add(2, Saving(0, 64 << 10), 11 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{0}), 1u);  // Nothing is known: as they were used.
  order->Add(3, Saving(16, kMiB), 12 * kSecond);
  order->Add(4, Saving(1, kMiB), 13 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{0}), 4u);
  order->Remove(4);
  EXPECT_EQ(order->Victim(uint16_t{0}), 1u);
  order->Remove(1);
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
}

TEST(LearnedOrderTest, AnotherSavingCountsFromTheNextUseOnOrWhenItIsTold) {
  const auto order = MakeOrder();
  order->Add(1, Saving(4, kMiB), 10 * kSecond);
  order->Add(2, Saving(4, kMiB), 11 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{0}), 1u);
  order->Reweigh(2, Saving(1, kMiB));
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
  order->Touch(2, Saving(8, kMiB), 12 * kSecond);
  EXPECT_EQ(order->Victim(uint16_t{0}), 1u);
  order->Hold(1);
  order->Reweigh(1, Saving(2, kMiB));  // On no shelf now.
  EXPECT_EQ(order->Victim(uint16_t{0}), 2u);
  order->Unhold(1);
  EXPECT_EQ(order->Victim(uint16_t{0}), 1u);
}

// Of two tenants neither has more for what its engines say of their prefills.
TEST(LearnedOrderTest, WhatATenantSaysOfItsBlocksPushesOutItsOwnOnly) {
  const auto order = MakeOrder();
  const auto add = [&](uint32_t ref, uint16_t tenant, double saved_ms) {
    BlockFeatures features = Saving(saved_ms, kMiB);
    features.tenant = features.owner = tenant;
    order->Add(ref, features, (10 + ref) * kSecond);
  };
  add(1, 1, 1e9);
  add(2, 2, 1);
  add(3, 1, 1e9);
  add(4, 2, 1);
  EXPECT_EQ(order->Victim([](uint16_t) { return true; }), 1u);  // As they were used.
  order->Remove(1);
  EXPECT_EQ(order->Victim([](uint16_t) { return true; }), 2u);
}

// A use that is told is one; being weighed anew is none.
TEST(LearnedOrderTest, BeingWeighedAnewIsNoUse) {
  const auto order = MakeOrder();
  order->Add(1, Saving(4, kMiB), 10 * kSecond);
  order->Add(2, Saving(4, kMiB), 11 * kSecond);
  order->Reweigh(1, Saving(1, kMiB));
  order->Reweigh(1, Saving(4, kMiB));
  EXPECT_EQ(order->Victim(uint16_t{0}), 1u);
}

TEST(LearnedOrderTest, WhereAllSaveTheSameTheVictimsAreThoseOfAnOrderThatKnowsNothingOfIt) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const auto known = MakeOrder(1 << 16);
    const auto unknown = MakeOrder(1 << 16);
    AskedTier weighed(known.get(), 300, {.block_bytes = kMiB, .first_ms = 3});
    AskedTier plain(unknown.get(), 300);
    SeededRandom random(seed);
    std::vector<std::vector<uint32_t>> chains;
    uint32_t fresh = 0;
    for (int64_t step = 0; step < 4000; ++step) {
      if (chains.empty() || random.Below(3) == 0) {
        chains.emplace_back();
        for (uint64_t i = 0; i < 1 + random.Below(12); ++i) chains.back().push_back(fresh++);
      }
      const auto& chain =
          chains[chains.size() - 1 - random.Below(std::min<size_t>(chains.size(), 90))];
      EXPECT_EQ(weighed.Ask(chain, step * kSecond), plain.Ask(chain, step * kSecond));
      ASSERT_EQ(known->Victim(uint16_t{0}), unknown->Victim(uint16_t{0})) << step;
    }
    EXPECT_EQ(known->stats().takeovers, unknown->stats().takeovers);
    EXPECT_NEAR(known->stats().weighed_hits, static_cast<double>(known->stats().hits), 1e-6);
  }
}

// Attention makes what is deep in a chain dearer, and it goes first all the same.
TEST(LearnedOrderTest, NoPrefixIsCutBecauseOfWeights) {
  const auto order = MakeOrder(1 << 16);
  AskedTier tier(order.get(), 200, {.block_bytes = kMiB, .first_ms = 1, .deeper_ms = 5});
  SeededRandom random(1);
  std::vector<std::vector<uint32_t>> chains;
  uint32_t fresh = 0;
  for (int64_t step = 0; step < 3000; ++step) {
    if (chains.empty() || random.Below(2) == 0) {
      chains.emplace_back();
      for (uint64_t i = 0; i < 1 + random.Below(40); ++i) chains.back().push_back(fresh++);
    }
    tier.Ask(chains[random.Below(chains.size())], step * kSecond);
    for (const auto& chain : chains) {
      size_t there = 0;
      while (there < chain.size() && order->Contains(chain[there])) ++there;
      for (size_t i = there; i < chain.size(); ++i) ASSERT_FALSE(order->Contains(chain[i])) << step;
    }
  }
}

TEST(LearnedOrderTest, LruIsTakenToHaveAsManyBytesAndNotAsManyBlocks) {
  const auto order = MakeOrder();
  AskedTier small(order.get(), 1000, {.block_bytes = 4096});
  AskedTier large(order.get(), 1000, {.block_bytes = 10 * 4096});
  for (uint32_t block = 0; block < 10; ++block) small.Ask({block}, block * 10 * kSecond);
  large.Ask({100}, 200 * kSecond);
  order->Remove(100);
  EXPECT_EQ(order->stats().lru_hits, 0u);
  small.Ask({9}, 300 * kSecond);  // LRU would have the large block alone in so little memory.
  EXPECT_EQ(order->stats().hits, 1u);
  EXPECT_EQ(order->stats().lru_hits, 0u);
  EXPECT_GT(order->stats().weighed_hits, 0);
  EXPECT_LT(order->stats().weighed_hits, 1);  // It is a small one.
}

// A tier that keeps ten blocks which LRU would not, and lacks others that LRU would have, which are
// asked for three times as often. Returns how often LRU had to decide.
uint64_t Takeovers(double kept_ms, double lacking_ms) {
  const auto order = MakeOrder(1 << 16);
  AskedTier kept(order.get(), 1000, {.block_bytes = kMiB, .first_ms = kept_ms});
  AskedTier lacking(order.get(), 1000, {.block_bytes = kMiB, .first_ms = lacking_ms});
  int64_t now = 0;
  for (uint32_t round = 0; round < 400; ++round) {
    kept.Ask({round % 10}, now += 5 * kSecond);
    for (uint32_t back = 0; back < 4; ++back) {
      const uint32_t block = 1000 + round - back;
      lacking.Ask({block}, now += 5 * kSecond);
      order->Remove(block);
    }
  }
  EXPECT_LT(order->stats().hits + 500, order->stats().lru_hits);
  return order->stats().takeovers;
}

TEST(LearnedOrderTest, ItIsHeldAgainstLruByWhatHitsSave) {
  EXPECT_GT(Takeovers(1, 1), 0u);
  EXPECT_GT(Takeovers(0, 0), 0u);
  EXPECT_EQ(Takeovers(400, 1), 0u);
}

TEST(LearnedOrderTest, TheSameQuestionAtOnceIsNoSecondUse) {
  const auto order = MakeOrder();
  AskedTier tier(order.get(), 100);
  for (int i = 0; i < 5; ++i) tier.Ask({1, 2, 3}, 10 * kSecond + i);
  EXPECT_EQ(order->stats().asked_blocks, 3u);
  tier.Ask({1, 2, 3}, 20 * kSecond);
  EXPECT_EQ(order->stats().asked_blocks, 6u);
}

// What came and went within a second, and is asked for by somebody else: it is as good as new, and
// not the next victim once more.
TEST(LearnedOrderTest, TheSameQuestionIsASecondUseWhereTheBlocksWereEvictedInBetween) {
  const auto order = MakeOrder();
  AskedTier tier(order.get(), 3);
  const int64_t ms = kSecond / 1000;
  tier.Ask({1, 2, 3}, 10 * kSecond);
  tier.Ask({4, 5, 6}, 10 * kSecond + ms);
  ASSERT_FALSE(order->Contains(3));
  tier.Ask({1, 2, 3}, 10 * kSecond + 2 * ms);
  EXPECT_EQ(order->stats().asked_blocks, 9u);
  EXPECT_TRUE(order->Contains(3));
  tier.Ask({1, 2, 3}, 10 * kSecond + 3 * ms);  // There it is: whoever waited for it asks again.
  EXPECT_EQ(order->stats().asked_blocks, 9u);
}

TEST(LearnedOrderTest, QuestionsOfOneTimeAreRequestsOfTheirOwn) {
  const auto order = MakeOrder();
  AskedTier tier(order.get(), 6);
  tier.Ask({1, 2, 3}, 10 * kSecond);
  tier.Ask({4, 5, 6}, 10 * kSecond);
  tier.Ask({1, 2, 3}, 10 * kSecond);
  EXPECT_EQ(order->stats().asked_blocks, 9u);
  EXPECT_EQ(order->Victim(uint16_t{0}), 6u);  // Which was used before.
}

// They are alike but for their last use, which is what tells them apart.
TEST(LearnedOrderTest, WhatWasHeldGoesWhenItsTurnComesAsBefore) {
  constexpr uint32_t kBlocks = 100;
  for (const uint32_t held : {0u, 9u, 50u, 90u, 98u}) {
    auto order = NewLearnedOrder({.max_blocks = kBlocks});
    ASSERT_TRUE(order.ok());
    for (uint32_t i = 0; i < kBlocks; ++i) (*order)->Add(i, {}, i);
    (*order)->Hold(held);
    (*order)->Unhold(held);
    for (uint32_t i = 0; i < kBlocks; ++i) {
      ASSERT_EQ((*order)->Victim(uint16_t{0}), i) << held;
      (*order)->Remove(i);
    }
  }
}

TEST(LearnedOrderTest, TablesAreMadeElsewhereAndTakenWhenTheyAreDone) {
  std::vector<Task> tasks;
  {
    auto order = NewLearnedOrder({.max_blocks = 100'000, .run_elsewhere = [&](Task task) {
                                    tasks.push_back(std::move(task));
                                  }});
    ASSERT_TRUE(order.ok());
    AskedTier tier(order->get(), 100);
    const auto ask = [&tier](uint32_t i) { tier.Ask({3 * i, 3 * i + 1, 3 * i + 2}, i * kSecond); };
    for (uint32_t i = 0; i < 500; ++i) ask(i);
    EXPECT_EQ(tasks.size(), 1u);              // One at a time.
    EXPECT_EQ((*order)->stats().tables, 1u);  // The one to begin with.
    tasks[0]();
    for (uint32_t i = 500; i < 1000; ++i) ask(i);
    EXPECT_EQ((*order)->stats().tables, 2u);
    EXPECT_EQ(tasks.size(), 2u);
  }
  tasks[1]();  // The order is gone.
}

TEST(LearnedOrderTest, ABlockWithItsGhostsTakesAtMost350Bytes) {
  const uint32_t count = 50'000;
  const auto order = MakeOrder(2 * count);
  uint64_t name = 1;
  for (uint32_t ref = 0; ref < count; ++ref) order->Add(ref, Of(0, NameOf(name++)), ref);
  for (int round = 0; round < 8; ++round) {
    for (uint32_t ref = 0; ref < count; ++ref) {
      order->Remove(ref);
      order->Add(ref, Of(0, NameOf(name++)), count + ref);
    }
  }
  EXPECT_EQ(order->size(), count);
  EXPECT_LE(order->bytes(), uint64_t{350} * count);
}

// However many priorities and prefill times it names.
TEST(LearnedOrderTest, ATenantHasABoundedNumberOfShelves) {
  constexpr int kPriorities = 16;
  constexpr int kWeights = 121;
  const auto order = MakeOrder(kPriorities * kWeights);
  std::vector<int> priorities;
  uint64_t bytes_of_64 = 0;
  for (int weight = 0; weight < kWeights; ++weight) {
    for (int priority = -8; priority < 8; ++priority) {
      BlockFeatures features = Saving(std::exp2((weight - 60) / 2.0), kMiB);
      features.priority = static_cast<int8_t>(priority);
      order->Add(static_cast<uint32_t>(priorities.size()), features, kSecond);
      priorities.push_back(priority);
      if (priorities.size() == 64) bytes_of_64 = order->bytes();
    }
  }
  EXPECT_LT(order->bytes() - bytes_of_64, 350 * priorities.size());
  // Nobody is lost, and priorities still count.
  int last = -8;
  for (size_t i = 0; i < priorities.size(); ++i) {
    const uint32_t victim = order->Victim(uint16_t{0});
    ASSERT_NE(victim, kNoVictim);
    EXPECT_GE(priorities[victim], last);
    last = priorities[victim];
    order->Remove(victim);
  }
  EXPECT_EQ(order->Victim(uint16_t{0}), kNoVictim);
}

TEST(LearnedOrderTest, VictimsAreAlwaysUnheldLeavesOfTheirTenant) {
  struct Block {
    uint16_t tenant = 0;
    int8_t priority = 0;
    bool leaf = true;
    uint32_t holds = 0;
  };
  constexpr uint32_t kRefs = 600;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SeededRandom random(seed);
    const auto order = MakeOrder(kRefs);
    std::map<uint32_t, Block> model;
    int64_t now = 0;
    for (int step = 0; step < 40'000; ++step) {
      const auto ref = static_cast<uint32_t>(random.Below(kRefs));
      const auto found = model.find(ref);
      now += static_cast<int64_t>(random.Below(3)) * kSecond / 4;
      if (found == model.end()) {
        const Block block = {.tenant = static_cast<uint16_t>(random.Below(4)),
                             .priority = static_cast<int8_t>(random.Below(3))};
        order->Add(ref, Of(block.tenant, NameOf(random.Below(2 * kRefs)), block.priority), now);
        model[ref] = block;
        continue;
      }
      Block& block = found->second;
      switch (random.Below(7)) {
        case 0:
          block.priority = static_cast<int8_t>(random.Below(3));
          order->Touch(ref, Of(block.tenant, 0, block.priority), now);
          break;
        case 1:
          block.leaf = !block.leaf;
          order->SetLeaf(ref, block.leaf);
          break;
        case 2:
          order->Hold(ref);
          ++block.holds;
          break;
        case 3:
          if (block.holds > 0) {
            order->Unhold(ref);
            --block.holds;
          }
          break;
        case 4:
          order->Remove(ref);
          model.erase(found);
          break;
        case 5: {
          const uint64_t first = random.Below(2 * kRefs);
          const AskedChain chain = {.blocks = static_cast<uint32_t>(random.Below(9)),
                                    .full_blocks = 8,
                                    .name = [&](uint32_t i) { return NameOf(first + i); }};
          AskProgress progress;
          while (order->Ask(chain, &progress, 2, now)) {
          }
          break;
        }
        default: {
          const uint32_t evicted = order->Victim(uint16_t{1});
          if (evicted == kNoVictim) break;
          order->Remove(evicted);
          model.erase(evicted);
        }
      }
      if (step % 20 != 0) continue;
      ASSERT_EQ(order->size(), model.size());
      for (uint16_t tenant = 0; tenant < 4; ++tenant) {
        const bool any = std::any_of(model.begin(), model.end(), [&](const auto& item) {
          return item.second.tenant == tenant && item.second.leaf && item.second.holds == 0;
        });
        const uint32_t victim = order->Victim(tenant);
        ASSERT_EQ(victim != kNoVictim, any);
        if (!any) continue;
        ASSERT_EQ(model[victim].tenant, tenant);
        ASSERT_TRUE(model[victim].leaf && model[victim].holds == 0);
      }
    }
  }
}

}  // namespace
}  // namespace aquifer
