#include "policy/eviction/leaf_recency.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::unique_ptr<EvictionOrder> MakeOrder(uint32_t max_blocks = 1000) {
  auto order = NewLeafRecency({.max_blocks = max_blocks, .priority_step_nanos = 10 * kSecond});
  EXPECT_TRUE(order.ok());
  return *std::move(order);
}

BlockFeatures Of(uint16_t tenant, int8_t priority = 0, SessionHint session = SessionHint::kNone) {
  BlockFeatures features;
  features.tenant = tenant;
  features.priority = priority;
  features.session = session;
  return features;
}

TEST(LeafRecencyTest, RefusesOptionsThatMakeNoSense) {
  EXPECT_EQ(NewLeafRecency({.max_blocks = 0}).status().code(), Code::kInvalid);
  EXPECT_EQ(NewLeafRecency({.max_blocks = 1, .priority_step_nanos = -1}).status().code(),
            Code::kInvalid);
  EXPECT_EQ(NewLeafRecency({.max_blocks = 1, .priority_step_nanos = INT64_MAX}).status().code(),
            Code::kInvalid);
}

TEST(LeafRecencyTest, AnEmptyOrderHasNoVictim) {
  const auto order = MakeOrder();
  EXPECT_EQ(order->Victim(0), kNoVictim);
  EXPECT_EQ(order->Victim([](uint16_t) { return true; }), kNoVictim);
  EXPECT_FALSE(order->Contains(5));
}

TEST(LeafRecencyTest, TheLeastRecentlyUsedGoesFirst) {
  const auto order = MakeOrder();
  order->Add(1, Of(0), 10);
  order->Add(2, Of(0), 20);
  order->Add(3, Of(0), 30);
  EXPECT_EQ(order->Victim(0), 1u);
  order->Touch(1, Of(0), 40);
  EXPECT_EQ(order->Victim(0), 2u);
  order->Remove(2);
  EXPECT_EQ(order->Victim(0), 3u);
  EXPECT_GT(order->Value(1), order->Value(3));
}

TEST(LeafRecencyTest, OfWhatWasTouchedAtOnceTheFirstTouchedGoesFirst) {
  const auto order = MakeOrder();
  for (uint32_t ref : {9, 4, 7}) order->Add(ref, Of(0), 10);
  EXPECT_EQ(order->Victim(0), 9u);
  order->Touch(9, Of(0), 10);
  EXPECT_EQ(order->Victim(0), 4u);
}

TEST(LeafRecencyTest, InnerBlocksBecomeVictimsWhenTheyBecomeLeaves) {
  const auto order = MakeOrder();
  order->Add(1, Of(0), 10);
  order->SetLeaf(1, false);
  order->Add(2, Of(0), 20);
  EXPECT_EQ(order->Victim(0), 2u);
  order->Remove(2);
  EXPECT_EQ(order->Victim(0), kNoVictim);
  order->SetLeaf(1, true);
  EXPECT_EQ(order->Victim(0), 1u);
}

TEST(LeafRecencyTest, HeldBlocksAreNoVictimsUntilTheLastHoldEnds) {
  const auto order = MakeOrder();
  order->Add(1, Of(0), 10);
  order->Hold(1);
  order->Hold(1);
  EXPECT_EQ(order->Victim(0), kNoVictim);
  order->Unhold(1);
  EXPECT_EQ(order->Victim(0), kNoVictim);
  order->Touch(1, Of(0), 50);
  order->Add(2, Of(0), 40);
  order->Unhold(1);
  EXPECT_EQ(order->Victim(0), 2u);
  order->Hold(1);
  order->Remove(1);
  EXPECT_FALSE(order->Contains(1));
  order->Add(1, Of(0), 5);  // As good as new: neither held nor inner.
  EXPECT_EQ(order->Victim(0), 1u);
}

