// What the NVMe tier owes when drives fail at the wrong moment. Each was found by the simulator.
#include <cstring>
#include <memory>
#include <vector>

#include "tier/nvme/nvme_format.h"
#include "tier/nvme/nvme_harness.h"
#include "tier/nvme/nvme_tier.h"

namespace aquifer {
namespace {

constexpr uint64_t kSegment = 128 << 10;
constexpr int64_t kSecond = 1'000'000'000;

NvmeTierOptions Small(uint64_t segments = 8) {
  NvmeTierOptions options;
  options.segment_bytes = kSegment;
  options.capacity_bytes = segments * kSegment;
  options.max_block_bytes = 16 << 10;
  return options;
}

// One after the other, or the second while the first is under way.
void WriteBoth(const WriteOp& first, const WriteOp& second, bool at_once, NvmeHarness* harness) {
  Batch<WriteOp> one;
  one.ops = {first};
  Batch<WriteOp> two;
  two.ops = {second};
  harness->tier()->Write(&one);
  if (!at_once) harness->executor.RunAll();
  harness->tier()->Write(&two);
  harness->executor.RunAll();
  EXPECT_TRUE(one.ops[0].status.ok());
  EXPECT_TRUE(two.ops[0].status.ok());
}

// An engine that computes a block once more may get other bytes under the same name.
TEST(NvmeFaultsTest, WhatWasStoredLastCountsAlsoWhenItsBytesAreOthers) {
  const TestBlock first(1, 8192);
  TestBlock second(2, 8192);
  second.meta().id = first.id();
  for (const bool at_once : {false, true}) {
    NvmeHarness harness(Small());
    WriteBoth(first.ToWrite(), second.ToWrite(), at_once, &harness);
    EXPECT_TRUE(harness.Read(second).ok());
    EXPECT_EQ(harness.tier()->Usage().block_count, 1u);
    harness.Restart();
    EXPECT_TRUE(harness.Read(second).ok());
  }
}

// A record that a drive brought late is there with the time that an earlier life gave it.
TEST(NvmeFaultsTest, WhatWasStoredLastHasItsOwnTime) {
  TestBlock block(1, 8192);
  for (const bool at_once : {false, true}) {
    NvmeHarness harness(Small());
    block.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
    const WriteOp with_time = block.ToWrite();
    block.meta().expiry_unix_seconds = 0;
    WriteBoth(with_time, block.ToWrite(), at_once, &harness);
    EXPECT_EQ(harness.tier()->Usage().block_count, 1u);
    harness.clock.SetUnixSeconds(harness.clock.UnixSeconds() + 20);
    EXPECT_TRUE(harness.Read(block).ok());
    harness.Restart();
    EXPECT_TRUE(harness.Read(block).ok());
  }
}

// Each waits for the marks of the same drive; the one that comes later is not the other's doubt.
TEST(NvmeFaultsTest, TwoErasuresAtOnceAreBothAcknowledged) {
  NvmeHarness harness(Small());
  TestBlock expired(1, 8192);
  expired.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
  const TestBlock one(2, 8192);
  const TestBlock two(3, 8192);
  for (const TestBlock* block : {&std::as_const(expired), &one, &two}) {
    ASSERT_TRUE(harness.Write(*block).ok());
  }
  harness.clock.SetUnixSeconds(harness.clock.UnixSeconds() + 20);
  harness.Restart();
  Batch<EraseOp> first;
  first.ops.push_back({.id = one.id(), .status = {}});
  Batch<EraseOp> second;
  second.ops.push_back({.id = two.id(), .status = {}});
  harness.tier()->Erase(&first);
  harness.tier()->Erase(&second);
  harness.executor.RunAll();
  EXPECT_TRUE(first.ops[0].status.ok()) << first.ops[0].status.ToString();
  EXPECT_TRUE(second.ops[0].status.ok()) << second.ops[0].status.ToString();
}

// The caller was told that it failed, so it would never ask to erase it.
TEST(NvmeFaultsTest, AWriteThatFailedDoesNotAppearWhenTheDriveGoesOn) {
  NvmeHarness harness(Small());
  ASSERT_TRUE(harness.Write(TestBlock(1, 8192)).ok());
  const TestBlock block(2, 8192);
  Batch<WriteOp> batch;
  batch.ops = {block.ToWrite()};
  bool done = false;
  batch.on_done = [&done](Batch<WriteOp>&) { done = true; };
  const uint64_t before = harness.disks[0]->requests_done();
  harness.tier()->Write(&batch);
  // The payload is on the drive; the page that names it hangs.
  ASSERT_TRUE(harness.RunUntil([&] { return harness.disks[0]->requests_done() > before; }));
  harness.disks[0]->Hang(true);
  harness.Advance(6 * kSecond);
  ASSERT_TRUE(done);
  ASSERT_EQ(batch.ops[0].status.code(), Code::kUnavailable);
  harness.disks[0]->Hang(false);
  harness.Advance(2 * kSecond);
  ASSERT_TRUE(harness.tier()->in_service());
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
}

// Whoever deletes all that a tenant has does not know of it any more, and names no key.
TEST(NvmeFaultsTest, NothingOfATenantIsGoneForGoodWhileAWriteThatWasGivenUpIsAtADrive) {
  NvmeHarness harness(Small());
  ASSERT_TRUE(harness.Write(TestBlock(1, 8192)).ok());
  const TestBlock block(2, 8192);
  Batch<WriteOp> batch;
  batch.ops = {block.ToWrite()};
  batch.deadline_nanos = harness.NowNanos() + kSecond;
  const uint64_t before = harness.disks[0]->requests_done();
  harness.tier()->Write(&batch);
  // The payload is on the drive; the page that names it takes its time.
  ASSERT_TRUE(harness.RunUntil([&] { return harness.disks[0]->requests_done() > before; }));
  harness.disks[0]->Hang(true);
  harness.Advance(2 * kSecond);
  ASSERT_EQ(batch.ops[0].status.code(), Code::kLate);
  const BlockId all{.tenant = block.id().tenant, .key = {}};
  EXPECT_EQ(harness.Erase(all).code(), Code::kUnavailable);
  harness.disks[0]->Hang(false);
  harness.Advance(kSecond);
  EXPECT_EQ(harness.Erase(all).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
}

// The same for one that is on its drive, while what it replaced could not be marked on another.
TEST(NvmeFaultsTest, AWriteThatFailedForWhatItReplacedIsNotThere) {
  NvmeHarness harness(Small(), 2);
  const TestBlock first(1, 8192);
  TestBlock second(2, 8192);
  second.meta().id = first.id();
  ASSERT_TRUE(harness.Write(first).ok());
  for (const auto& disk : harness.disks) {
    disk->SetFault([](const IoRequest& request) {
      const bool marks = request.kind == IoKind::kWrite && request.offset >= kMapsOffset &&
                         request.offset < DataOffset(kSegment);
      return marks ? Status(Code::kUnavailable) : Status();
    });
  }
  EXPECT_EQ(harness.Write(second).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Read(second).code(), Code::kNotFound);
  EXPECT_TRUE(harness.listener.lost.contains(first.id()));
  for (const auto& disk : harness.disks) disk->SetFault(nullptr);
  harness.Advance(3 * kSecond);
  EXPECT_EQ(harness.Erase({.tenant = first.id().tenant, .key = {}}).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.Read(second).code(), Code::kNotFound);
}

TEST(NvmeFaultsTest, AnErasureCoversABlockThatWasExpiredWhenTheCalendarIsSetBack) {
  NvmeHarness harness(Small());
  TestBlock block(1, 8192);
  const int64_t now = harness.clock.UnixSeconds();
  block.meta().expiry_unix_seconds = now + 10;
  ASSERT_TRUE(harness.Write(block).ok());
  harness.clock.SetUnixSeconds(now + 20);
  harness.Restart();
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kNotFound);
  harness.clock.SetUnixSeconds(now);
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
}

// The calendar jumps while a start is under way: who enumerates does not hear of the block.
TEST(NvmeFaultsTest, ABlockThatIsNotEnumeratedBecauseItsTimeIsOverIsGoneForGood) {
  NvmeHarness harness(Small());
  TestBlock block(1, 8192);
  const int64_t now = harness.clock.UnixSeconds();
  block.meta().expiry_unix_seconds = now + 10;
  ASSERT_TRUE(harness.Write(block).ok());
  harness.Restart();
  harness.clock.SetUnixSeconds(now + 20);
  size_t visited = 0;
  harness.nvme()->EnumerateInSlices([&visited](const BlockMeta&) { ++visited; }, [] {});
  harness.executor.RunAll();
  EXPECT_EQ(visited, 0u);
  harness.clock.SetUnixSeconds(now);
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  EXPECT_EQ(harness.Erase({.tenant = block.id().tenant, .key = {}}).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
}

// It was dropped as corrupt, in memory; the drive has it as it was.
TEST(NvmeFaultsTest, AnErasureCoversABlockThatIsGoneOnlyFromMemory) {
  NvmeHarness harness(Small());
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  const std::vector<std::byte> before = harness.media[0]->Bytes(0, 0, kSegment);
  for (uint64_t page = 4; page < kSegment / kPageBytes; ++page) {
    if (std::memcmp(before.data() + page * kPageBytes, block.raw().data(), kPageBytes) == 0) {
      harness.media[0]->FlipBit(0, page * kPageBytes, 0);
    }
  }
  ASSERT_EQ(harness.Read(block).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.tier()->Usage().block_count, 0u);
}

TEST(NvmeFaultsTest, AStartDoesNotWaitForADriveThatHangsWhileItIsMarked) {
  NvmeHarness harness(Small());
  TestBlock expired(1, 8192);
  expired.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
  const TestBlock block(2, 8192);
  ASSERT_TRUE(harness.Write(expired).ok());
  ASSERT_TRUE(harness.Write(block).ok());
  harness.Unmount();
  harness.clock.SetUnixSeconds(expired.meta().expiry_unix_seconds);
  const std::shared_ptr<MemoryMedia> media = harness.media[0]->Clone();
  harness.Mount();
  const uint64_t requests = harness.disks[0]->requests_done();
  harness.Unmount();

  NvmeHarness again(Small(), {media});
  again.clock.SetUnixSeconds(expired.meta().expiry_unix_seconds);
  again.MountWithoutRecovery();
  bool hangs = false;
  again.disks[0]->SetFault([&](const IoRequest& request) {
    hangs |= request.kind == IoKind::kWrite;
    return Status();
  });
  again.disks[0]->StopAfter(requests - 2);  // The last two write both copies of the map.
  bool done = false;
  again.nvme()->Recover([&done](const Status&) { done = true; });
  again.Advance(6 * kSecond);
  EXPECT_TRUE(done);
  EXPECT_FALSE(hangs);
  again.disks[0]->StopAfter(UINT64_MAX);
  again.disks[0]->Hang(false);
  again.Advance(3 * kSecond);
  EXPECT_EQ(again.listener.found, 1);
  EXPECT_TRUE(again.Read(block).ok());
}

TEST(NvmeFaultsTest, AnErasureWaitsForMarksOnAnotherDriveInsteadOfFailing) {
  NvmeHarness harness(Small(), 2);
  const TestBlock first(1, 8192);
  const TestBlock second(2, 8192);
  ASSERT_TRUE(harness.Write(first).ok());
  ASSERT_TRUE(harness.Write(second).ok());
  // The page that names a block fails on the first drive: it may be there, unmarked.
  bool failed = false;
  harness.disks[0]->SetFault([&failed](const IoRequest& request) {
    if (request.kind != IoKind::kWrite || request.data.size() != kPageBytes || failed) {
      return Status();
    }
    failed = true;
    return Status(Code::kNoSpace);
  });
  EXPECT_EQ(harness.Write(TestBlock(3, 8192)).code(), Code::kNoSpace);
  ASSERT_TRUE(failed);
  EXPECT_TRUE(harness.Erase(second.id()).ok());
}

TEST(NvmeFaultsTest, ADriveThatIsReadInTheEndKeepsNoErasureWaiting) {
  NvmeHarness harness(Small());
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.Unmount();
  harness.MountWithoutRecovery();
  harness.disks[0]->FailAll(IoKind::kRead, Code::kUnavailable);
  ASSERT_FALSE(harness.RecoverNow().ok());
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kUnavailable);
  harness.disks[0]->FailAll(IoKind::kRead, Code::kOk);
  harness.Advance(2 * kSecond);
  EXPECT_TRUE(harness.Erase(block.id()).ok());
}

// It waits for another drive's marks meanwhile, and the copy was not known when it began.
TEST(NvmeFaultsTest, AnErasureCoversACopyOnADriveThatIsReadMeanwhile) {
  NvmeHarness harness(Small(), 2);
  const TestBlock one(1, 8192);
  const TestBlock two(2, 8192);
  ASSERT_TRUE(harness.Write(one).ok());
  ASSERT_TRUE(harness.Write(two).ok());
  harness.Unmount();
  harness.MountWithoutRecovery();
  harness.disks[1]->FailAll(IoKind::kRead, Code::kUnavailable);
  ASSERT_TRUE(harness.RecoverNow().ok());
  const bool first_is_there = harness.Read(one).ok();
  const TestBlock& there = first_is_there ? one : two;
  const TestBlock& unread = first_is_there ? two : one;
  ASSERT_TRUE(harness.Read(there).ok());
  ASSERT_EQ(harness.Read(unread).code(), Code::kNotFound);

  harness.disks[0]->Hang(true);
  Batch<EraseOp> batch;
  batch.ops.push_back({.id = there.id(), .status = {}});
  batch.ops.push_back({.id = unread.id(), .status = {}});
  bool done = false;
  batch.on_done = [&done](Batch<EraseOp>&) { done = true; };
  harness.tier()->Erase(&batch);
  harness.disks[1]->FailAll(IoKind::kRead, Code::kOk);
  harness.Advance(3 * kSecond);
  ASSERT_TRUE(harness.Read(unread).ok());
  harness.disks[0]->Hang(false);
  harness.executor.RunAll();
  ASSERT_TRUE(done);
  EXPECT_EQ(batch.ops[1].status.code(), Code::kUnavailable);
  EXPECT_TRUE(harness.Erase(unread.id()).ok());
  harness.Restart();
  EXPECT_EQ(harness.Read(unread).code(), Code::kNotFound);
}

TEST(NvmeFaultsTest, ASegmentThatCouldNotBeFreedIsTriedAgainThoughNothingElseHappens) {
  NvmeHarness harness(Small(4));
  bool failed = false;
  const int64_t well_again = harness.NowNanos() + 2 * kSecond;
  harness.disks[0]->SetFault([&](const IoRequest& request) {
    const bool frees =
        request.kind == IoKind::kWrite && request.offset == 0 && request.data.size() == kPageBytes;
    if (!frees || harness.NowNanos() >= well_again) return Status();
    failed = true;
    return Status(Code::kBusy);
  });
  std::vector<std::unique_ptr<TestBlock>> blocks;
  Batch<WriteOp> batch;
  for (uint64_t i = 0; i < 40; ++i) {
    blocks.push_back(std::make_unique<TestBlock>(i, 16 << 10));
    batch.ops.push_back(blocks.back()->ToWrite());
  }
  bool done = false;
  batch.on_done = [&done](Batch<WriteOp>&) { done = true; };
  harness.tier()->Write(&batch);
  harness.Advance(5 * kSecond);
  EXPECT_TRUE(failed);
  EXPECT_TRUE(done);
}

TEST(NvmeFaultsTest, ABlockThatIsPinnedWhileItsSegmentIsReclaimedIsNotDropped) {
  NvmeHarness harness(Small(4));
  harness.listener.choose = [&](std::span<const BlockId> ids, std::vector<size_t>*) {
    if (harness.listener.pinned.empty()) harness.listener.pinned = {ids[1]};
  };
  for (uint64_t i = 0; i < 60; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  ASSERT_EQ(harness.listener.pinned.size(), 1u);
  EXPECT_FALSE(harness.listener.lost.empty());
  EXPECT_FALSE(harness.listener.lost.contains(*harness.listener.pinned.begin()));
}

// The page that was to name them, and the footer, never got to the drive; only the map, which says
// that they are deleted.
TEST(NvmeFaultsTest, ARecordIsNotGivenTheNumberOfOneThatWasDeadFromTheStart) {
  NvmeHarness harness(Small());
  ASSERT_TRUE(harness.Write(TestBlock(1, 8192)).ok());
  harness.disks[0]->SetFault([](const IoRequest& request) {
    const bool page = request.kind == IoKind::kWrite && request.data.size() == kPageBytes;
    return page && request.offset >= DataOffset(kSegment) ? Status(Code::kNoSpace) : Status();
  });
  const TestBlock failed(2, 8192);
  ASSERT_EQ(harness.Write(failed).code(), Code::kNoSpace);
  ASSERT_EQ(harness.Erase(failed.id()).code(), Code::kNotFound);
  ASSERT_GT(harness.Counter("map_writes"), 0u);
  SeededRandom tearing(1);
  harness.Crash(&tearing);
  harness.Mount();
  const TestBlock block(3, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.Restart();
  EXPECT_TRUE(harness.Read(block).ok());
}

// Its map is written again when another block of the drive is deleted.
TEST(NvmeFaultsTest, WhatWasDeletedOfASegmentThatCannotBeReadStaysDeleted) {
  NvmeHarness harness(Small());
  const TestBlock deleted(1, 8192);
  const TestBlock kept(2, 8192);
  ASSERT_TRUE(harness.Write(deleted).ok());
  ASSERT_TRUE(harness.Write(kept).ok());
  // It is marked in one of its two maps when the process dies.
  Batch<EraseOp> erase;
  erase.ops.push_back({.id = deleted.id(), .status = {}});
  bool erased = false;
  erase.on_done = [&](Batch<EraseOp>&) {
    erased = true;
    harness.disks[0]->StopAfter(harness.disks[0]->requests_done());
  };
  harness.tier()->Erase(&erase);
  ASSERT_TRUE(harness.RunUntil([&] { return erased; }));
  ASSERT_TRUE(erase.ops[0].status.ok());
  harness.Unmount();

  // Its header and maps can be read, its records cannot.
  harness.MountWithoutRecovery();
  harness.disks[0]->SetFault([](const IoRequest& request) {
    const bool of_records = request.offset == DataOffset(kSegment) && request.file == 0;
    return request.kind == IoKind::kRead && of_records ? Status(Code::kUnavailable) : Status();
  });
  ASSERT_TRUE(harness.RecoverNow().ok());
  ASSERT_EQ(harness.Read(kept).code(), Code::kNotFound);
  const TestBlock other(3, 8192);
  ASSERT_TRUE(harness.Write(other).ok());
  EXPECT_EQ(harness.Erase(other.id()).code(), Code::kUnavailable);  // It may be there, too.
  harness.Restart();
  EXPECT_EQ(harness.Read(deleted).code(), Code::kNotFound);
  EXPECT_TRUE(harness.Read(kept).ok());
}

// A process that dies leaves writes behind which were not synced. They are read at the next start.
TEST(NvmeFaultsTest, WhatAStartFindsIsNotLostWithThePowerAfterwards) {
  NvmeTierOptions options = Small();
  options.sync = true;
  NvmeHarness harness(options);
  harness.media[0]->set_reorder_until_sync(true);
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  Batch<EraseOp> erase;
  erase.ops.push_back({.id = block.id(), .status = {}});
  harness.tier()->Erase(&erase);
  // The mark is written, and not synced.
  const uint64_t before = harness.disks[0]->requests_done();
  harness.disks[0]->StopAfter(before + 1);
  harness.executor.RunAll();
  harness.Unmount();
  harness.Mount();
  ASSERT_EQ(harness.Erase(block.id()).code(), Code::kNotFound);
  for (uint64_t seed = 0; seed < 16; ++seed) {
    NvmeHarness after(options, std::vector{harness.media[0]->Clone()});
    SeededRandom losing(seed);
    after.media[0]->LoseUnsynced(&losing);
    after.Mount();
    EXPECT_EQ(after.Read(block).code(), Code::kNotFound);
  }
}

TEST(NvmeFaultsTest, ADriveThatCannotBeSyncedAtTheStartIsTriedAgain) {
  NvmeTierOptions options = Small();
  options.sync = true;
  NvmeHarness harness(options);
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.Unmount();
  harness.MountWithoutRecovery();
  harness.disks[0]->FailAll(IoKind::kSync, Code::kUnavailable);
  EXPECT_FALSE(harness.RecoverNow().ok());
  EXPECT_EQ(harness.Read(block).code(), Code::kUnavailable);
  harness.disks[0]->FailAll(IoKind::kSync, Code::kOk);
  harness.Advance(2 * kSecond);
  EXPECT_TRUE(harness.Read(block).ok());
}

// It was found on one drive; a later record, on a drive that came late, had given it less time.
TEST(NvmeFaultsTest, ABlockWhoseTimeIsOverByALateDrivesRecordIsReportedLost) {
  NvmeHarness early(Small());
  NvmeHarness late(Small());
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = early.clock.UnixSeconds() + 1000;
  ASSERT_TRUE(early.Write(block).ok());
  late.Unmount();
  late.clock.SetUnixSeconds(late.clock.UnixSeconds() + 1);
  late.Mount();
  block.meta().expiry_unix_seconds = late.clock.UnixSeconds() + 10;
  ASSERT_TRUE(late.Write(block).ok());

  NvmeHarness both(Small(16), std::vector{early.media[0]->Clone(), late.media[0]->Clone()});
  both.clock.SetUnixSeconds(late.clock.UnixSeconds() + 100);
  both.MountWithoutRecovery();
  both.disks[1]->FailAll(IoKind::kRead, Code::kUnavailable);
  ASSERT_TRUE(both.RecoverNow().ok());
  ASSERT_TRUE(both.Read(block).ok());
  both.disks[1]->FailAll(IoKind::kRead, Code::kOk);
  both.Advance(2 * kSecond);
  EXPECT_EQ(both.Read(block).code(), Code::kNotFound);
  EXPECT_TRUE(both.listener.lost.contains(block.id()));
}

TEST(NvmeFaultsTest, WritesThatWaitForReclaimAreAnsweredThoughNothingMayGo) {
  struct Nothing final : ReclaimChoice {
    void Add(std::span<const BlockId>) override {}
    bool MayReclaim(uint64_t) override { return false; }
    std::vector<uint32_t> Order() override { return {}; }
  };
  struct Listener final : TierListener {
    void OnLost(std::span<const BlockId>, Code) override {}
    std::unique_ptr<ReclaimChoice> OnReclaim() override { return std::make_unique<Nothing>(); }
    void OnHealth(bool, const Status&) override {}
  } listener;
  ManualClock clock;
  ManualExecutor executor(&clock);
  SeededRandom random(1);
  MemoryDisk disk(std::make_shared<MemoryMedia>(), {}, &executor);
  auto tier = NewNvmeTier(Small(4), {&disk}, &listener, &executor, &executor, &clock, &random);
  ASSERT_TRUE(tier.ok());
  (*tier)->Recover([](const Status&) {});
  executor.RunAll();
  // All but the last segment, which is for what reclaim moves; and then some more.
  for (const uint64_t count : {18, 4}) {
    std::vector<std::unique_ptr<TestBlock>> blocks;
    Batch<WriteOp> batch;
    for (uint64_t i = 0; i < count; ++i) {
      blocks.push_back(std::make_unique<TestBlock>(100 * count + i, 16 << 10));
      batch.ops.push_back(blocks.back()->ToWrite());
    }
    bool done = false;
    batch.on_done = [&done](Batch<WriteOp>&) { done = true; };
    (*tier)->Write(&batch);
    executor.AdvanceAndRun(5 * kSecond);
    EXPECT_TRUE(done) << count;
  }
  tier->reset();
}

}  // namespace
}  // namespace aquifer
