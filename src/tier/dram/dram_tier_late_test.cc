// Copies that are given up, cancelled or late, and what their slots go through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "testing/memory_extents.h"
#include "testing/seeded_random.h"
#include "tier/dram/dram_tier.h"
#include "tier/dram/dram_tier_fixture.h"

namespace aquifer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using DramTierLateTest = DramTierFixture;

TEST_F(DramTierLateTest, ASlotFreedUnderAQueuedReadIsNotReusedBeforeTheReadEnds) {
  MakeReady(1);
  const SampleBlock block(1, 1, kExtent);
  const SlotId slot = PublishFilled(block, 1);
  Buffer target(kExtent);
  auto read = SubmitRead(block, target);
  tier_->Retract(slot);
  tier_->Free(slot);
  tier_->Retire(tier_->SlotExtent(slot));
  EXPECT_EQ(tier_->dram_usage().quarantined_bytes, kExtent);
  EXPECT_EQ(Counter("frees_deferred"), 1u);
  EXPECT_EQ(AllocateCode(1, kExtent), Code::kNoSpace);
  EXPECT_EQ(tier_->Extents().size(), 1u);

  workers_.RunAll();
  executor_.RunOne();
  EXPECT_TRUE(read->batch.ops[0].status.ok());
  EXPECT_TRUE(std::ranges::equal(target.span, block.data.span));
  EXPECT_EQ(tier_->dram_usage().quarantined_bytes, 0u);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, 0u);
  EXPECT_THAT(tier_->Extents(), IsEmpty());
}

TEST_F(DramTierLateTest, ASlotThatIsFilledAnewUnderAReadIsNotCalledCorrupt) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  const SampleBlock other(1, 2, kPage);
  const SlotId slot = PublishFilled(block, 1);
  Buffer target(kPage);
  auto read = SubmitRead(block, target);
  tier_->Retract(slot);
  std::ranges::copy(other.data.span, tier_->SlotBytes(slot).begin());
  tier_->Publish(slot, other.meta);
  Settle();
  EXPECT_EQ(read->batch.ops[0].status.code(), Code::kCorrupt);  // Not the bytes asked for.
  EXPECT_EQ(tier_->Find(other.meta.id), slot);
  EXPECT_EQ(Counter("corrupt_blocks"), 0u);
}

TEST_F(DramTierLateTest, ADeadlineBeforeTheCopyBeginsLeavesTheTargetAlone) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  PublishFilled(block, 1);
  Buffer target(kPage);
  auto read = SubmitRead(block, target, clock_.NowNanos() + 10);
  executor_.AdvanceAndRun(10);
  EXPECT_EQ(read->done, 1);
  EXPECT_EQ(read->batch.ops[0].status.code(), Code::kLate);
  EXPECT_FALSE(read->batch.ops[0].in_flight);
  EXPECT_EQ(tier_->Usage().queued_ops, 1u);  // The worker has yet to pass it over.
  Settle();
  EXPECT_EQ(target.span[0], std::byte{0});
  EXPECT_THAT(read->quiescent, IsEmpty());
  EXPECT_EQ(tier_->Usage().queued_ops, 0u);
}

TEST_F(DramTierLateTest, AReadGivenUpDuringItsCopyIsInFlightUntilTheWorkerIsThrough) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  const SlotId slot = PublishFilled(block, 1);
  Buffer target(kPage);
  auto read = SubmitRead(block, target);
  tier_->Cancel(&read->batch);
  workers_.RunAll();   // Begins before the owner
  executor_.RunOne();  // gives up,
  EXPECT_EQ(read->done, 1);
  EXPECT_EQ(read->batch.ops[0].status.code(), Code::kLate);
  EXPECT_TRUE(read->batch.ops[0].in_flight);
  EXPECT_THAT(read->quiescent, IsEmpty());
  tier_->Retract(slot);
  tier_->Free(slot);
  EXPECT_EQ(tier_->dram_usage().quarantined_bytes, kPage);
  executor_.RunOne();  // and is heard of only now.
  EXPECT_THAT(read->quiescent, ElementsAre(0));
  EXPECT_EQ(read->done, 1);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, 0u);
  EXPECT_EQ(Counter("late_ops"), 1u);
}

TEST_F(DramTierLateTest, ALateReadStillFindsCorruption) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  ASSERT_EQ(WriteOne(block), Code::kOk);
  tier_->SlotBytes(tier_->Find(block.meta.id))[0] ^= std::byte{1};
  Buffer target(kPage);
  auto read = SubmitRead(block, target);
  tier_->Cancel(&read->batch);
  workers_.RunAll();
  executor_.RunAll();
  EXPECT_EQ(read->batch.ops[0].status.code(), Code::kLate);
  EXPECT_EQ(tier_->Find(block.meta.id), kNoSlot);
  EXPECT_EQ(Counter("corrupt_blocks"), 1u);
}

