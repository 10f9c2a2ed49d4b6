// What Flush() and Evict() may promise while blocks are on their way to NVMe: losses are told, and
// one tenant's or one drive's trouble is not another's.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "testing/core_fixture.h"

namespace aquifer {
namespace {

class WriteDownTest : public CoreFixture {
 protected:
  static CoreOptions TwoDrives() {
    CoreOptions options = SmallCache(128);
    options.cache.nvme_directories = {"one", "two"};
    options.cache.nvme_bytes = 128 << 20;
    return options;
  }

  Status FlushAs(ManualClient* client) {
    FlushRequest flush;
    flush.timeout_nanos = 9 * kDefaultTimeoutNanos;
    client->Do(&Core::Flush, &flush);
    return flush.status;
  }

  // Stores it, with a bit of block `bad` flipped in memory after the engine summed it up.
  void StoreDamaged(const Chain& chain, size_t bad) {
    const auto reserve = Reserve(chain, client_.get());
    CommitRequest commit;
    for (size_t i = 0; i < reserve->ops.size(); ++i) {
      FillPayload(chain[i], 0, reserve->ops[i].slot);
      CommitOp op;
      op.reservation = reserve->ops[i].reservation;
      op.sums = SumLanes(reserve->ops[i].slot, 0);
      commit.ops.push_back(std::move(op));
    }
    reserve->ops[bad].slot[100] ^= std::byte{4};
    client_->Do(&Core::Commit, &commit);
    for (const CommitOp& op : commit.ops) ASSERT_TRUE(op.published);
  }
};

TEST_F(WriteDownTest, FlushTellsOfABlockThatWasDamagedBeforeItWasWritten) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 3});
  StoreDamaged(chain, 1);
  EXPECT_EQ(Flush().code(), Code::kNoSpace);
  EXPECT_TRUE(Flush().ok());  // Told once.
  Restart();
  EXPECT_EQ(Recall(chain), 2u);
}

TEST_F(WriteDownTest, FlushTellsOfABlockThatAReaderFoundDamaged) {
  Make(SmallCache());
  world_->disk(kDrive).Hang(true);  // It is read before it is written.
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  ASSERT_EQ(Store(chain), 1u);
  const auto fetch = Fetch(chain);
  ASSERT_TRUE(fetch->ops[0].status.ok());
  client_->Release(std::vector<ReleaseOp>{{.lease = fetch->ops[0].lease, .corrupt = true}});
  world_->disk(kDrive).Hang(false);
  EXPECT_EQ(Flush().code(), Code::kNoSpace);
}

