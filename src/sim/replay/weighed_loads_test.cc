// Two models on one node: one with small blocks that take long to compute, one with large blocks
// that do not. Contexts are long, and their tails take longer than their heads. The measure is the
// time saved in a tier of so many bytes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "policy/eviction/leaf_recency.h"
#include "policy/eviction/learned_order.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr uint32_t kMaxBlocks = 1 << 20;
constexpr uint32_t kNone = UINT32_MAX;
constexpr uint64_t kCapacityBytes = uint64_t{6} << 30;

constexpr std::array<ChainSaving, 2> kModels = {
    {{.block_bytes = 64 << 10, .first_ms = 4, .deeper_ms = 0.05},
     {.block_bytes = 8 << 20, .first_ms = 30, .deeper_ms = 0.4}}};

struct Talk {
  size_t model = 0;
  std::vector<uint32_t> blocks;  // Refs, used once.
};

// A tier of so many bytes, which gets requests as from a cache.
class WeighedTier {
 public:
  // With `told`, the order learns how much time blocks save.
  WeighedTier(std::unique_ptr<EvictionOrder> order, bool told)
      : order_(std::move(order)), told_(told) {}

  void Ask(const Talk& talk, int64_t now) {
    const ChainSaving& model = kModels[talk.model];
    ChainSaving saving = model;
    if (!told_) saving.first_ms = saving.deeper_ms = 0;
    uint32_t hits = 0;
    while (hits < talk.blocks.size() && order_->Contains(talk.blocks[hits])) ++hits;
    saved_ms_ += model.Of(hits);
    const auto count = static_cast<uint32_t>(talk.blocks.size());
    const AskedChain chain = {.blocks = count,
                              .full_blocks = count,
                              .input_tokens = uint64_t{256} * count,
                              .saving = saving,
                              .name = [&](uint32_t i) { return NameOf(talk.blocks[i]); }};
    AskProgress progress;
    while (order_->Ask(chain, &progress, 256, now)) {
    }
    for (uint32_t i = count; i-- > 0;) Use(talk, i, saving, now);
    while (used_bytes_ > kCapacityBytes) EvictOne();
  }

  double saved_ms() const { return saved_ms_; }

 private:
  struct Block {
    uint32_t parent = kNone;
    uint32_t children = 0;
    uint64_t bytes = 0;
  };

  static uint64_t NameOf(uint32_t block) {
    const uint64_t z = (uint64_t{block} + 1) * 0x9E3779B97F4A7C15u;
    return (z ^ (z >> 29)) | 1;
  }

  void Use(const Talk& talk, uint32_t i, const ChainSaving& saving, int64_t now) {
    const uint32_t ref = talk.blocks[i];
    BlockFeatures features;
    features.name = NameOf(ref);
    features.position = i;
    features.bytes = saving.block_bytes;
    features.saved_ms = saving.At(i);
    if (order_->Contains(ref)) return order_->Touch(ref, features, now);
    order_->Add(ref, features, now);
    Block& block = blocks_[ref];
    block.parent = i == 0 ? kNone : talk.blocks[i - 1];
    block.bytes = saving.block_bytes;
    order_->SetLeaf(ref, block.children == 0);
    used_bytes_ += block.bytes;
    if (i == 0) return;
    if (++blocks_[block.parent].children == 1 && order_->Contains(block.parent)) {
      order_->SetLeaf(block.parent, false);
    }
  }

  void EvictOne() {
    const uint32_t victim = order_->Victim([](uint16_t) { return true; });
    ASSERT_NE(victim, kNoVictim);
    const Block block = blocks_[victim];
    ASSERT_EQ(block.children, 0u);  // Only whole prefixes stay.
    order_->Remove(victim);
    used_bytes_ -= block.bytes;
    if (block.parent == kNone || --blocks_[block.parent].children > 0) return;
    order_->SetLeaf(block.parent, true);
  }

  const std::unique_ptr<EvictionOrder> order_;
  const bool told_;
  std::unordered_map<uint32_t, Block> blocks_;
  uint64_t used_bytes_ = 0;
  double saved_ms_ = 0;
};

// Conversations of both models, some of which go on after a while.
void AskAll(uint64_t seed, WeighedTier* tier) {
  SeededRandom random(seed);
  std::vector<Talk> talks;
  uint32_t fresh = 0;
  int64_t now = 0;
  for (int request = 0; request < 8'000; ++request) {
    now += static_cast<int64_t>(random.Below(400)) * kSecond / 100;
    const bool begins = talks.size() < 20 || random.Below(3) == 0;
    if (begins) talks.push_back({.model = random.Below(2), .blocks = {}});
    const size_t back = begins ? 0 : random.Below(std::min<size_t>(talks.size(), 400));
    Talk& talk = talks[talks.size() - 1 - back];
    for (uint64_t more = 1 + random.Below(begins ? 24 : 4); more > 0; --more) {
      talk.blocks.push_back(fresh++);
    }
    tier->Ask(talk, now);
  }
}

double SavedMs(uint64_t seed, bool lru, bool told) {
  auto order = lru ? NewLeafRecency({.max_blocks = kMaxBlocks})
                   : NewLearnedOrder({.max_blocks = kMaxBlocks});
  EXPECT_TRUE(order.ok());
  WeighedTier tier(*std::move(order), told);
  AskAll(seed, &tier);
  return tier.saved_ms();
}

TEST(WeighedLoads, SaveMoreTimeThanWithLruAndThanWhenNothingIsKnownOfIt) {
  for (uint64_t seed = 1; seed <= ByTestLevel<uint64_t>(1, 2, 20); ++seed) {
    const double lru = SavedMs(seed, true, false);
    const double unweighed = SavedMs(seed, false, false);
    const double weighed = SavedMs(seed, false, true);
    RecordProperty("lru_ms", static_cast<int>(lru));
    RecordProperty("unweighed_ms", static_cast<int>(unweighed));
    RecordProperty("weighed_ms", static_cast<int>(weighed));
    EXPECT_GT(weighed, 1.1 * lru) << seed;
    EXPECT_GT(weighed, 1.1 * unweighed) << seed;
  }
}

}  // namespace
}  // namespace aquifer