TEST_F(DramTierLateTest, ALateWriteLeavesNothingAndItsSlotIsQuarantinedWhileItIsCopiedTo) {
  MakeReady(2);
  const SampleBlock first(1, 1, kPage);
  const SampleBlock second(1, 2, kExtent / 2);
  auto never_begun = Submit<WriteOp>({first.ToWrite()});
  tier_->Cancel(&never_begun->batch);
  executor_.RunAll();
  EXPECT_FALSE(never_begun->batch.ops[0].in_flight);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, 0u);
  Settle();

  auto begun = Submit<WriteOp>({second.ToWrite()});
  EXPECT_EQ(begun->batch.ops[0].status.code(), Code::kOk);
  tier_->Cancel(&begun->batch);
  workers_.RunAll();
  executor_.RunOne();
  EXPECT_TRUE(begun->batch.ops[0].in_flight);
  EXPECT_EQ(tier_->dram_usage().quarantined_bytes, kExtent / 2);
  executor_.RunOne();
  EXPECT_THAT(begun->quiescent, ElementsAre(0));
  EXPECT_EQ(tier_->dram_usage().quarantined_bytes, 0u);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, 0u);
  EXPECT_EQ(tier_->Usage().block_count, 0u);
}

TEST_F(DramTierLateTest, ALateBatchKeepsWhatWasInTime) {
  MakeReady(8);
  std::vector<SampleBlock> blocks;
  std::vector<ReadOp> ops;
  std::vector<Buffer> targets;
  for (int i = 0; i < 100; ++i) {  // Two groups.
    blocks.emplace_back(1, i + 1, kPage / 2);
    PublishFilled(blocks.back(), 1);
    targets.emplace_back(kPage);
  }
  for (int i = 0; i < 100; ++i) ops.push_back(ReadOf(blocks[i], targets[i]));
  auto read = Submit<ReadOp>(ops, clock_.NowNanos() + 10);
  workers_.RunOne();
  executor_.AdvanceAndRun(10);
  EXPECT_EQ(read->done, 1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(read->batch.ops[i].status.code(), i < 64 ? Code::kOk : Code::kLate);
  }
  Settle();
  EXPECT_THAT(read->quiescent, IsEmpty());
}

TEST_F(DramTierLateTest, ABatchThatIsCancelledTwiceOrAfterItsEndCompletesOnce) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  PublishFilled(block, 1);
  Buffer target(kPage);
  auto read = SubmitRead(block, target, clock_.NowNanos() + 100);
  tier_->Cancel(&read->batch);
  EXPECT_EQ(read->done, 0);
  tier_->Cancel(&read->batch);
  executor_.RunAll();
  EXPECT_EQ(read->done, 1);
  EXPECT_EQ(read->batch.ops[0].status.code(), Code::kLate);
  tier_->Cancel(&read->batch);
  Settle();
  executor_.AdvanceAndRun(1000);
  EXPECT_EQ(read->done, 1);
}

TEST_F(DramTierLateTest, ADeadlineThatIsPastIsLateAtOnce) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  auto write = Submit<WriteOp>({block.ToWrite()}, clock_.NowNanos());
  executor_.RunAll();
  EXPECT_EQ(write->done, 1);
  EXPECT_EQ(write->batch.ops[0].status.code(), Code::kLate);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, 0u);
}

TEST_F(DramTierLateTest, ATierMayGoWhileWorkIsUnderWay) {
  MakeReady(3);
  const SampleBlock block(1, 1, kPage);
  PublishFilled(block, 1);
  Buffer target(kPage);
  auto read = SubmitRead(block, target, clock_.NowNanos() + 10);
  const SampleBlock other(1, 2, kPage);
  auto write = Submit<WriteOp>({other.ToWrite()});
  auto erase = Submit<EraseOp>({{block.meta.id, {}}});
  tier_->Tick();
  tier_->Retire(tier_->Extents()[0].extent);
  tier_.reset();
  Settle();
  executor_.AdvanceAndRun(100);
  EXPECT_EQ(read->done + write->done + erase->done, 0);
  EXPECT_EQ(extents_.outstanding(), 0u);
}

