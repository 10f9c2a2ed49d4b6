// How space comes back, and what is kept of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tier/nvme/nvme_small.h"

namespace aquifer {
namespace {

TEST(NvmeReclaimTest, SegmentsOfAnEarlierSizeAreReadAndMakeWayForNewOnes) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 2);
  harness.options.segment_bytes = 2 * kSegment;
  harness.listener.choose = KeepAll;
  harness.Restart();
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
  for (uint64_t i = 100; i < 200; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  EXPECT_LE(harness.media[0]->used_bytes(), 8 * kSegment);
  EXPECT_LE(harness.tier()->Usage().used_bytes, 8 * kSegment);
}

TEST(NvmeReclaimTest, ACapThatWasLoweredIsObeyed) {
  NvmeHarness harness(Small(12));
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  EXPECT_GT(harness.media[0]->used_bytes(), 5 * kSegment);
  harness.options.capacity_bytes = 5 * kSegment;
  harness.Restart();
  harness.executor.RunAll();
  EXPECT_LE(harness.media[0]->used_bytes(), 5 * kSegment);
  EXPECT_TRUE(harness.Write(TestBlock(1000, 16 << 10)).ok());
}

// Five blocks of the first segment are alive, of which three fit into what may be moved; and three
// of the second.
TEST(NvmeReclaimTest, WhereASegmentCanGoWithoutALossAnOlderOneThatCannotStays) {
  NvmeHarness harness(Small(6));
  harness.listener.choose = KeepAll;
  std::vector<std::vector<std::unique_ptr<TestBlock>>> segments(1);
  for (uint64_t i = 0; segments.size() < 4; ++i) {
    auto block = std::make_unique<TestBlock>(i, 5000);
    ASSERT_TRUE(harness.Write(*block).ok());
    if (harness.Counter("segments_sealed") == segments.size()) segments.emplace_back();
    segments.back().push_back(std::move(block));
  }
  constexpr size_t kAlive[] = {5, 3};
  for (size_t segment = 0; segment < 2; ++segment) {
    for (size_t i = kAlive[segment]; i < segments[segment].size(); ++i) {
      ASSERT_TRUE(harness.Erase(segments[segment][i]->id()).ok());
    }
  }
  for (uint64_t i = 1000; harness.Counter("segments_reclaimed") == 0; ++i) {
    ASSERT_TRUE(harness.Write(TestBlock(i, 5000)).ok());
  }
  EXPECT_EQ(harness.Counter("reclaim_moved_blocks"), 3u);
  EXPECT_EQ(harness.Counter("reclaim_dropped_blocks"), 0u);
  for (size_t segment = 0; segment < 2; ++segment) {
    for (size_t i = 0; i < kAlive[segment]; ++i) {
      EXPECT_TRUE(harness.tier()->Probe(segments[segment][i]->id()).ok()) << segment << " " << i;
    }
  }
}

TEST(NvmeReclaimTest, WithoutAListenerReclaimKeepsNothing) {
  ManualClock clock;
  ManualExecutor executor(&clock);
  SeededRandom random(1);
  auto media = std::make_shared<MemoryMedia>();
  MemoryDisk disk(media, {}, &executor);
  auto tier = NewNvmeTier(Small(4), {&disk}, nullptr, &executor, &executor, &clock, &random);
  ASSERT_TRUE(tier.ok());
  (*tier)->Recover([](const Status&) {});
  executor.RunAll();
  for (uint64_t i = 0; i < 100; ++i) {
    const TestBlock block(i, 16 << 10);
    Batch<WriteOp> batch;
    batch.ops = {block.ToWrite()};
    (*tier)->Write(&batch);
    executor.RunAll();
    ASSERT_TRUE(batch.ops[0].status.ok());
  }
  EXPECT_LE(media->used_bytes(), 4 * kSegment);
  tier->reset();
}

TEST(NvmeReclaimTest, ReclaimKeepsWhatIsValuedUpToAFifthAndTellsOfTheRest) {
  NvmeHarness harness(Small(5));
  std::set<BlockId> precious;
  harness.listener.choose = [&](std::span<const BlockId> ids, std::vector<size_t>* order) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (precious.contains(ids[i])) order->push_back(i);
    }
  };
  std::vector<std::unique_ptr<TestBlock>> blocks;
  for (uint64_t i = 0; i < 200; ++i) {
    blocks.push_back(std::make_unique<TestBlock>(i, 5000));
    if (i % 17 == 0 && precious.size() < 4) precious.insert(blocks.back()->id());
    ASSERT_TRUE(harness.Write(*blocks.back()).ok());
  }
  EXPECT_GT(harness.Counter("segments_reclaimed"), 5u);
  EXPECT_GT(harness.Counter("reclaim_moved_blocks"), 4u);
  EXPECT_LE(harness.Counter("reclaim_moved_bytes"),
            harness.Counter("segments_reclaimed") * kSegment / 5);
  for (const auto& block : blocks) {
    const bool lost = harness.listener.lost.contains(block->id());
    EXPECT_EQ(harness.Read(*block).code(), lost ? Code::kNotFound : Code::kOk);
    if (lost) {
      EXPECT_EQ(harness.listener.lost[block->id()], Code::kNoSpace);
    }
    if (precious.contains(block->id())) {
      EXPECT_FALSE(lost);
    }
  }
  const uint64_t count = harness.tier()->Usage().block_count;
  harness.Restart();
  EXPECT_EQ(harness.tier()->Usage().block_count, count);
  for (const BlockId& id : precious) EXPECT_TRUE(harness.tier()->Probe(id).ok());
}

