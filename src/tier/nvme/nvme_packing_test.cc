// What the NVMe tier keeps is sealed, and only who has the key can read it; the log itself needs
// none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "testing/test_level.h"
#include "tier/nvme/nvme_small.h"

namespace aquifer {
namespace {

TEST(NvmePackingTest, SealedBlocksSurviveARestartThatKnowsNoKey) {
  NvmeHarness harness(Small(), 1, true);
  const auto blocks = Blocks(0, 30, 5000);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.Restart();
  EXPECT_EQ(harness.tier()->Usage().block_count, 30u);
  for (const BlockMeta& meta : harness.Metas()) {
    EXPECT_NE(meta.data_key_id, DataKeyId{});
    EXPECT_EQ(meta.stored_bytes, 5000u);
  }
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmePackingTest, BlocksThatBecomeSmallerTakeFewerPages) {
  NvmeTierOptions options = Small();
  options.lossless = LosslessUse::kAlways;
  for (const bool seal : {false, true}) {
    NvmeHarness harness(options, 1, true);
    Packer plain({}, &harness.clock, &harness.random);
    if (!seal) {
      harness.options.packer = &plain;
      harness.Restart();
    }
    std::vector<TestBlock> blocks;
    for (uint64_t i = 0; i < 10; ++i) blocks.push_back(TestBlock::OfBFloat16(i, 16 << 10));
    for (const TestBlock& block : blocks) {
      Batch<WriteOp> batch;
      batch.ops = {block.ToWrite()};
      batch.ops[0].dtype = DType::kBFloat16;
      harness.tier()->Write(&batch);
      harness.executor.RunAll();
      ASSERT_TRUE(batch.ops[0].status.ok()) << batch.ops[0].status.ToString();
    }
    EXPECT_LE(harness.tier()->Usage().live_bytes, 10u * (12 << 10));
    harness.Restart();
    EXPECT_LE(harness.tier()->Usage().live_bytes, 10u * (12 << 10));
    for (const TestBlock& block : blocks) EXPECT_TRUE(harness.Read(block).ok());
    for (const TestBlock& block : blocks) EXPECT_TRUE(harness.Erase(block.id()).ok());
    EXPECT_EQ(harness.tier()->Usage().live_bytes, 0u);
    harness.Unmount();
  }
}

TEST(NvmePackingTest, NothingAtRestIsPlain) {
  for (const bool seal : {false, true}) {
    NvmeHarness harness(Small(), 1, seal);
    const TestBlock block(1, 16 << 10);
    ASSERT_TRUE(harness.Write(block).ok());
    size_t found = 0;
    for (const DiskFile& file : harness.media[0]->List()) {
      const std::vector<std::byte> all = harness.media[0]->Bytes(file.number, 0, file.bytes);
      for (size_t at = 0; at + 16 <= block.raw().size(); at += 512) {
        if (!std::ranges::search(all, block.raw().subspan(at, 16)).empty()) ++found;
      }
    }
    EXPECT_EQ(found, seal ? 0u : (16u << 10) / 512);
  }
}

TEST(NvmePackingTest, EveryFlippedBitOfAPayloadIsRefusedAndCounted) {
  const size_t step = ByTestLevel<size_t>(1009, 211, 17);
  NvmeHarness harness(Small(), 1, true);
  const TestBlock block(1, 5000);
  uint64_t refused = 0;
  for (size_t bit = 0; bit < 5000 * 8; bit += step) {
    ASSERT_TRUE(harness.Write(block).ok());
    const NvmeHarness::Place place = harness.PlaceOf(block.id());
    harness.media[0]->FlipBit(place.file, place.offset + bit / 8, static_cast<int>(bit % 8));
    EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt) << bit;
    EXPECT_EQ(harness.Counter("refused_seals"), ++refused);
    EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  }
}

// What a header says is proven too: no bit of it can be changed, even with its checksums made
// right.
TEST(NvmePackingTest, NoFlippedBitOfTheLogServesWrongBytes) {
  NvmeHarness harness(Small(), 1, true);
  const auto blocks = Blocks(0, 6, 5000);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.Unmount();
  const std::vector<std::shared_ptr<MemoryMedia>> honest = {harness.media[0]->Clone()};
  const size_t step = ByTestLevel<size_t>(20'011, 4001, 401);
  const uint32_t file = honest[0]->List()[0].number;
  for (size_t bit = 0; bit < kSegment * 8; bit += step) {
    harness.media = {honest[0]->Clone()};
    harness.media[0]->FlipBit(file, bit / 8, static_cast<int>(bit % 8));
    harness.MountWithoutRecovery();
    (void)harness.RecoverNow();
    for (const auto& block : blocks) (void)harness.Read(*block);  // Judges the bytes itself.
    harness.Unmount();
  }
  harness.media = honest;
  harness.Mount();
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmePackingTest, TwoPayloadsThatWereSwappedAreRefused) {
  NvmeHarness harness(Small(), 1, true);
  const TestBlock one(1, 8192);
  const TestBlock other(4, 8192);  // Of the same tenant.
  ASSERT_TRUE(harness.Write(one).ok());
  ASSERT_TRUE(harness.Write(other).ok());
  const NvmeHarness::Place a = harness.PlaceOf(one.id());
  const NvmeHarness::Place b = harness.PlaceOf(other.id());
  harness.media[0]->SwapRanges(a.file, a.offset, b.file, b.offset, 8192);
  EXPECT_EQ(harness.Read(one).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Read(other).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Counter("refused_seals"), 2u);
}

TEST(NvmePackingTest, WithoutItsKeyATenantIsNeitherReadNorWritten) {
  NvmeHarness harness(Small(), 1, true);
  const TestBlock block(1, 5000);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.keys.Forget(block.id().tenant);
  EXPECT_EQ(harness.Read(block).code(), Code::kBusy);
  EXPECT_EQ(harness.Write(TestBlock(4, 5000)).code(), Code::kBusy);
  EXPECT_EQ(harness.Counter("without_key"), 2u);
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kOk);  // That needs no key.
}

TEST(NvmePackingTest, AfterItsKeyWasDestroyedATenantsBlocksAreRefusedAndWrittenAnew) {
  NvmeHarness harness(Small(), 1, true);
  const TestBlock block(1, 5000);
  const TestBlock again(4, 5000);
  ASSERT_TRUE(harness.Write(block).ok());
  ASSERT_TRUE(harness.Write(again).ok());
  harness.keys.Change(block.id().tenant);
  EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Counter("refused_seals"), 1u);
  EXPECT_TRUE(harness.listener.lost.contains(block.id()));
  // The same bytes: but what is there cannot be opened any more.
  EXPECT_TRUE(harness.Write(again).ok());
  EXPECT_TRUE(harness.Read(again).ok());
  harness.Restart();
  EXPECT_TRUE(harness.Read(again).ok());
}