TEST(LeafRecencyTest, TenantsAreOrderedApartAndTogether) {
  const auto order = MakeOrder();
  order->Add(1, Of(3), 10);
  order->Add(2, Of(7), 5);
  order->Add(3, Of(7), 20);
  EXPECT_EQ(order->Victim(3), 1u);
  EXPECT_EQ(order->Victim(7), 2u);
  EXPECT_EQ(order->Victim(5), kNoVictim);
  EXPECT_EQ(order->Victim(60'000), kNoVictim);
  EXPECT_EQ(order->Victim([](uint16_t) { return true; }), 2u);
  EXPECT_EQ(order->Victim([](uint16_t tenant) { return tenant != 7; }), 1u);
  EXPECT_EQ(order->Victim([](uint16_t) { return false; }), kNoVictim);
}

TEST(LeafRecencyTest, APriorityIsWorthTimeSinceTheLastUse) {
  const auto order = MakeOrder();
  order->Add(1, Of(0, 0), 100 * kSecond);
  order->Add(2, Of(0, -1), 109 * kSecond);
  EXPECT_EQ(order->Victim(0), 2u);
  order->Touch(2, Of(0, -1), 111 * kSecond);
  EXPECT_EQ(order->Victim(0), 1u);
  order->Touch(1, Of(0, 127), 100 * kSecond);  // Eight steps at most.
  EXPECT_EQ(order->Value(1), 180.0 * kSecond);
}

TEST(LeafRecencyTest, WhatEndedGoesFirstAndAmongItselfByRecency) {
  const auto order = MakeOrder();
  order->Add(1, Of(0), 10);
  order->Add(2, Of(0, 8, SessionHint::kEnded), 1000 * kSecond);
  order->Add(3, Of(0, 8, SessionHint::kEnded), 999 * kSecond);
  EXPECT_EQ(order->Victim(0), 3u);
  order->Remove(3);
  EXPECT_EQ(order->Victim(0), 2u);
}

TEST(LeafRecencyTest, ABlockTakesAtMost40Bytes) {
  const uint32_t count = 100'000;
  const auto order = MakeOrder(count);
  for (uint32_t ref = 0; ref < count; ++ref) order->Add(ref, Of(0), ref);
  EXPECT_EQ(order->size(), count);
  EXPECT_LE(order->bytes(), 40u * count + 16'384);
  for (uint32_t ref = 0; ref < count; ++ref) order->Hold(ref);
  EXPECT_LE(order->bytes(), 24u * count + 16'384);
}

TEST(LeafRecencyTest, BehavesLikeASearchThroughEverything) {
  struct Block {
    uint16_t tenant = 0;
    int64_t stamp = 0;
    uint64_t sequence = 0;
    bool leaf = true;
    uint32_t holds = 0;
  };
  constexpr uint32_t kRefs = 1500;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SeededRandom random(seed);
    const auto order = MakeOrder(kRefs);
    std::map<uint32_t, Block> model;
    uint64_t sequence = 0;
    int64_t now = 0;
    const auto victim = [&](auto accepts) {
      std::optional<std::pair<std::pair<int64_t, uint64_t>, uint32_t>> least;
      for (const auto& [ref, block] : model) {
        if (!block.leaf || block.holds > 0 || !accepts(block.tenant)) continue;
        const auto rank = std::pair(std::pair(block.stamp, block.sequence), ref);
        if (!least.has_value() || rank < *least) least = rank;
      }
      return least.has_value() ? least->second : kNoVictim;
    };
    for (int step = 0; step < 60'000; ++step) {
      const auto ref = static_cast<uint32_t>(random.Below(kRefs));
      const auto priority = static_cast<int8_t>(random.Below(3));
      const auto found = model.find(ref);
      now += static_cast<int64_t>(random.Below(2)) * kSecond;
      const int64_t stamp = now + priority * 10 * kSecond;
      if (found == model.end()) {
        const auto tenant = static_cast<uint16_t>(random.Below(4));
        order->Add(ref, Of(tenant, priority), now);
        model[ref] = {.tenant = tenant, .stamp = stamp, .sequence = ++sequence};
        continue;
      }
      Block& block = found->second;
      switch (random.Below(6)) {
        case 0:
          order->Touch(ref, Of(block.tenant, priority), now);
          block.stamp = stamp;
          block.sequence = ++sequence;
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
        default: {
          const uint32_t evicted = order->Victim(1);
          if (evicted == kNoVictim) break;
          order->Remove(evicted);
          model.erase(evicted);
        }
      }
      if (step % 20 != 0) continue;
      ASSERT_EQ(order->Victim(2), victim([](uint16_t tenant) { return tenant == 2; }));
      const auto odd = [](uint16_t tenant) { return tenant % 2 == 1; };
      ASSERT_EQ(order->Victim(odd), victim(odd));
      ASSERT_EQ(order->size(), model.size());
    }
  }
}

}  // namespace
}  // namespace aquifer