TEST(NvmeReclaimTest, ABlockWhoseBytesRottedIsNotMoved) {
  NvmeHarness harness(Small(5));
  harness.listener.choose = KeepAll;
  const auto blocks = FillSegments(&harness, 1);
  const auto [file, offset] = harness.PlaceOf(blocks[0]->id());
  harness.media[0]->FlipBit(file, offset + 77, 5);
  for (uint64_t i = 1000; harness.Counter("segments_reclaimed") == 0; ++i) {
    ASSERT_TRUE(harness.Write(TestBlock(i, 5000)).ok());
  }
  EXPECT_EQ(harness.listener.lost[blocks[0]->id()], Code::kCorrupt);
  EXPECT_EQ(harness.Counter("corrupt_blocks"), 1u);
  EXPECT_GT(harness.Counter("reclaim_moved_blocks"), 0u);
  EXPECT_EQ(harness.Read(*blocks[0]).code(), Code::kNotFound);
  EXPECT_TRUE(harness.Read(*blocks[1]).ok());
}

TEST(NvmeReclaimTest, TheOlderCopyOfAMovedBlockCannotUndoItsErasure) {
  NvmeHarness harness(Small(5));
  std::set<BlockId> precious;
  harness.listener.choose = [&](std::span<const BlockId> ids, std::vector<size_t>* order) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (precious.contains(ids[i])) order->push_back(i);
    }
  };
  const auto blocks = FillSegments(&harness, 1);
  precious.insert(blocks[0]->id());
  const std::vector<std::byte> before = harness.media[0]->Bytes(0, 0, kSegment);
  for (uint64_t i = 1000; harness.Counter("segments_reclaimed") == 0; ++i) {
    ASSERT_TRUE(harness.Write(TestBlock(i, 5000)).ok());
  }
  EXPECT_EQ(harness.Counter("reclaim_moved_blocks"), 1u);
  harness.Unmount();
  // As if the process had died before the emptied segment was marked as free.
  harness.media[0]->SetBytes(0, 0, before);
  harness.options.capacity_bytes = 12 * kSegment;  // So that it is not emptied again at once.
  harness.Mount();
  EXPECT_TRUE(harness.Read(*blocks[0]).ok());
  EXPECT_TRUE(harness.Erase(blocks[0]->id()).ok());
  harness.Restart();
  EXPECT_EQ(harness.Read(*blocks[0]).code(), Code::kNotFound);
  EXPECT_TRUE(harness.Read(*blocks[1]).ok());  // Dropped, not erased: it may be back.
}

// A block that one drive moves, stored anew on the other, which moves it as well.
class TwoMoves {
 public:
  // The first drive hangs so many tasks behind the beginning of a reclaim.
  explicit TwoMoves(int tasks) : harness_(Small(10), 2) {
    harness_.listener.choose = KeepAll;
    while (harness_.listener.reclaims == 0) Write(TestBlock(written_++, 5000));
    for (int i = 0; i < tasks; ++i) harness_.executor.RunOne();
    harness_.disks[0]->Hang(true);
  }

  void StoreAnew() {
    for (uint64_t i = 0; i < written_; ++i) {
      TestBlock block(i, 5000);
      block.memory()[0] ^= std::byte{1};
      block.meta().checksum = ChecksumOf(block.raw());
      Write(std::move(block));
    }
    for (uint64_t i = 1000; i < 1100; ++i) Write(TestBlock(i, 5000));
    harness_.executor.RunAll();
  }