TEST(NvmePackingTest, PlainBlocksOfAnEarlierLifeAreNotReadWhereBlocksAreSealed) {
  NvmeHarness harness(Small(), 1, true);
  harness.options.packer = nullptr;
  harness.Restart();
  const TestBlock block(1, 5000);
  ASSERT_TRUE(harness.Write(block).ok());
  ASSERT_TRUE(harness.Read(block).ok());
  harness.options.packer = harness.packer.get();
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
  EXPECT_TRUE(harness.Write(block).ok());
  harness.options.packer = nullptr;  // And the other way round.
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
  harness.Unmount();
}

TEST(NvmePackingTest, AnErasedOrExpiredRecordDoesNotComeBackThoughItsSealHolds) {
  NvmeHarness harness(Small(), 1, true);
  const TestBlock erased(1, 5000);
  TestBlock expired(2, 5000);
  expired.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
  ASSERT_TRUE(harness.Write(erased).ok());
  ASSERT_TRUE(harness.Write(expired).ok());
  ASSERT_TRUE(harness.Erase(erased.id()).ok());
  harness.clock.SetUnixSeconds(expired.meta().expiry_unix_seconds);
  harness.Restart();
  EXPECT_GT(harness.PlaceOf(erased.id()).offset, 0u) << "it should still lie there";
  EXPECT_EQ(harness.Read(erased).code(), Code::kNotFound);
  EXPECT_EQ(harness.Read(expired).code(), Code::kNotFound);
}