TEST_F(WriteDownTest, WhenOneOfTwoDrivesHangsOthersCanFlushAndEvict) {
  Make(TwoDrives());
  ASSERT_EQ(Store(Chain(layout_, {.seed = 9, .blocks = 16})), 16u);
  ASSERT_TRUE(Flush().ok());  // Both are being written to.
  world_->disk("two").Hang(true);
  ASSERT_EQ(Store(Chain(layout_, {.seed = 1, .blocks = 24})), 24u);
  world_->Advance(20'000'000'000);  // The drive is out of service by now.
  const auto other = AttachAs("other");
  const Chain chain(layout_, {.seed = 2, .blocks = 4, .tenant = "other"});
  ASSERT_EQ(Store(chain, other.get()), 4u);
  EXPECT_TRUE(FlushAs(other.get()).ok());
  EvictRequest evict;
  evict.chain = Slice(chain);
  other->Do(&Core::Evict, &evict);
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  // Whose writes the drive holds on to must wait: they may still reach it.
  EXPECT_EQ(Evict(Chain(layout_, {.seed = 1, .blocks = 24}))->status.code(), Code::kUnavailable);
  world_->disk("two").Hang(false);
  world_->Advance(5'000'000'000);
}

class HungWriteTest : public WriteDownTest {
 protected:
  // "two" hangs in the writes of some of the chain's blocks, and has been given up.
  void HangInWritesOf(const Chain& chain) {
    Make(TwoDrives());
    ASSERT_EQ(Store(Chain(layout_, {.seed = 9, .blocks = 16})), 16u);
    ASSERT_TRUE(Flush().ok());  // Both are being written to.
    world_->disk("two").Hang(true);
    ASSERT_EQ(Store(chain), chain.size());
    world_->Run();
    ASSERT_GT(world_->disk("two").requests_pending(), 0u);
    world_->Advance(20'000'000'000);
  }

  const Chain chain_{layout_, {.seed = 1, .blocks = 24}};
};

TEST_F(HungWriteTest, TheBlocksAreWrittenToAnotherDrive) {
  ASSERT_NO_FATAL_FAILURE(HangInWritesOf(chain_));
  EXPECT_TRUE(FlushAs(client_.get()).ok());
  world_->FailOpeningOf("two", true);
  Restart();
  EXPECT_EQ(Recall(chain_), chain_.size()) << "flushed, and not on the drive that hung";
}

TEST_F(HungWriteTest, TheyAreThereOnceAndCanBeDeletedWhenTheDriveLetsGo) {
  ASSERT_NO_FATAL_FAILURE(HangInWritesOf(chain_));
  ASSERT_TRUE(FlushAs(client_.get()).ok());
  EvictRequest evict;
  evict.chain = Slice(chain_);
  evict.chain.keys = evict.chain.keys.last(1);
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.status.code(), Code::kUnavailable) << "the drive may still write it";
  world_->disk("two").Hang(false);
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Counter("nvme_live_blocks"), 16u + chain_.size() - 1);
  Restart();
  EXPECT_EQ(Recall(chain_), chain_.size() - 1);
  EXPECT_TRUE(Evict(chain_)->status.ok());
  Restart();
  EXPECT_EQ(Recall(chain_), 0u);
}

// Whatever the drive has written in the end, and also when the process dies while it hangs.
TEST_F(HungWriteTest, WhatIsNewerCounts) {
  for (const bool lets_go : {false, true}) {
    SCOPED_TRACE(lets_go);
    ASSERT_NO_FATAL_FAILURE(HangInWritesOf(chain_));
    Hint(chain_, 1000);
    ASSERT_TRUE(FlushAs(client_.get()).ok());
    if (lets_go) {
      world_->disk("two").Hang(false);
      world_->Advance(5'000'000'000);
      // Now both drives know which of their records are dead.
      EXPECT_TRUE(Evict(Chain(layout_, {.seed = 9, .blocks = 16}))->status.ok());
    }
    Restart();
    EXPECT_EQ(Recall(chain_), chain_.size());
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1001);
    EXPECT_EQ(Recall(chain_), 0u);
    Restart();
    EXPECT_EQ(Recall(chain_), 0u);
  }
}

TEST_F(WriteDownTest, ATenantsDeletionHoldsUpNobodyElsesFlush) {
  Make(TwoDrives());
  world_->FailOpeningOf("two", true);
  Restart();
  const Chain again(layout_, {.seed = 1, .blocks = 1});
  ASSERT_EQ(Store(again), 1u);
  EXPECT_EQ(Evict(again)->status.code(), Code::kUnavailable);
  ASSERT_EQ(Store(again), 1u);  // Stays in DRAM alone until the drive has been read.
  const auto other = AttachAs("other");
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 4, .tenant = "other"}), other.get()), 4u);
  EXPECT_TRUE(FlushAs(other.get()).ok());
  EXPECT_EQ(FlushAs(client_.get()).code(), Code::kLate);
}

TEST_F(WriteDownTest, TheBudgetIsACapAndAFlushLiftsItForItsOwnTenantAlone) {
  CoreOptions options = SmallCache();
  options.cache.write_bytes_per_second = 4 * kBlockBytes;
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 24});
  ASSERT_EQ(Store(chain), 24u);
  world_->Run();
  EXPECT_EQ(Counter("write_down_blocks"), 4u);
  world_->Advance(2'000'000'000);
  EXPECT_GE(Counter("write_down_blocks"), 11u);
  EXPECT_LE(Counter("write_down_blocks"), 12u);

  const auto other = AttachAs("other");
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 3, .tenant = "other"}), other.get()), 3u);
  EXPECT_TRUE(FlushAs(other.get()).ok());
  EXPECT_GE(Counter("write_down_blocks"), 14u);
  EXPECT_LE(Counter("write_down_blocks"), 16u);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(Counter("write_down_blocks"), 27u);
}