  void GoOn() {
    harness_.disks[0]->Hang(false);
    harness_.executor.RunAll();
    for (const auto& write : writes_) EXPECT_TRUE(write->done);
  }

  uint64_t moved() { return harness_.Counter("reclaim_moved_blocks"); }

 private:
  struct OneWrite {
    explicit OneWrite(TestBlock given) : block(std::move(given)) {}
    TestBlock block;
    Batch<WriteOp> batch;
    bool done = false;
  };

  void Write(TestBlock block) {
    writes_.push_back(std::make_unique<OneWrite>(std::move(block)));
    OneWrite* const write = writes_.back().get();
    write->batch.ops.push_back(write->block.ToWrite());
    write->batch.on_done = [write](Batch<WriteOp>&) { write->done = true; };
    harness_.nvme()->Write(&write->batch);
    while (harness_.listener.reclaims == 0 && harness_.executor.RunOne()) {
    }
  }

  NvmeHarness harness_;
  uint64_t written_ = 0;
  std::vector<std::unique_ptr<OneWrite>> writes_;
};

TEST(NvmeReclaimTest, TwoDrivesMayMoveOneBlockAtOnce) {
  uint64_t moved = 0;
  for (int tasks = 0; tasks < 40; ++tasks) {
    TwoMoves moves(tasks);
    moves.StoreAnew();
    moves.GoOn();
    moved += moves.moved();
  }
  EXPECT_GT(moved, 0u);
}

TEST(NvmeReclaimTest, TheSegmentWithTheLeastLiveBytesGoesFirst) {
  NvmeHarness harness(Small(6));
  const auto blocks = FillSegments(&harness, 3);
  // Half of the second segment, by position in the log.
  const size_t per_segment = blocks.size() / 3;
  for (size_t i = per_segment; i < per_segment + per_segment / 2; ++i) {
    ASSERT_TRUE(harness.Erase(blocks[i]->id()).ok());
  }
  uint64_t next = 1000;
  while (harness.Counter("segments_reclaimed") == 0) {
    ASSERT_TRUE(harness.Write(TestBlock(next++, 5000)).ok());
  }
  EXPECT_TRUE(harness.tier()->Probe(blocks[0]->id()).ok());
  EXPECT_FALSE(harness.tier()->Probe(blocks[2 * per_segment - 2]->id()).ok());
}

TEST(NvmeReclaimTest, OfSegmentsThatHoldAboutTheSameTheOldestGoesFirst) {
  NvmeHarness harness(Small(6));
  const auto blocks = FillSegments(&harness, 3);
  const size_t newest = blocks.size() - 3;  // The last ones are in a segment that is still open.
  ASSERT_TRUE(harness.Erase(blocks[newest]->id()).ok());
  uint64_t next = 1000;
  while (harness.Counter("segments_reclaimed") == 0) {
    ASSERT_TRUE(harness.Write(TestBlock(next++, 5000)).ok());
  }
  EXPECT_FALSE(harness.tier()->Probe(blocks[1]->id()).ok());
  EXPECT_TRUE(harness.tier()->Probe(blocks[newest - 1]->id()).ok());
}

// Workers that can be made to wait.
struct HeldWorkers final : WorkerPool {
  explicit HeldWorkers(Executor* runs) : executor(runs) {}
  void Run(Task task) override {
    if (hold) return held.push_back(std::move(task));
    executor->Post(std::move(task));
  }
  void LetOneGo() {
    executor->Post(std::move(held.front()));
    held.pop_front();
  }

  Executor* const executor;
  std::deque<Task> held;
  bool hold = false;
};