TEST(DramTierThreadsTest, CopiesDeadlinesAndCancelsOnRealThreadsSettleExactlyOnce) {
  constexpr int kBatches = 400;
  constexpr int kOps = 8;
  MemoryExtents memory;
  const auto executor = NewThreadExecutor({.name = "owner"}, SystemClock());
  auto workers = NewThreadWorkerPool(3, "worker");
  auto made = NewDramTier({.capacity_bytes = 8 * kExtent,
                           .extent_bytes = kExtent,
                           .keep_available_bytes = 0,
                           .ready_extents = 2,
                           .max_queued_ops = 64},
                          &memory, workers.get(), executor.get(), SystemClock());
  ASSERT_TRUE(made.ok());
  std::unique_ptr<DramTier> tier = *std::move(made);

  std::vector<SampleBlock> blocks;
  for (int i = 0; i < 64; ++i) {
    blocks.emplace_back(i % 3, i + 1, i % 2 == 0 ? kPage : 2 * kPage);
  }

  struct Flight {
    Batch<ReadOp> reads;
    Batch<WriteOp> writes;
    std::vector<Buffer> targets;
    int open = 2;       // Batches that are not done.
    int in_flight = 0;  // Operations that are late and not quiescent.
  };
  SeededRandom random(5);
  std::vector<std::unique_ptr<Flight>> flights;
  std::map<Code, int> codes;
  int open_flights = 0;
  int started = 0;
  std::promise<void> finished;

  std::function<void()> start;
  const auto end = [&](Flight* flight) {
    if (flight->open > 0 || flight->in_flight > 0) return;
    --open_flights;
    if (started < kBatches) {
      executor->Post(start);
    } else if (open_flights == 0) {
      finished.set_value();
    }
  };
  const auto count = [&](auto& batch, Flight* flight) {
    for (const auto& op : batch.ops) {
      ++codes[op.status.code()];
      flight->in_flight += op.in_flight ? 1 : 0;
    }
    --flight->open;
  };
  start = [&] {
    if (++started > kBatches) return;
    ++open_flights;
    tier->Tick();
    flights.push_back(std::make_unique<Flight>());
    Flight* const flight = flights.back().get();
    for (int i = 0; i < kOps; ++i) {
      flight->writes.ops.push_back(blocks[random.Below(blocks.size())].ToWrite());
      const SampleBlock& wanted = blocks[random.Below(blocks.size())];
      flight->targets.emplace_back(wanted.meta.raw_bytes);
      flight->reads.ops.push_back(ReadOf(wanted, flight->targets.back()));
    }
    const int64_t now = SystemClock()->NowNanos();
    if (random.Below(4) == 0) flight->reads.deadline_nanos = now + random.Below(100'000);
    if (random.Below(4) == 0) flight->writes.deadline_nanos = now + random.Below(100'000);
    flight->reads.on_done = [&, flight](Batch<ReadOp>& batch) {
      for (const ReadOp& op : batch.ops) {
        if (!op.status.ok()) continue;
        EXPECT_EQ(ChecksumOf(op.target), op.checksum);
      }
      count(batch, flight);
      end(flight);
    };
    flight->writes.on_done = [&, flight](Batch<WriteOp>& batch) {
      count(batch, flight);
      end(flight);
    };
    flight->reads.on_quiescent = [&, flight](Batch<ReadOp>& batch, size_t op) {
      EXPECT_TRUE(batch.ops[op].in_flight);
      --flight->in_flight;
      end(flight);
    };
    flight->writes.on_quiescent = [&, flight](Batch<WriteOp>& batch, size_t op) {
      EXPECT_TRUE(batch.ops[op].in_flight);
      --flight->in_flight;
      end(flight);
    };
    tier->Write(&flight->writes);
    tier->Read(&flight->reads);
    if (random.Below(4) == 0) tier->Cancel(&flight->reads);
    if (random.Below(4) == 0) tier->Cancel(&flight->writes);
    // Drops and moves capacity now and then.
    const SlotId slot = tier->Find(blocks[random.Below(blocks.size())].meta.id);
    if (slot != kNoSlot && random.Below(2) == 0) {
      tier->Retract(slot);
      tier->Free(slot);
    }
    if (const auto infos = tier->Extents(); !infos.empty() && random.Below(8) == 0) {
      const uint32_t extent = infos[random.Below(infos.size())].extent;
      tier->Retire(extent);
      tier->VisitSlots(extent, 0, UINT32_MAX, [&](SlotId victim, const BlockId&) {
        tier->Retract(victim);
        tier->Free(victim);
      });
    }
  };
  for (int i = 0; i < 6; ++i) executor->Post(start);
  finished.get_future().wait();

  std::promise<void> gone;
  executor->Post([&] {
    EXPECT_EQ(tier->Usage().queued_ops, 0u);
    EXPECT_EQ(tier->dram_usage().quarantined_bytes, 0u);
    EXPECT_EQ(tier->dram_usage().slot_bytes % kPage, 0u);
    tier.reset();
    gone.set_value();
  });
  gone.get_future().wait();
  workers.reset();
  executor->Stop();
  EXPECT_EQ(memory.outstanding(), 0u);
  EXPECT_GT(codes[Code::kOk], 0);
  EXPECT_EQ(codes[Code::kCorrupt], 0);
  EXPECT_EQ(codes[Code::kInvalid], 0);
}

}  // namespace
}  // namespace aquifer
