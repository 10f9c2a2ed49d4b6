// Where not all can be written to NVMe, what is likely to return is; and what was set aside is
// written where somebody wants it.
#include "cache/transfer/set_aside.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

// Conversations that come back every minute, and between them prompts that never do: one of eight
// blocks each second.
class SetAsideTest : public CoreFixture {
 protected:
  static constexpr uint64_t kOnceBlocks = 8;
  static constexpr uint64_t kStoredBytesPerSecond = kOnceBlocks * kBlockBytes;

  static CoreOptions Choosing(uint64_t bytes_per_second, double part) {
    CoreOptions options = SmallCache(512);
    options.cache.nvme_bytes = uint64_t{512} << 20;
    options.cache.write_bytes_per_second = bytes_per_second;
    options.cache.nvme_written_part = part;
    return options;
  }

  Chain Once(uint64_t second) const {
    return Chain(layout_, {.seed = 1'000'000 + second, .blocks = kOnceBlocks});
  }
  Chain Returning(uint64_t number) const { return Chain(layout_, {.seed = number, .blocks = 3}); }

  // Returns how many had to be stored.
  size_t Ask(const Chain& chain) {
    MatchRequest match;
    match.chain = Slice(chain);
    client_->Do(&Core::Match, &match);
    Recall(chain);
    return Store(chain);
  }