// One of the blocks that are moved is verified while the drive is out, the others when it is back.
// With the last of them the reclaim is given up; nothing else happens that could wake who waits.
TEST(NvmeReclaimTest, WritesThatWaitForRoomGoOnWhereTheDriveWasOutInTheMiddleOfAReclaim) {
  ManualClock clock;
  ManualExecutor executor(&clock);
  HeldWorkers workers(&executor);
  SeededRandom random(1);
  NvmeHarnessListener listener;
  listener.choose = KeepAll;
  MemoryDisk disk(std::make_shared<MemoryMedia>(), {}, &executor, &clock);
  auto tier = NewNvmeTier(Small(5), {&disk}, &listener, &workers, &executor, &clock, &random);
  ASSERT_TRUE(tier.ok());
  (*tier)->Recover([](const Status&) {});
  executor.RunAll();
  const auto blocks = Blocks(0, 400, 5000);
  std::vector<std::unique_ptr<Batch<WriteOp>>> batches;
  size_t answered = 0;
  const auto write = [&](size_t first, size_t count) {
    auto& batch = *batches.emplace_back(std::make_unique<Batch<WriteOp>>());
    for (size_t i = first; i < first + count; ++i) batch.ops.push_back(blocks[i]->ToWrite());
    batch.on_done = [&answered](Batch<WriteOp>&) { ++answered; };
    batch.on_quiescent = [](Batch<WriteOp>&, size_t) {};
    (*tier)->Write(&batch);
  };
  size_t next = 0;
  for (; listener.reclaims < 2 && next < 200; ++next) {
    write(next, 1);
    executor.after_task = [&] { disk.Hang(listener.reclaims == 2); };
    executor.RunAll();
  }
  executor.after_task = nullptr;
  ASSERT_EQ(listener.reclaims, 2);
  write(next, 1);
  executor.AdvanceAndRun(7'000'000'000);
  ASSERT_FALSE((*tier)->in_service());

  workers.hold = true;
  disk.Hang(false);
  executor.RunAll();
  ASSERT_GE(workers.held.size(), 2u);
  workers.LetOneGo();
  executor.RunAll();
  workers.hold = false;
  executor.AdvanceAndRun(2'000'000'000);
  ASSERT_TRUE((*tier)->in_service());
  write(200, 100);
  executor.AdvanceAndRun(2'000'000'000);
  while (!workers.held.empty()) {
    workers.LetOneGo();
    executor.RunAll();
  }
  executor.AdvanceAndRun(10'000'000'000);
  EXPECT_EQ(answered, batches.size());
  tier->reset();
}

TEST(NvmeReclaimTest, ReadsOfASegmentThatIsReclaimedGetTheirBytes) {
  NvmeHarness harness(Small(4));
  const auto blocks = FillSegments(&harness, 1);
  TestBlock target(5'000'000, 5000);
  Batch<ReadOp> read;
  read.ops.push_back(
      {.id = blocks[0]->id(), .target = target.memory(), .status = {}, .checksum = {}});
  bool read_done = false;
  read.on_done = [&](Batch<ReadOp>&) { read_done = true; };
  // The read hangs alone; everything else goes on.
  harness.disks[0]->Hang(true);
  harness.tier()->Read(&read);
  harness.executor.RunAll();
  EXPECT_FALSE(read_done);
  Batch<WriteOp> write;
  std::vector<std::unique_ptr<TestBlock>> more = Blocks(1000, 60, 5000);
  for (const auto& block : more) write.ops.push_back(block->ToWrite());
  harness.tier()->Write(&write);
  harness.disks[0]->Hang(false);
  harness.executor.RunAll();
  ASSERT_TRUE(read_done);
  EXPECT_TRUE(read.ops[0].status.ok());
  EXPECT_TRUE(std::ranges::equal(target.memory().first(5000), blocks[0]->raw()));
}

TEST(NvmeReclaimTest, AFullFileSystemMakesReclaimWorkWithTheSegmentsThereAre) {
  NvmeHarness harness(Small(8));
  harness.media[0]->set_capacity_bytes(3 * kSegment + 4096);
  for (uint64_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok()) << i;
  }
  EXPECT_TRUE(harness.tier()->in_service());
  EXPECT_GT(harness.Counter("segments_reclaimed"), 0u);
  EXPECT_GT(harness.Counter("create_errors"), 0u);
  EXPECT_LE(harness.media[0]->used_bytes(), 3 * kSegment);
  harness.media[0]->set_capacity_bytes(100 * kSegment);
  harness.Advance(2'000'000'000);
  for (uint64_t i = 100; i < 200; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  EXPECT_GT(harness.media[0]->used_bytes(), 3 * kSegment);
}

TEST(NvmeReclaimTest, AFileSystemWithoutRoomForOneSegmentIsNoSpace) {
  NvmeHarness harness(Small(8));
  harness.media[0]->set_capacity_bytes(kSegment / 2);
  EXPECT_EQ(harness.Write(TestBlock(1, 4096)).code(), Code::kNoSpace);
  EXPECT_TRUE(harness.tier()->in_service());
  harness.media[0]->set_capacity_bytes(100 * kSegment);
  harness.Advance(2'000'000'000);
  EXPECT_TRUE(harness.Write(TestBlock(1, 4096)).ok());
}

}  // namespace
}  // namespace aquifer
