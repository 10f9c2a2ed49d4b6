// Drives that fail, hang and come back.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tier/nvme/nvme_format.h"
#include "tier/nvme/nvme_small.h"

namespace aquifer {
namespace {

TEST(NvmeHealthTest, AReadOnlyDriveServesReadsAndComesBackByItself) {
  NvmeHarness harness(Small());
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.disks[0]->SetReadOnly(true);
  EXPECT_EQ(harness.Write(TestBlock(2, 8192)).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Write(TestBlock(3, 8192)).code(), Code::kUnavailable);
  EXPECT_TRUE(harness.Read(block).ok());
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kUnavailable) << "it may come back";
  harness.Advance(3'000'000'000);
  EXPECT_EQ(harness.Write(TestBlock(4, 8192)).code(), Code::kUnavailable);
  harness.disks[0]->SetReadOnly(false);
  harness.Advance(2'000'000'000);
  EXPECT_TRUE(harness.Write(TestBlock(5, 8192)).ok());
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound) << "an erased block came back";
}

TEST(NvmeHealthTest, ADriveThatReadsBackOtherBytesIsNotWrittenTo) {
  NvmeHarness harness(Small());
  ASSERT_TRUE(harness.Write(TestBlock(1, 8192)).ok());
  harness.disks[0]->SetReadOnly(true);
  EXPECT_EQ(harness.Write(TestBlock(2, 8192)).code(), Code::kUnavailable);
  harness.disks[0]->SetReadOnly(false);
  harness.disks[0]->SetFault([media = harness.media[0].get()](const IoRequest& request) {
    const bool of_probe = request.kind == IoKind::kRead && request.offset == kScratchOffset;
    if (of_probe) media->FlipBit(request.file, kScratchOffset + 100, 3);
    return Status();
  });
  harness.Advance(5'000'000'000);
  EXPECT_GT(harness.Counter("probes"), 1u);
  EXPECT_EQ(harness.Write(TestBlock(3, 8192)).code(), Code::kUnavailable);
  harness.disks[0]->SetFault(nullptr);
  harness.Advance(2'000'000'000);
  EXPECT_TRUE(harness.Write(TestBlock(4, 8192)).ok());
}

TEST(NvmeHealthTest, AHangingDriveGoesOutOfServiceAndComesBackWithEverything) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 10, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.disks[0]->Hang(true);
  TestBlock target(100, 8192);
  Batch<ReadOp> read;
  read.ops.push_back(
      {.id = blocks[0]->id(), .target = target.memory(), .status = {}, .checksum = {}});
  int done = 0;
  int quiescent = 0;
  read.on_done = [&](Batch<ReadOp>&) { ++done; };
  read.on_quiescent = [&](Batch<ReadOp>&, size_t) { ++quiescent; };
  const TestBlock late(50, 8192);
  Batch<WriteOp> write;
  write.ops = {late.ToWrite()};
  write.on_done = [&](Batch<WriteOp>&) { ++done; };
  write.on_quiescent = [&](Batch<WriteOp>&, size_t) { ++quiescent; };
  harness.tier()->Read(&read);
  harness.tier()->Write(&write);
  harness.Advance(4'000'000'000);
  EXPECT_EQ(done, 0);
  EXPECT_TRUE(harness.tier()->in_service());
  harness.Advance(2'000'000'000);
  EXPECT_EQ(done, 2);
  EXPECT_EQ(read.ops[0].status.code(), Code::kUnavailable);
  EXPECT_TRUE(read.ops[0].in_flight);
  EXPECT_FALSE(harness.tier()->in_service());
  EXPECT_EQ(harness.listener.health, std::vector<bool>{false});
  EXPECT_NE(harness.listener.health_why.message().find("has not completed"), std::string::npos);
  EXPECT_EQ(harness.Read(*blocks[1]).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Write(TestBlock(60, 8192)).code(), Code::kUnavailable);
  EXPECT_EQ(harness.tier()->Probe(blocks[1]->id()).code(), Code::kUnavailable);
  // What the drives held was known before they went.
  EXPECT_EQ(harness.tier()->Probe(TestBlock(80, 8192).id()).code(), Code::kNotFound);
  harness.Advance(10'000'000'000);
  EXPECT_FALSE(harness.tier()->in_service());
  harness.disks[0]->Hang(false);
  harness.Advance(2'000'000'000);
  EXPECT_EQ(quiescent, (read.ops[0].in_flight ? 1 : 0) + (write.ops[0].in_flight ? 1 : 0));
  EXPECT_TRUE(harness.tier()->in_service());
  EXPECT_EQ(harness.listener.health, (std::vector<bool>{false, true}));
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
  EXPECT_TRUE(harness.Write(TestBlock(70, 8192)).ok());
  EXPECT_EQ(harness.tier()->Usage().queued_ops, 0u);
}

// Its blocks may be written again, to another drive. What it has of them is dead, also after a
// restart.
TEST(NvmeHealthTest, ADriveThatIsAwayForLongIsDetachedAndItsBlocksMayBeWrittenElsewhere) {
  for (const bool restart : {false, true}) {
    NvmeHarness harness(Small(), 2);
    const auto blocks = Blocks(0, 10, 8192);
    for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
    const auto on_first = [&](const TestBlock& block) {
      return harness.tier()->DeviceOf(block.id()) == 0;
    };
    std::vector<const TestBlock*> lost;
    for (const auto& block : blocks) {
      if (on_first(*block)) lost.push_back(block.get());
    }
    ASSERT_GT(lost.size(), 0u);
    harness.disks[0]->FailAll(IoKind::kRead, Code::kUnavailable);
    harness.disks[0]->FailAll(IoKind::kWrite, Code::kUnavailable);
    for (int i = 0; i < 8; ++i) EXPECT_FALSE(harness.Read(*lost[0]).ok());
    harness.Advance(50'000'000'000);
    EXPECT_EQ(harness.listener.detached, 0);
    EXPECT_FALSE(harness.nvme()->Detached(lost[0]->id()));
    EXPECT_EQ(harness.Write(*lost[0]).code(), Code::kUnavailable);
    harness.Advance(11'000'000'000);
    EXPECT_EQ(harness.listener.detached, 1);
    EXPECT_TRUE(harness.nvme()->Detached(lost[0]->id()));
    EXPECT_FALSE(harness.nvme()->AllRead());
    EXPECT_TRUE(harness.Write(*lost[0]).ok());
    EXPECT_TRUE(harness.Read(*lost[0]).ok());
    EXPECT_FALSE(on_first(*lost[0]));
    EXPECT_FALSE(harness.nvme()->Detached(lost[0]->id()));
    harness.disks[0]->FailAll(IoKind::kRead, Code::kOk);
    harness.disks[0]->FailAll(IoKind::kWrite, Code::kOk);
    if (restart) {
      harness.Restart();
    } else {
      const int found = harness.listener.found;
      harness.Advance(2'000'000'000);
      EXPECT_EQ(harness.listener.found, found + 1);
      EXPECT_TRUE(harness.nvme()->AllRead());
    }
    for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
    EXPECT_FALSE(on_first(*lost[0]));
    EXPECT_TRUE(harness.Erase(lost[0]->id()).ok());
    harness.Restart();
    EXPECT_EQ(harness.Read(*lost[0]).code(), Code::kNotFound);
  }
}

// An erase of it is not acknowledged before the old record is marked.
TEST(NvmeHealthTest, ABlockOfADetachedDriveIsErasedWhenTheDriveIsBack) {
  NvmeHarness harness(Small(), 2);
  const TestBlock first(1, 8192);
  ASSERT_TRUE(harness.Write(first).ok());
  const uint32_t drive = harness.tier()->DeviceOf(first.id());
  harness.disks[drive]->FailAll(IoKind::kRead, Code::kUnavailable);
  harness.disks[drive]->FailAll(IoKind::kWrite, Code::kUnavailable);
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(harness.Read(first).ok());
  harness.Advance(61'000'000'000);
  ASSERT_TRUE(harness.nvme()->Detached(first.id()));
  ASSERT_TRUE(harness.Write(first).ok());
  EXPECT_EQ(harness.Erase(first.id()).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Read(first).code(), Code::kNotFound);
  harness.disks[drive]->FailAll(IoKind::kRead, Code::kOk);
  harness.disks[drive]->FailAll(IoKind::kWrite, Code::kOk);
  harness.Advance(2'000'000'000);
  EXPECT_EQ(harness.Erase(first.id()).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.Read(first).code(), Code::kNotFound);
}

// A drive may lose requests and be well otherwise. What it never answers is no work that it has.
TEST(NvmeHealthTest, ADriveIsWrittenToThoughWhatHungThereNeverEnds) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  NvmeTierOptions options;
  options.capacity_bytes = 1024 * kMiB;
  options.segment_bytes = 128 * kMiB;
  NvmeHarness harness(options);
  ASSERT_TRUE(harness.Write(TestBlock(1, 8192)).ok());
  const auto lost = Blocks(100, 12, kMiB);  // Less than it may have at once.
  Batch<WriteOp> hangs;
  for (const auto& block : lost) hangs.ops.push_back(block->ToWrite());
  size_t quiescent = 0;
  hangs.on_quiescent = [&](Batch<WriteOp>&, size_t) { ++quiescent; };
  harness.disks[0]->Hang(true);
  harness.tier()->Write(&hangs);
  harness.Advance(5'500'000'000);
  EXPECT_FALSE(harness.tier()->in_service());
  for (const WriteOp& op : hangs.ops) EXPECT_TRUE(op.in_flight);
  harness.disks[0]->HangNoMore();  // Before it is looked at whether the drive is well again.
  harness.Advance(2'000'000'000);
  ASSERT_TRUE(harness.tier()->in_service());

  const TestBlock block(2, 8192);
  Batch<WriteOp> write;
  write.ops.push_back(block.ToWrite());
  bool done = false;
  write.on_done = [&](Batch<WriteOp>&) { done = true; };
  harness.tier()->Write(&write);
  harness.Advance(10'000'000'000);
  EXPECT_TRUE(done);
  EXPECT_TRUE(write.ops[0].status.ok()) << write.ops[0].status.ToString();

  // It does answer in the end: that is counted once.
  harness.disks[0]->Hang(false);
  harness.Advance(1'000'000'000);
  EXPECT_EQ(quiescent, hangs.ops.size());
  for (const auto& more : Blocks(200, 32, kMiB)) EXPECT_TRUE(harness.Write(*more).ok());
  EXPECT_TRUE(harness.Read(block).ok());
}

TEST(NvmeHealthTest, ATierThatStoodStillItselfDoesNotBlameTheDrive) {
  NvmeHarness harness(Small());
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.disks[0]->Hang(true);
  TestBlock target(100, 8192);
  Batch<ReadOp> read;
  read.ops.push_back({.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
  int done = 0;
  read.on_done = [&](Batch<ReadOp>&) { ++done; };
  read.on_quiescent = [](Batch<ReadOp>&, size_t) {};
  harness.tier()->Read(&read);
  harness.executor.RunAll();
  harness.clock.Advance(60'000'000'000);  // Nothing of the process runs.
  harness.executor.RunNextTimer();        // Before it hears of what the drive did.
  EXPECT_EQ(done, 0);
  harness.disks[0]->Hang(false);
  harness.Advance(100'000'000);
  EXPECT_EQ(done, 1);
  EXPECT_TRUE(read.ops[0].status.ok());
  EXPECT_TRUE(harness.listener.health.empty());

  harness.disks[0]->Hang(true);  // One that does hang is found as before.
  done = 0;
  harness.tier()->Read(&read);
  harness.Advance(6'000'000'000);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(harness.listener.health, std::vector<bool>{false});
  harness.disks[0]->Hang(false);
  harness.Advance(2'000'000'000);
}

// 13 MB/s: a disk behind a slow network, or one whose credit is used up.
class SlowDriveTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytesPerSecond = 13'000'000;

  SlowDriveTest() {
    NvmeTierOptions options;
    options.capacity_bytes = uint64_t{1} << 30;
    options.segment_bytes = uint64_t{128} << 20;
    harness_ = std::make_unique<NvmeHarness>(options);
    harness_->disk_options.bytes_per_second = kBytesPerSecond;
    harness_->Restart();
  }

  // Hands over all of them at once.
  void Write(const std::vector<std::unique_ptr<TestBlock>>& blocks, Batch<WriteOp>* batch) {
    for (const auto& block : blocks) batch->ops.push_back(block->ToWrite());
    batch->on_done = [this](Batch<WriteOp>&) { ++done_; };
    harness_->tier()->Write(batch);
    harness_->executor.RunAll();
  }
  void Read(const std::vector<std::unique_ptr<TestBlock>>& blocks, Batch<ReadOp>* batch) {
    for (const auto& block : blocks) {
      batch->ops.push_back(
          {.id = block->id(), .target = block->memory(), .status = {}, .checksum = {}});
    }
    batch->on_done = [this](Batch<ReadOp>&) { ++done_; };
    harness_->tier()->Read(batch);
    harness_->executor.RunAll();
  }
  // Seconds until so many batches have ended.
  double Wait(int batches) {
    const int64_t since = harness_->NowNanos();
    for (int step = 0; step < 2000 && done_ < batches; ++step) harness_->Advance(10'000'000);
    EXPECT_EQ(std::exchange(done_, 0), batches);
    return static_cast<double>(harness_->NowNanos() - since) / 1e9;
  }

  std::unique_ptr<NvmeHarness> harness_;
  int done_ = 0;
};

TEST_F(SlowDriveTest, ASlowDriveIsNotTakenForOneThatHangs) {
  for (const uint64_t bytes : {uint64_t{2} << 20, uint64_t{64} << 20}) {
    SCOPED_TRACE(bytes);
    const auto blocks = Blocks(bytes, (uint64_t{128} << 20) / bytes, bytes);
    Batch<WriteOp> write;
    Write(blocks, &write);
    EXPECT_GT(Wait(1), 10);
    for (const WriteOp& op : write.ops) EXPECT_TRUE(op.status.ok()) << op.status.ToString();
    Batch<ReadOp> read;
    Read(blocks, &read);
    EXPECT_GT(Wait(1), 10);
    for (const ReadOp& op : read.ops) EXPECT_TRUE(op.status.ok()) << op.status.ToString();
  }
  EXPECT_TRUE(harness_->listener.health.empty()) << harness_->listener.health_why.ToString();
}

// Nor must anybody wait for all that is to be written to it.
TEST_F(SlowDriveTest, ASlowDriveHasLittleWaitingForIt) {
  const auto first = Blocks(0, 16, uint64_t{2} << 20);
  Batch<WriteOp> before;
  Write(first, &before);
  Wait(1);
  const auto blocks = Blocks(100, 64, uint64_t{2} << 20);
  Batch<WriteOp> write;
  Write(blocks, &write);
  const auto wanted = Blocks(0, 1, uint64_t{2} << 20);
  Batch<ReadOp> read;
  Read(wanted, &read);
  EXPECT_LT(Wait(1), 1);
  EXPECT_TRUE(read.ops[0].status.ok());
  EXPECT_GT(Wait(1), 9);
  for (const WriteOp& op : write.ops) EXPECT_TRUE(op.status.ok()) << op.status.ToString();
}

// Its buffer is its caller's again: nothing may read it, and nothing may come of the write.
TEST(NvmeHealthTest, WhoeverWasLateBehindAHangingWriteDoesNotTakeItsPlace) {
  NvmeHarness harness(Small(16), 2);
  for (uint64_t i = 10; i < 14; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 8192)).ok());
  const TestBlock block(1, 8192);
  for (const auto& disk : harness.disks) disk->Hang(true);
  Batch<WriteOp> first;
  first.ops = {block.ToWrite()};
  first.on_quiescent = [](Batch<WriteOp>&, size_t) {};
  harness.tier()->Write(&first);
  Batch<WriteOp> second;
  second.ops = {block.ToWrite()};
  second.deadline_nanos = harness.NowNanos() + 1'000'000'000;
  int quiescent = 0;
  second.on_quiescent = [&](Batch<WriteOp>&, size_t) { ++quiescent; };
  harness.tier()->Write(&second);
  harness.Advance(2'000'000'000);
  EXPECT_EQ(second.ops[0].status.code(), Code::kLate);
  EXPECT_FALSE(second.ops[0].in_flight);
  // The other drive is well again before the one with the block goes out of service.
  harness.disks[1]->Hang(false);
  harness.Advance(5'000'000'000);
  EXPECT_EQ(first.ops[0].status.code(), Code::kUnavailable);
  EXPECT_EQ(harness.Counter("blocks_written"), 4u);
  EXPECT_EQ(quiescent, 0);
  EXPECT_EQ(harness.tier()->Probe(block.id()).code(), Code::kNotFound);
  harness.disks[0]->Hang(false);
  harness.Advance(2'000'000'000);
  EXPECT_EQ(harness.tier()->Usage().queued_ops, 0u);
}

TEST(NvmeHealthTest, ManyFailedReadsInARowTakeTheDriveOut) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 10, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.disks[0]->FailAll(IoKind::kRead, Code::kUnavailable);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(harness.Read(*blocks[0]).code(), Code::kUnavailable);
    EXPECT_TRUE(harness.tier()->in_service());
  }
  EXPECT_EQ(harness.Read(*blocks[0]).code(), Code::kUnavailable);
  EXPECT_FALSE(harness.tier()->in_service());
  harness.disks[0]->FailAll(IoKind::kRead, Code::kOk);
  harness.Advance(2'000'000'000);
  EXPECT_TRUE(harness.tier()->in_service());
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeHealthTest, AFailedWriteCostsItsOwnBlockOnly) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 8, 8192);
  std::vector<const TestBlock*> all;
  for (const auto& block : blocks) all.push_back(block.get());
  int writes = 0;
  harness.disks[0]->SetFault([&](const IoRequest& request) {
    if (request.kind != IoKind::kWrite || request.data.size() != 8192) return Status();
    return ++writes == 3 ? Status(Code::kNoSpace) : Status();
  });
  const std::vector<Status> statuses = harness.Write(all);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(statuses[i].code(), i == 2 ? Code::kNoSpace : Code::kOk);
    EXPECT_EQ(harness.Read(*blocks[i]).code(), i == 2 ? Code::kNotFound : Code::kOk);
  }
  harness.Restart();
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(harness.Read(*blocks[i]).code(), i == 2 ? Code::kNotFound : Code::kOk);
  }
}

TEST(NvmeHealthTest, EveryWriteThatCanFailFailsOnceAndNothingAcknowledgedIsLost) {
  for (int failing = 1; failing < 60; ++failing) {
    NvmeHarness harness(Small(5));
    harness.listener.choose = KeepAll;
    int writes = 0;
    harness.disks[0]->SetFault([&](const IoRequest& request) {
      if (request.kind == IoKind::kRead) return Status();
      return ++writes == failing ? Status(Code::kUnavailable, "injected") : Status();
    });
    std::set<size_t> acknowledged;
    std::set<size_t> erased;
    const auto blocks = Blocks(0, 40, 5000);
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (harness.Write(*blocks[i]).ok()) acknowledged.insert(i);
      if (i % 5 == 4) {
        // One that fails may or may not have happened.
        if (harness.Erase(blocks[i - 2]->id()).ok()) erased.insert(i - 2);
        acknowledged.erase(i - 2);
      }
      if (i % 10 == 9) harness.Advance(2'000'000'000);
    }
    EXPECT_GT(acknowledged.size(), 10u);
    for (int round = 0; round < 2; ++round) {
      for (const size_t i : acknowledged) {
        if (harness.listener.lost.contains(blocks[i]->id())) continue;
        EXPECT_TRUE(harness.Read(*blocks[i]).ok()) << failing << " lost block " << i;
      }
      for (const size_t i : erased) {
        EXPECT_EQ(harness.Read(*blocks[i]).code(), Code::kNotFound) << failing << " block " << i;
      }
      harness.Restart();
    }
  }
}

TEST(NvmeHealthTest, ADriveThatCannotBeReadAtStartJoinsLater) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 10, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.Unmount();
  harness.MountWithoutRecovery();
  harness.disks[0]->FailAll(IoKind::kRead, Code::kUnavailable);
  EXPECT_EQ(harness.RecoverNow().code(), Code::kUnavailable);
  EXPECT_FALSE(harness.tier()->in_service());
  harness.disks[0]->FailAll(IoKind::kRead, Code::kOk);
  harness.Advance(2'000'000'000);
  EXPECT_TRUE(harness.tier()->in_service());
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeHealthTest, ADriveThatHangsAtStartIsNotWaitedFor) {
  NvmeHarness harness(Small(), 2);
  const auto blocks = Blocks(0, 10, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.Unmount();
  harness.MountWithoutRecovery();
  harness.disks[1]->Hang(true);
  Status result(Code::kBusy);
  harness.nvme()->Recover([&](Status status) { result = std::move(status); });
  harness.Advance(6'000'000'000);
  EXPECT_TRUE(result.ok());
  size_t there = 0;
  for (const auto& block : blocks) there += harness.Read(*block).ok() ? 1 : 0;
  EXPECT_GT(there, 0u);
  EXPECT_LT(there, 10u);
  // A copy may be on the drive that is not read yet.
  EXPECT_EQ(harness.Erase(TestBlock(99, 4096).id()).code(), Code::kUnavailable);
  harness.disks[1]->Hang(false);
  harness.Advance(3'000'000'000);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeHealthTest, AFailingDriveCostsItsOwnBlocksForTheTimeBeing) {
  NvmeHarness harness(Small(16), 2);
  const auto blocks = Blocks(0, 20, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.disks[1]->Hang(true);
  std::vector<std::unique_ptr<TestBlock>> targets = Blocks(500, 20, 8192);
  Batch<ReadOp> read;
  for (size_t i = 0; i < 20; ++i) {
    read.ops.push_back(
        {.id = blocks[i]->id(), .target = targets[i]->memory(), .status = {}, .checksum = {}});
  }
  size_t quiescent = 0;
  read.on_quiescent = [&](Batch<ReadOp>&, size_t) { ++quiescent; };
  harness.tier()->Read(&read);
  harness.Advance(6'000'000'000);
  EXPECT_TRUE(harness.tier()->in_service());
  EXPECT_TRUE(harness.listener.health.empty());
  size_t there = 0;
  for (const auto& block : blocks) {
    const Status status = harness.tier()->Probe(block->id());
    EXPECT_TRUE(status.ok() || status.code() == Code::kUnavailable);
    if (status.ok()) ++there;
  }
  EXPECT_EQ(there, 10u);
  for (uint64_t i = 100; i < 110; ++i) EXPECT_TRUE(harness.Write(TestBlock(i, 8192)).ok());
  EXPECT_EQ(quiescent, 0u);
  harness.disks[1]->Hang(false);
  harness.Advance(2'000'000'000);
  EXPECT_EQ(quiescent, 10u);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

}  // namespace
}  // namespace aquifer
