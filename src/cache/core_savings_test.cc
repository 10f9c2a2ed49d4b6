// What is kept follows from what it saves: what engines report of their prefills counts, and where
// a block can be had again from NVMe, how long that takes.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

class CoreSavingsTest : public CoreFixture {
 protected:
  CoreSavingsTest() : other_layout_(LayoutOfBytes(kBlockBytes)) {
    other_layout_.model[1] = std::byte{0x22};
  }

  // Both models have blocks of one size, so that they share slots.
  void MakeWith(const CoreOptions& options) {
    Make(options);
    RegisterLayoutRequest request;
    request.layout = other_layout_;
    client_->Do(&Core::RegisterLayout, &request);
    other_handle_ = request.handle;
    zeros_ = true;
  }

  void Report(LayoutHandle layout, double ms_per_token, double ms_per_pair = 0) {
    for (uint32_t tokens = 256; tokens <= 4096; tokens *= 2) {
      const double context = 2.0 * tokens;
      world_->core().ReportPrefill(
          client_->number(), {.layout = layout,
                              .tokens = tokens,
                              .context_tokens = 2 * tokens,
                              .milliseconds = ms_per_token * tokens +
                                              ms_per_pair * tokens * (context + tokens / 2.0)});
    }
  }

  Chain Own(uint64_t seed, size_t blocks) const {
    return Chain(layout_, {.seed = seed, .blocks = blocks});
  }
  size_t StoreOther(uint64_t seed, size_t blocks) {
    std::swap(handle_, other_handle_);
    const size_t stored = Store(Chain(other_layout_, {.seed = seed, .blocks = blocks}));
    std::swap(handle_, other_handle_);
    return stored;
  }
  // More than DRAM holds, each a while after the one before.
  void StoreOthers(int64_t between_nanos) {
    world_->Advance(between_nanos);
    for (uint64_t seed = 2; seed < 12; ++seed) {
      ASSERT_EQ(StoreOther(seed, 16), 16u);
      world_->Advance(between_nanos);
    }
  }
  uint64_t InDram(const Chain& chain) {
    const uint64_t before = Counter("fetch_hits_dram");
    Recall(chain);
    return Counter("fetch_hits_dram") - before;
  }

  Layout other_layout_;
  LayoutHandle other_handle_ = 0;
};

TEST_F(CoreSavingsTest, WhatIsDearToComputeStaysThoughItWasUsedLongerAgo) {
  MakeWith(SmallCache(64, false));
  Report(handle_, 1);
  Report(other_handle_, 0.01);
  ASSERT_EQ(Store(Own(1, 24)), 24u);
  ASSERT_NO_FATAL_FAILURE(StoreOthers(1'000'000'000));
  EXPECT_EQ(InDram(Own(1, 24)), 24u);
}

TEST_F(CoreSavingsTest, WhereNobodyReportsTheOldestGoes) {
  MakeWith(SmallCache(64, false));
  ASSERT_EQ(Store(Own(1, 24)), 24u);
  ASSERT_NO_FATAL_FAILURE(StoreOthers(10'000'000'000));
  EXPECT_EQ(InDram(Own(1, 24)), 0u);
}

// Of two chains of one model the one that is deep in a long context stays: each of its tokens has
// more to attend to.
TEST_F(CoreSavingsTest, WhatIsDeepInALongContextStaysLonger) {
  MakeWith(SmallCache(64, false));
  Report(handle_, 0.01, 0.01);
  ASSERT_EQ(Store(Own(1, 32)), 32u);
  world_->Advance(1'000'000'000);
  for (uint64_t seed = 2; seed < 40; ++seed) {
    ASSERT_EQ(Store(Own(seed, 2)), 2u);
    world_->Advance(1'000'000'000);
  }
  EXPECT_EQ(InDram(Own(1, 32)), 32u);
}

// All of it is a read away: what that takes is the same for each byte, whatever computing it would.
TEST_F(CoreSavingsTest, WhatNvmeHasIsNotKeptForWhatItWouldTakeToCompute) {
  MakeWith(SmallCache(64, true));
  Report(handle_, 100);
  Report(other_handle_, 1);
  ASSERT_EQ(Store(Own(1, 24)), 24u);
  ASSERT_TRUE(Flush().ok());
  world_->Advance(10'000'000'000);
  for (uint64_t seed = 2; seed < 12; ++seed) {
    ASSERT_EQ(StoreOther(seed, 16), 16u);
    ASSERT_TRUE(Flush().ok());
    world_->Advance(10'000'000'000);
  }
  EXPECT_EQ(InDram(Own(1, 24)), 0u);
}

TEST_F(CoreSavingsTest, WhoDecidesIsCounted) {
  MakeWith(SmallCache(64, false));
  EXPECT_EQ(Counter("policy_lru_decides"), 0u);
  const Chain chain = Own(1, 8);
  for (int turn = 0; turn < 2; ++turn) {
    MatchRequest match;
    match.chain = Slice(chain);
    client_->Do(&Core::Match, &match);
    Store(chain);
    world_->Advance(10'000'000'000);
  }
  EXPECT_EQ(Counter("policy_asked"), 16u);
  EXPECT_EQ(Counter("policy_hits"), 8u);
  EXPECT_EQ(Counter("policy_lru_hits"), 8u);
  EXPECT_EQ(Counter("policy_weighed_hits"), 8u);
  EXPECT_EQ(Counter("policy_takeovers"), 0u);
  CoreOptions lru = SmallCache(64, false);
  lru.cache.eviction = EvictionPolicy::kLru;
  MakeWith(lru);
  EXPECT_EQ(Counter("policy_lru_decides"), 1u);
}

}  // namespace
}  // namespace aquifer