// Whoever can write to the drive can put back what lay there before: the mark of a deletion lies
// beside what it deletes (see the known limits). What comes back so is what it was, and no more.
TEST(NvmePackingTest, ADriveThatIsPutBackShowsNothingThatHasExpiredOrWhoseKeyIsDestroyed) {
  NvmeHarness harness(Small(), 1, true);
  const TestBlock erased(1, 5000);
  const TestBlock deleted(3, 5000);  // Of a tenant that is deleted.
  TestBlock expired(2, 5000);
  expired.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
  for (const TestBlock* block : {&erased, &deleted, &std::as_const(expired)}) {
    ASSERT_TRUE(harness.Write(*block).ok());
  }
  harness.Restart();
  const std::vector<std::shared_ptr<MemoryMedia>> before = {harness.media[0]->Clone()};
  for (const BlockId& id : {erased.id(), deleted.id(), expired.id()}) {
    ASSERT_TRUE(harness.Erase(id).ok());
  }
  harness.keys.Change(deleted.id().tenant);
  harness.clock.SetUnixSeconds(expired.meta().expiry_unix_seconds);
  harness.Unmount();
  harness.media = before;
  harness.Mount();
  EXPECT_EQ(harness.Read(expired).code(), Code::kNotFound);
  EXPECT_EQ(harness.Read(deleted).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Counter("refused_seals"), 1u);
  EXPECT_TRUE(harness.Read(erased).ok()) << "if it is refused, the known limits say too much";
}

TEST(NvmePackingTest, ABlockThatIsRenewedIsSealedAnew) {
  NvmeHarness harness(Small(), 1, true);
  TestBlock block(1, 5000);
  ASSERT_TRUE(harness.Write(block).ok());
  std::vector<BlockMeta> metas = harness.Metas();
  block.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 100;
  Batch<WriteOp> batch;
  batch.ops = {block.ToWrite()};
  batch.ops[0].replace = true;
  harness.tier()->Write(&batch);
  harness.executor.RunAll();
  ASSERT_TRUE(batch.ops[0].status.ok());
  EXPECT_NE(harness.Metas()[0].nonce, metas[0].nonce);
  EXPECT_EQ(harness.Metas()[0].expiry_unix_seconds, block.meta().expiry_unix_seconds);
  EXPECT_TRUE(harness.Read(block).ok());
  harness.Restart();
  EXPECT_TRUE(harness.Read(block).ok());
}

TEST(NvmePackingTest, ReclaimMovesWhatIsSealedWithoutAnyKey) {
  NvmeHarness harness(Small(6), 1, true);
  harness.listener.choose = KeepAll;
  std::vector<std::unique_ptr<TestBlock>> blocks;
  for (uint64_t i = 0; i < 300; ++i) {
    blocks.push_back(std::make_unique<TestBlock>(i, 5000));
    ASSERT_TRUE(harness.Write(*blocks.back()).ok());
  }
  EXPECT_GT(harness.Counter("reclaim_moved_blocks"), 0u);
  harness.Restart();
  size_t there = 0;
  for (const auto& block : blocks) {
    const Status status = harness.Read(*block);
    EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound) << status.ToString();
    if (status.ok()) ++there;
  }
  EXPECT_GT(there, 30u);
  EXPECT_EQ(harness.Counter("refused_seals"), 0u);
}

TEST(NvmePackingTest, BlocksWaitTheirTurnForScratchMemory) {
  NvmeTierOptions options = Small();
  options.scratch_bytes = 20'000;  // Two at a time.
  NvmeHarness harness(options, 1, true);
  const auto blocks = Blocks(0, 40, 5000);
  Batch<WriteOp> batch;
  for (const auto& block : blocks) batch.ops.push_back(block->ToWrite());
  bool done = false;
  batch.on_done = [&](Batch<WriteOp>&) { done = true; };
  harness.tier()->Write(&batch);
  harness.executor.RunAll();
  EXPECT_TRUE(done);
  for (const WriteOp& op : batch.ops) EXPECT_TRUE(op.status.ok()) << op.status.ToString();
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmePackingTest, ATierMayBeDestroyedWhileItsDriveHangsWithSealedBlocks) {
  NvmeHarness harness(Small(), 1, true);
  ASSERT_TRUE(harness.Write(TestBlock(1, 5000)).ok());
  harness.disks[0]->Hang(true);
  const TestBlock block(2, 5000);
  Batch<WriteOp> batch;
  batch.ops = {block.ToWrite()};
  harness.tier()->Write(&batch);
  harness.executor.RunAll();
  harness.nvme_tier.reset();
  harness.disks[0]->Hang(false);  // The drive writes what it was given.
  harness.executor.RunAll();
  harness.disks.clear();
  harness.executor.RunAll();
  harness.Mount();
  EXPECT_TRUE(harness.Read(TestBlock(1, 5000)).ok());
}

}  // namespace
}  // namespace aquifer