TEST_F(WriteDownTest, WhatTheDriveRewritesToMakeRoomIsPartOfTheBudget) {
  constexpr uint64_t kRate = 1 << 20;
  CoreOptions options = SmallCache(128);
  options.cache.nvme_bytes = 8 << 20;
  options.cache.nvme_segment_bytes = 1 << 20;
  options.cache.write_bytes_per_second = kRate;
  Make(options);
  const int64_t begin = world_->clock().NowNanos();
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    ASSERT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 64})), 64u);
    ASSERT_TRUE(world_->RunUntil([&] { return Counter("write_down_waiting") == 0; }));
  }
  const double seconds = static_cast<double>(world_->clock().NowNanos() - begin) / 1e9;
  const uint64_t moved = Counter("nvme_reclaim_moved_bytes");
  EXPECT_GT(moved, 2u << 20);
  const auto allowed = static_cast<uint64_t>((seconds + 1) * kRate) + (1 << 20) / 2;
  EXPECT_LE(Counter("write_down_bytes") + moved, allowed);
}

// --- Where not all can be written

// Conversations that come back every minute, and between them prompts that never do: one of eight
// blocks each second.
class ChosenWritesTest : public WriteDownTest {
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

  void Ask(const Chain& chain) {
    MatchRequest match;
    match.chain = Slice(chain);
    client_->Do(&Core::Match, &match);
    Recall(chain);
    Store(chain);
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

TEST_F(ChosenWritesTest, ABudgetThatIsTooSmallWritesWhatIsLikelyToReturn) {
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

TEST_F(ChosenWritesTest, AFlushWritesWhatWasSetAsideAllTheSame) {
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

TEST_F(ChosenWritesTest, ADrainWritesThemToo) {
  Make(Choosing(kStoredBytesPerSecond / 8, 1));
  RunFor(1200);
  EXPECT_GT(Counter("blocks_only_in_dram"), 100u);
  DrainRequest drain;
  drain.timeout_nanos = 100 * kDefaultTimeoutNanos;
  client_->Do(&Core::Drain, &drain);
  EXPECT_EQ(drain.left, 0u);
  EXPECT_EQ(Counter("write_down_aside"), 0u);
}

TEST_F(ChosenWritesTest, APinHasTheBlocksWritten) {
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

TEST_F(ChosenWritesTest, ThePartThatIsToBeWrittenIs) {
  Make(Choosing(0, 0.3));
  RunFor(1000);
  const uint64_t before = Counter("write_down_blocks");
  const uint64_t admitted = Counter("write_down_admitted");
  RunFor(500);
  EXPECT_LE(Counter("write_down_blocks") - before, 500 * kOnceBlocks * 4 / 10);
  EXPECT_GT(Counter("write_down_admitted"), admitted);
  Restart();
  for (uint64_t number = 0; number < 15; ++number) EXPECT_EQ(OnNvme(Returning(number)), 3u);
}

TEST_F(ChosenWritesTest, WithoutALimitEverythingIsWritten) {
  Make(Choosing(0, 1));
  RunFor(300);
  EXPECT_EQ(Counter("write_down_aside"), 0u);
  EXPECT_EQ(Counter("write_down_set_aside"), 0u);
  Restart();
  for (uint64_t second = 0; second < second_; ++second) {
    EXPECT_EQ(OnNvme(Once(second)), kOnceBlocks);
  }
}

TEST_F(ChosenWritesTest, APartNeedsAnOrderThatKnowsWhatReturns) {
  CoreOptions options = Choosing(0, 0.5);
  options.cache.eviction = EvictionPolicy::kLru;
  CacheEnvironment environment;
  const auto core = Core::New(options, environment);
  EXPECT_EQ(core.status().code(), Code::kInvalid);
  for (const double part : {0.0, -1.0, 1.5}) {
    options.cache.eviction = EvictionPolicy::kLearned;
    options.cache.nvme_written_part = part;
    EXPECT_EQ(Core::New(options, environment).status().code(), Code::kInvalid) << part;
  }
}

}  // namespace
}  // namespace aquifer