  void RunFor(uint64_t seconds) {
    zeros_ = true;
    const uint64_t end = second_ + seconds;
    for (; second_ < end; ++second_) {
      Ask(Once(second_));
      if (second_ % 4 == 0) Ask(Returning(second_ / 4 % 15));
      world_->Advance(1'000'000'000);
    }
  }

  // After a restart: how many blocks of the chain are there. They are the first ones.
  size_t OnNvme(const Chain& chain) {
    std::vector<Code> codes;
    const size_t served = Recall(chain, &codes);
    for (size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(codes[i] == Code::kOk, i < served) << i;
    return served;
  }

  uint64_t second_ = 0;
};

TEST_F(SetAsideTest, ABudgetThatIsTooSmallWritesWhatIsLikelyToReturn) {
  for (const uint64_t less : {2, 8}) {
    SCOPED_TRACE(less);
    const uint64_t budget = kStoredBytesPerSecond / less;
    Make(Choosing(budget, 1));
    second_ = 0;
    RunFor(1500);
    const uint64_t before = Counter("write_down_bytes");
    RunFor(300);
    const uint64_t written = Counter("write_down_bytes");
    EXPECT_LE(written, budget * (second_ + 1));
    EXPECT_GE(written - before, 280 * budget);  // It is used, too.
    EXPECT_GT(Counter("write_down_set_aside"), 1000u);
    EXPECT_GT(Counter("write_down_admitted"), 100u);
    Restart();
    size_t once = 0;
    for (uint64_t second = second_ - 300; second < second_; ++second) once += OnNvme(Once(second));
    EXPECT_LE(once, 300 * kOnceBlocks / less + 100);
    for (uint64_t number = 0; number < 15; ++number) EXPECT_EQ(OnNvme(Returning(number)), 3u);
  }
}

TEST_F(SetAsideTest, AFlushWritesWhatWasSetAsideAllTheSame) {
  Make(Choosing(kStoredBytesPerSecond / 8, 1));
  RunFor(1500);
  EXPECT_GT(Counter("write_down_aside"), 100u);
  EXPECT_GT(Counter("blocks_only_in_dram"), 100u);
  EXPECT_EQ(Flush().code(), Code::kNoSpace);  // Some were evicted unwritten before.
  EXPECT_EQ(Counter("write_down_aside"), 0u);
  EXPECT_EQ(Counter("blocks_only_in_dram"), 0u);
  RunFor(20);
  EXPECT_TRUE(Flush().ok());
  Restart();
  for (uint64_t second = second_ - 20; second < second_; ++second) {
    EXPECT_EQ(OnNvme(Once(second)), kOnceBlocks);
  }
}

TEST_F(SetAsideTest, ADrainWritesThemToo) {
  Make(Choosing(kStoredBytesPerSecond / 8, 1));
  RunFor(1200);
  EXPECT_GT(Counter("blocks_only_in_dram"), 100u);
  DrainRequest drain;
  drain.timeout_nanos = 100 * kDefaultTimeoutNanos;
  client_->Do(&Core::Drain, &drain);
  EXPECT_EQ(drain.left, 0u);
  EXPECT_EQ(Counter("write_down_aside"), 0u);
}

TEST_F(SetAsideTest, APinHasTheBlocksWritten) {
  Make(Choosing(kStoredBytesPerSecond / 8, 1));
  RunFor(1500);
  ASSERT_GT(Counter("write_down_aside"), 100u);
  PinRequest pin;
  const Chain chain = Once(second_ - 1);
  pin.chain = Slice(chain);
  pin.chain.keys = pin.chain.keys.last(1);  // What it goes on from is written with it.
  pin.seconds = 600;
  client_->Do(&Core::Pin, &pin);
  ASSERT_EQ(pin.pinned, 1u);
  const Chain other = Once(second_ - 2);
  world_->Advance(60'000'000'000);
  ASSERT_EQ(Counter("write_down_waiting"), 0u);
  Restart();
  EXPECT_EQ(OnNvme(chain), kOnceBlocks);
  EXPECT_EQ(OnNvme(other), 0u);
}

TEST_F(SetAsideTest, ThePartThatIsToBeWrittenIs) {
  Make(Choosing(0, 0.3));
  RunFor(1000);
  const uint64_t before = Counter("write_down_blocks");
  const uint64_t admitted = Counter("write_down_admitted");
  RunFor(500);
  // Three tenths of what is stored, more or less.
  EXPECT_GE(Counter("write_down_blocks") - before, 500 * kOnceBlocks * 2 / 10);
  EXPECT_LE(Counter("write_down_blocks") - before, 500 * kOnceBlocks * 4 / 10);
  EXPECT_GT(Counter("write_down_admitted"), admitted);
  Restart();
  for (uint64_t number = 0; number < 15; ++number) EXPECT_EQ(OnNvme(Returning(number)), 3u);
}

TEST_F(SetAsideTest, WithoutALimitEverythingIsWritten) {
  Make(Choosing(0, 1));
  RunFor(300);
  EXPECT_EQ(Counter("write_down_aside"), 0u);
  EXPECT_EQ(Counter("write_down_set_aside"), 0u);
  Restart();
  for (uint64_t second = 0; second < second_; ++second) {
    EXPECT_EQ(OnNvme(Once(second)), kOnceBlocks);
  }
}

// It gets the ref that it had before.
TEST_F(SetAsideTest, WhatIsStoredAgainAndWrittenMayBeEvictedLikeAnyOther) {
  Make(Choosing(kStoredBytesPerSecond / 8, 1));
  RunFor(1200);
  std::vector<Chain> chains;
  for (uint64_t i = 0; i < 400 && chains.size() < 10; ++i) {
    RunFor(20);
    const Chain chain(layout_, {.seed = 5'000'000 + i, .blocks = 1});
    bool was_set_aside = false;
    for (int tries = 0; tries < 100; ++tries) {
      const uint64_t set_aside = Counter("write_down_set_aside");
      ASSERT_EQ(Ask(chain), 1u);
      if (Counter("write_down_set_aside") == set_aside) break;
      was_set_aside = true;
      Evict(chain);
      if (tries % 10 == 9) world_->Advance(1'000'000'000);
    }
    if (was_set_aside) chains.push_back(chain);
    std::ignore = Flush();
  }
  ASSERT_EQ(chains.size(), 10u);
  for (uint64_t i = 0; i < 256; ++i) {  // Four times what DRAM has room for.
    Store(Chain(layout_, {.seed = 9'000'000 + i, .blocks = 8}));
    world_->Advance(200'000'000);
    std::ignore = Flush();
  }
  size_t in_dram = 0;
  for (const Chain& chain : chains) {
    MatchRequest match;
    match.chain = Slice(chain);
    client_->Do(&Core::Match, &match);
    if (match.matched == 1 && match.runs[0].tier == TierKind::kDram) ++in_dram;
  }
  EXPECT_LE(in_dram, 3u);
}

// One that a reader found damaged, and that an engine computes again.
TEST_F(SetAsideTest, ABlockThatOthersGoOnFromIsWritten) {
  constexpr size_t kChains = 10;
  Make(Choosing(0, 0.1));
  RunFor(1500);
  std::vector<Chain> chains;
  for (uint64_t i = 0; i < kChains; ++i) {
    chains.emplace_back(layout_, ChainOptions{.seed = 7'000'000 + i, .blocks = kOnceBlocks});
    ASSERT_EQ(Ask(chains.back()), kOnceBlocks);
  }
  std::ignore = Flush();  // Which tells of what was evicted before.
  for (const Chain& chain : chains) Recall(chain);
  ASSERT_TRUE(Flush().ok());
  for (const Chain& chain : chains) {
    const auto fetch = Fetch(chain);
    std::vector<ReleaseOp> releases;
    for (size_t i = 0; i < fetch->ops.size(); ++i) {
      releases.push_back({.lease = fetch->ops[i].lease, .corrupt = i == 0});
    }
    client_->Release(releases);
    world_->Advance(1'000'000'000);
    ASSERT_EQ(Store(chain), 1u);
  }
  RunFor(300);
  Restart();
  for (const Chain& chain : chains) EXPECT_EQ(OnNvme(chain), kOnceBlocks);
}

TEST_F(SetAsideTest, WhatNvmeGaveUpIsWrittenAgainByAFlush) {
  constexpr size_t kBlocks = 150;
  CoreOptions options = SmallCache(512);
  options.cache.nvme_bytes = 8 << 20;
  options.cache.nvme_segment_bytes = 1 << 20;
  Make(options);
  const Chain hot(layout_, {.seed = 1, .blocks = kBlocks});
  ASSERT_EQ(Store(hot), kBlocks);
  ASSERT_TRUE(Flush().ok());
  const auto other = [this](uint64_t i) { return Chain(layout_, {.seed = 100 + i, .blocks = 16}); };
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_EQ(Store(other(i)), 16u);
    ASSERT_EQ(Recall(hot), kBlocks);
    world_->Advance(1'000'000'000);
  }
  ASSERT_GT(Counter("blocks_only_in_dram"), 0u);
  for (uint64_t i = 0; i < 40; ++i) Evict(other(i));
  world_->Advance(10'000'000'000);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(Counter("blocks_only_in_dram"), 0u);
  Restart();
  EXPECT_EQ(Recall(hot), kBlocks);
}

TEST_F(SetAsideTest, APartNeedsAnOrderThatKnowsWhatReturns) {
  CoreOptions options = Choosing(0, 0.5);
  options.cache.eviction = EvictionPolicy::kLru;
  EXPECT_EQ(Core::New(options, CacheEnvironment()).status().code(), Code::kInvalid);
}

}  // namespace
}  // namespace aquifer
