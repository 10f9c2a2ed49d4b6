// What Flush() and Evict() may promise while blocks are on their way to NVMe: losses are told, and
// one tenant's or one drive's trouble is not another's.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "testing/cache/core_fixture.h"

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

// Their records there cannot be replaced, however often that is tried.
TEST_F(WriteDownTest, TimesToLiveOfWhatADriveOutOfServiceHasHoldNobodyElseUp) {
  Make(TwoDrives());
  const Chain chain(layout_, {.seed = 9, .blocks = 64});
  ASSERT_EQ(Store(chain), 64u);
  ASSERT_TRUE(Flush().ok());  // Both are being written to.
  world_->disk("two").Hang(true);
  ASSERT_EQ(Store(Chain(layout_, {.seed = 1, .blocks = 24})), 24u);
  world_->Advance(20'000'000'000);  // The drive is out of service by now.
  const auto other = AttachAs("other");
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 4, .tenant = "other"}), other.get()), 4u);
  Hint(chain, 3600);
  world_->Run();
  EXPECT_GT(Counter("write_down_waiting"), 0u);
  ASSERT_EQ(Store(Chain(layout_, {.seed = 3, .blocks = 4, .tenant = "other"}), other.get()), 4u);
  FlushRequest flush;
  other->Submit(&Core::Flush, &flush);
  world_->Run();
  EXPECT_TRUE(flush.done()) << "it waits, if for a moment";
  EXPECT_TRUE(flush.status.ok()) << flush.status.ToString();
  world_->disk("two").Hang(false);
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Counter("write_down_waiting"), 0u);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 3601);
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
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

}  // namespace
}  // namespace aquifer
