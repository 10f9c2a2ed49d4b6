// What the NVMe tier promises beyond tier.h: restarts, reclaim, caps, faults of drives.
#include "tier/nvme_tier.h"

#include <cstring>
#include <set>

#include "aquifer/checksum.h"
#include "tier/nvme_format.h"
#include "tier/nvme_harness.h"

namespace aquifer {
namespace {

constexpr uint64_t kSegment = 128 << 10;

NvmeTierOptions Small(uint64_t segments = 8) {
  NvmeTierOptions options;
  options.segment_bytes = kSegment;
  options.capacity_bytes = segments * kSegment;
  options.max_block_bytes = 16 << 10;
  return options;
}

std::vector<std::unique_ptr<TestBlock>> Blocks(uint64_t first, uint64_t count, uint64_t bytes) {
  std::vector<std::unique_ptr<TestBlock>> blocks;
  for (uint64_t i = first; i < first + count; ++i) {
    blocks.push_back(std::make_unique<TestBlock>(i, bytes));
  }
  return blocks;
}

// Until a segment is sealed, so that there is a footer.
std::vector<std::unique_ptr<TestBlock>> FillSegments(NvmeHarness* harness, uint64_t sealed) {
  std::vector<std::unique_ptr<TestBlock>> blocks;
  while (harness->Counter("segments_sealed") < sealed) {
    blocks.push_back(std::make_unique<TestBlock>(blocks.size(), 5000));
    EXPECT_TRUE(harness->Write(*blocks.back()).ok());
  }
  return blocks;
}

// Keeps everything, oldest first.
void KeepAll(std::span<const BlockId> ids, std::vector<size_t>* order) {
  for (size_t i = 0; i < ids.size(); ++i) order->push_back(i);
}

// ---- Making one ----

TEST(NvmeTierTest, WrongOptionsAreRefusedByName) {
  ManualClock clock;
  ManualExecutor executor(&clock);
  SeededRandom random(1);
  auto media = std::make_shared<MemoryMedia>();
  MemoryDisk disk(media, {}, &executor);
  const auto make = [&](const NvmeTierOptions& options) {
    return NewNvmeTier(options, {&disk}, nullptr, &executor, &executor, &clock, &random).status();
  };
  NvmeTierOptions options = Small();
  EXPECT_TRUE(make(options).ok());
  options.capacity_bytes = 3 * kSegment;
  EXPECT_EQ(make(options).code(), Code::kInvalid);
  EXPECT_NE(make(options).message().find("lower segment_bytes"), std::string::npos);
  options = Small();
  options.segment_bytes = 5000;
  EXPECT_NE(make(options).message().find("multiple of 4096"), std::string::npos);
  options = Small();
  options.segment_bytes = 32 << 10;
  EXPECT_NE(make(options).message().find("raise segment_bytes"), std::string::npos);
  options = Small();
  options.capacity_bytes = 100 << 10;
  EXPECT_NE(make(options).message().find("raise capacity_bytes"), std::string::npos);
  options = Small();
  options.max_block_bytes = 0;
  EXPECT_EQ(make(options).code(), Code::kInvalid);
  options = Small();
  options.max_queued_ops = 0;
  EXPECT_EQ(make(options).code(), Code::kInvalid);
  EXPECT_EQ(
      NewNvmeTier(Small(), {}, nullptr, &executor, &executor, &clock, &random).status().code(),
      Code::kInvalid);
}

TEST(NvmeTierTest, TheSegmentSizeFollowsFromTheCapacity) {
  // Seen in the size of the first file.
  const auto first_file = [](uint64_t capacity, uint64_t block) {
    NvmeTierOptions options;
    options.capacity_bytes = capacity;
    options.max_block_bytes = block;
    NvmeHarness harness(options);
    EXPECT_TRUE(harness.Write(TestBlock(1, 4096)).ok());
    return harness.media_[0]->Size(0);
  };
  EXPECT_EQ(first_file(uint64_t{1} << 40, 64 << 20), uint64_t{1} << 30);
  EXPECT_EQ(first_file(uint64_t{64} << 30, 64 << 20), uint64_t{256} << 20);
  EXPECT_EQ(first_file(uint64_t{4} << 30, 8 << 20), uint64_t{64} << 20);
  EXPECT_EQ(first_file(uint64_t{4} << 30, 64 << 20), uint64_t{128} << 20);
  EXPECT_EQ(first_file(uint64_t{4} << 20, 64 << 10), uint64_t{1} << 20);
}

TEST(NvmeTierTest, BeforeRecoveryEverythingIsUnavailable) {
  NvmeHarness harness(Small(), std::vector{std::make_shared<MemoryMedia>()});
  harness.MountWithoutRecovery();
  EXPECT_EQ(harness.Write(TestBlock(1, 4096)).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Read(TestBlock(1, 4096)).code(), Code::kUnavailable);
  EXPECT_FALSE(harness.tier()->in_service());
}

// ---- Restarting ----

TEST(NvmeTierTest, ASealedSegmentIsFoundAgainByItsFooter) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 2);
  harness.Restart();
  const NvmeRecovery& found = harness.nvme()->recovery();
  EXPECT_EQ(found.segments_by_footer, 2u);
  EXPECT_EQ(found.segments_by_scan, 1u);
  EXPECT_EQ(found.blocks, blocks.size());
  EXPECT_EQ(found.corrupt_records, 0u);
  EXPECT_TRUE(found.messages.empty());
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeTierTest, PayloadsAreNotReadAtStart) {
  NvmeTierOptions options;
  options.capacity_bytes = uint64_t{64} << 20;
  options.segment_bytes = uint64_t{8} << 20;
  options.max_block_bytes = 1 << 20;
  NvmeHarness harness(options);
  for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 1 << 20)).ok());
  harness.Restart();
  EXPECT_EQ(harness.nvme()->recovery().blocks, 16u);
  EXPECT_LT(harness.nvme()->recovery().bytes_read, uint64_t{1} << 20);
}

TEST(NvmeTierTest, TheOpenSegmentIsFilledFurtherAfterARestart) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 12, 5000);
  for (const auto& block : blocks) {
    ASSERT_TRUE(harness.Write(*block).ok());
    harness.Restart();
  }
  EXPECT_LE(harness.media_[0]->List().size(), 3u);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeTierTest, LeftoversBehindTheEndOfTheLogAreNotTakenForItsContinuation) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 3, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.Unmount();
  // As if the process had died with the page of the second group not written and the third's there.
  const uint64_t second = DataOffset(kSegment) + 3 * kPageBytes;
  harness.media_[0]->SetBytes(0, second, std::vector<std::byte>(kPageBytes));
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().blocks, 1u);
  const TestBlock instead(10, 8192);  // Ends where the second block ended.
  ASSERT_TRUE(harness.Write(instead).ok());
  harness.Restart();
  EXPECT_EQ(harness.nvme()->recovery().blocks, 2u);
  EXPECT_TRUE(harness.Read(instead).ok());
  EXPECT_EQ(harness.Read(*blocks[2]).code(), Code::kNotFound);
}

TEST(NvmeTierTest, AFooterOfManyPagesIsReadInASecondPiece) {
  NvmeTierOptions options;
  options.capacity_bytes = uint64_t{32} << 20;
  options.segment_bytes = uint64_t{8} << 20;
  options.max_block_bytes = 4096;
  NvmeHarness harness(options);
  std::vector<std::unique_ptr<TestBlock>> blocks;
  while (harness.Counter("segments_sealed") == 0) {
    std::vector<const TestBlock*> batch;
    for (int i = 0; i < 48; ++i) {
      blocks.push_back(std::make_unique<TestBlock>(blocks.size(), 4096));
      batch.push_back(blocks.back().get());
    }
    harness.Write(batch);
  }
  EXPECT_GT(blocks.size(), 1000u);
  harness.Restart();
  EXPECT_EQ(harness.nvme()->recovery().segments_by_footer, 1u);
  EXPECT_EQ(harness.nvme()->recovery().blocks, blocks.size());
  for (size_t i = 0; i < blocks.size(); i += 97) EXPECT_TRUE(harness.Read(*blocks[i]).ok());
}

TEST(NvmeTierTest, ADamagedFooterPageIsReplacedByAScan) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  harness.media_[0]->FlipBit(0, kSegment - 2 * kPageBytes + 100, 3);
  harness.Mount();
  const NvmeRecovery& found = harness.nvme()->recovery();
  EXPECT_EQ(found.segments_by_footer, 0u);
  EXPECT_EQ(found.segments_by_scan, 2u);
  EXPECT_EQ(found.blocks, blocks.size());
  ASSERT_EQ(found.messages.size(), 1u);
  EXPECT_NE(found.messages[0].find("footer is damaged"), std::string::npos);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeTierTest, ADamagedTrailerIsReplacedByAScan) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  harness.media_[0]->FlipBit(0, kSegment - kPageBytes, 3);
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().blocks, blocks.size());
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
  harness.Restart();  // It was given a new footer, or is open.
  EXPECT_EQ(harness.nvme()->recovery().blocks, blocks.size());
}

TEST(NvmeTierTest, ErasuresSurviveARestartEvenWhenOneMapIsDamaged) {
  for (uint64_t copy = 0; copy < 2; ++copy) {
    NvmeHarness harness(Small());
    const auto blocks = FillSegments(&harness, 1);
    for (size_t i = 0; i < 6; ++i) ASSERT_TRUE(harness.Erase(blocks[i]->id()).ok());
    harness.Unmount();
    harness.media_[0]->FlipBit(0, kMapsOffset + copy * MapBytes(kSegment) + 64, 0);
    harness.Mount();
    EXPECT_EQ(harness.nvme()->recovery().blocks_deleted, 6u);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(harness.Read(*blocks[i]).code(), i < 6 ? Code::kNotFound : Code::kOk);
    }
  }
}

TEST(NvmeTierTest, WithBothMapsDamagedNothingOfTheSegmentIsServed) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  for (uint64_t copy = 0; copy < 2; ++copy) {
    harness.media_[0]->FlipBit(0, kMapsOffset + copy * MapBytes(kSegment) + 64, 0);
  }
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().segments_skipped, 1u);
  EXPECT_LE(harness.nvme()->recovery().blocks, 1u);
}

TEST(NvmeTierTest, ManyErasesOfOneSegmentAreOneMapWrite) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 12, 4096);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  const uint64_t before = harness.Counter("map_writes");
  Batch<EraseOp> batch;
  for (const auto& block : blocks) batch.ops.push_back({.id = block->id(), .status = {}});
  harness.tier()->Erase(&batch);
  harness.executor_.RunAll();
  for (const EraseOp& op : batch.ops) EXPECT_TRUE(op.status.ok());
  EXPECT_LE(harness.Counter("map_writes"), before + 2);  // And its mirror.
}

TEST(NvmeTierTest, ABlockErasedWhileItIsWrittenIsGone) {
  NvmeHarness harness(Small());
  const TestBlock block(1, 8192);
  Batch<WriteOp> write;
  write.ops = {block.ToWrite()};
  Batch<EraseOp> erase;
  erase.ops.push_back({.id = block.id(), .status = {}});
  harness.tier()->Write(&write);
  harness.tier()->Erase(&erase);
  harness.executor_.RunAll();
  EXPECT_TRUE(write.ops[0].status.ok());
  EXPECT_TRUE(erase.ops[0].status.ok());
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
}

TEST(NvmeTierTest, ExpiredBlocksAreMissesAndDoNotSurviveARestart) {
  NvmeHarness harness(Small());
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = harness.clock_.UnixSeconds() + 10;
  TestBlock other(2, 8192);
  other.meta().expiry_unix_seconds = harness.clock_.UnixSeconds() + 10;
  ASSERT_TRUE(harness.Write(block).ok());
  ASSERT_TRUE(harness.Write(other).ok());
  EXPECT_TRUE(harness.Read(block).ok());
  harness.clock_.SetUnixSeconds(block.meta().expiry_unix_seconds);
  EXPECT_EQ(harness.tier()->Probe(block.id()).code(), Code::kNotFound);
  size_t visited = 0;
  harness.tier()->Enumerate([&](const BlockMeta&) { ++visited; });
  EXPECT_EQ(visited, 0u);
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  EXPECT_TRUE(harness.listener_.lost.contains(block.id()));
  harness.Restart();
  EXPECT_EQ(harness.nvme()->recovery().blocks_expired, 2u);
  EXPECT_EQ(harness.tier()->Usage().block_count, 0u);
}

TEST(NvmeTierTest, EnumerateIsTheSameAfterARestart) {
  NvmeHarness harness(Small());
  for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 5000, i % 7)).ok());
  const auto list = [&] {
    std::vector<BlockId> ids;
    harness.tier()->Enumerate([&](const BlockMeta& meta) { ids.push_back(meta.id); });
    return ids;
  };
  const std::vector<BlockId> before = list();
  harness.Restart();
  EXPECT_EQ(list(), before);
}

// ---- Files that are not what they should be ----

TEST(NvmeTierTest, AFileOfSomebodyElseIsLeftAloneAndCountsAgainstTheCap) {
  auto media = std::make_shared<MemoryMedia>();
  ASSERT_TRUE(media->Create(3, 2 * kSegment).ok());
  const std::vector<std::byte> words(100, std::byte{0x5A});
  media->SetBytes(3, 0, words);
  NvmeHarness harness(Small(), std::vector{media});
  harness.Mount();
  const NvmeRecovery& found = harness.nvme()->recovery();
  EXPECT_EQ(found.segments_skipped, 1u);
  ASSERT_EQ(found.messages.size(), 1u);
  EXPECT_NE(found.messages[0].find("not a segment of ours"), std::string::npos);
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  EXPECT_LE(media->used_bytes(), 8 * kSegment);
  EXPECT_EQ(media->Bytes(3, 0, 100), words);
}

TEST(NvmeTierTest, ASegmentOfALaterVersionIsLeftAlone) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  const std::byte later[] = {std::byte{2}};
  harness.media_[0]->SetBytes(0, 8, later);
  const std::vector<std::byte> before = harness.media_[0]->Bytes(0, 0, kSegment);
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().segments_skipped, 1u);
  EXPECT_NE(harness.nvme()->recovery().messages[0].find("later version"), std::string::npos);
  for (uint64_t i = 100; i < 200; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  EXPECT_EQ(harness.media_[0]->Bytes(0, 0, kSegment), before);
  EXPECT_LE(harness.media_[0]->used_bytes(), 8 * kSegment);
}

TEST(NvmeTierTest, ASegmentOfAnotherDriveIsLeftAlone) {
  NvmeHarness other(Small());
  const auto theirs = Blocks(1000, 3, 5000);
  for (const auto& block : theirs) ASSERT_TRUE(other.Write(*block).ok());
  other.Unmount();
  NvmeHarness harness(Small());
  harness.random_ = SeededRandom(1234);
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  ASSERT_TRUE(harness.media_[0]->Create(7, kSegment).ok());
  harness.media_[0]->SetBytes(7, 0, other.media_[0]->Bytes(0, 0, kSegment));
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().segments_skipped, 1u);
  for (const auto& block : theirs) EXPECT_EQ(harness.Read(*block).code(), Code::kNotFound);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeTierTest, ASegmentUnderAnotherNumberIsLeftAlone) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  ASSERT_TRUE(harness.media_[0]->Create(7, kSegment).ok());
  harness.media_[0]->SetBytes(7, 0, harness.media_[0]->Bytes(0, 0, kSegment));
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().segments_skipped, 1u);
  EXPECT_EQ(harness.nvme()->recovery().blocks, blocks.size());
}

TEST(NvmeTierTest, ATruncatedFileGivesWhatIsLeftOfIt) {
  for (uint64_t bytes = 0; bytes < kSegment; bytes += 3000) {
    NvmeHarness harness(Small());
    const auto blocks = FillSegments(&harness, 1);
    harness.Unmount();
    harness.media_[0]->Truncate(0, bytes);
    harness.Mount();
    uint64_t there = 0;
    for (const auto& block : blocks) {
      const Status status = harness.Read(*block);
      EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound) << status.ToString();
      if (status.ok()) ++there;
    }
    EXPECT_EQ(there, harness.nvme()->recovery().blocks);
    for (uint64_t i = 100; i < 140; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
    EXPECT_LE(harness.media_[0]->used_bytes(), 8 * kSegment);
  }
}

TEST(NvmeTierTest, SwappedPagesAreNeverServed) {
  NvmeHarness made(Small());
  const auto blocks = FillSegments(&made, 2);
  made.Unmount();
  SeededRandom random(5);
  for (int trial = 0; trial < 300; ++trial) {
    NvmeHarness harness(Small(), std::vector{made.media_[0]->Clone()});
    for (int swaps = 0; swaps < 4; ++swaps) {
      harness.media_[0]->SwapRanges(static_cast<uint32_t>(random.Below(2)),
                                    random.Below(kSegment / kPageBytes) * kPageBytes,
                                    static_cast<uint32_t>(random.Below(2)),
                                    random.Below(kSegment / kPageBytes) * kPageBytes, kPageBytes);
    }
    harness.Mount();
    for (const auto& block : blocks) {
      const Status status = harness.Read(*block);  // Checks the bytes.
      EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound ||
                  status.code() == Code::kCorrupt);
    }
  }
}

TEST(NvmeTierTest, FlippedBitsAnywhereAreNeverServed) {
  NvmeHarness made(Small());
  const auto blocks = FillSegments(&made, 2);
  std::set<size_t> erased;
  for (size_t i = 0; i < blocks.size(); i += 5) {
    ASSERT_TRUE(made.Erase(blocks[i]->id()).ok());
    erased.insert(i);
  }
  made.Unmount();
  SeededRandom random(6);
  uint64_t lost = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    NvmeHarness harness(Small(), std::vector{made.media_[0]->Clone()});
    const uint64_t flips = 1 + random.Below(3);
    for (uint64_t i = 0; i < flips; ++i) {
      harness.media_[0]->FlipBit(static_cast<uint32_t>(random.Below(3)), random.Below(kSegment),
                                 static_cast<int>(random.Below(8)));
    }
    harness.Mount();
    uint64_t there = 0;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Status status = harness.Read(*blocks[i]);
      if (status.ok()) {
        ++there;
        EXPECT_FALSE(erased.contains(i)) << "an erased block came back";
      } else {
        EXPECT_TRUE(status.code() == Code::kNotFound || status.code() == Code::kCorrupt);
      }
    }
    EXPECT_EQ(there + harness.Counter("corrupt_blocks"), harness.nvme()->recovery().blocks);
    EXPECT_EQ(harness.tier()->Usage().block_count, there);
    lost += blocks.size() - erased.size() - there;
  }
  EXPECT_GT(lost, 0u);
}

TEST(NvmeTierTest, ABlockWhoseBytesRottedIsDroppedForGood) {
  NvmeHarness harness(Small());
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.media_[0]->FlipBit(0, DataOffset(kSegment) + kPageBytes + 77, 5);
  EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  EXPECT_EQ(harness.listener_.lost[block.id()], Code::kCorrupt);
  EXPECT_EQ(harness.Counter("corrupt_blocks"), 1u);
  EXPECT_TRUE(harness.Write(block).ok());
  EXPECT_TRUE(harness.Read(block).ok());
}

TEST(NvmeTierTest, SegmentsOfAnEarlierSizeAreReadAndMakeWayForNewOnes) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 2);
  harness.options_.segment_bytes = 2 * kSegment;
  harness.listener_.choose = KeepAll;
  harness.Restart();
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
  for (uint64_t i = 100; i < 200; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  EXPECT_LE(harness.media_[0]->used_bytes(), 8 * kSegment);
  EXPECT_LE(harness.tier()->Usage().used_bytes, 8 * kSegment);
}

TEST(NvmeTierTest, ACapThatWasLoweredIsObeyed) {
  NvmeHarness harness(Small(12));
  for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  EXPECT_GT(harness.media_[0]->used_bytes(), 5 * kSegment);
  harness.options_.capacity_bytes = 5 * kSegment;
  harness.Restart();
  harness.executor_.RunAll();
  EXPECT_LE(harness.media_[0]->used_bytes(), 5 * kSegment);
  EXPECT_TRUE(harness.Write(TestBlock(1000, 16 << 10)).ok());
}

// ---- Reclaim ----

TEST(NvmeTierTest, WithoutAListenerReclaimKeepsNothing) {
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

TEST(NvmeTierTest, ReclaimKeepsWhatIsValuedUpToAFifthAndTellsOfTheRest) {
  NvmeHarness harness(Small(5));
  std::set<BlockId> precious;
  harness.listener_.choose = [&](std::span<const BlockId> ids, std::vector<size_t>* order) {
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
    const bool lost = harness.listener_.lost.contains(block->id());
    EXPECT_EQ(harness.Read(*block).code(), lost ? Code::kNotFound : Code::kOk);
    if (lost) {
      EXPECT_EQ(harness.listener_.lost[block->id()], Code::kNoSpace);
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

TEST(NvmeTierTest, TheOlderCopyOfAMovedBlockCannotUndoItsErasure) {
  NvmeHarness harness(Small(5));
  std::set<BlockId> precious;
  harness.listener_.choose = [&](std::span<const BlockId> ids, std::vector<size_t>* order) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (precious.contains(ids[i])) order->push_back(i);
    }
  };
  const auto blocks = FillSegments(&harness, 1);
  precious.insert(blocks[0]->id());
  const std::vector<std::byte> before = harness.media_[0]->Bytes(0, 0, kSegment);
  for (uint64_t i = 1000; harness.Counter("segments_reclaimed") == 0; ++i) {
    ASSERT_TRUE(harness.Write(TestBlock(i, 5000)).ok());
  }
  EXPECT_EQ(harness.Counter("reclaim_moved_blocks"), 1u);
  harness.Unmount();
  // As if the process had died before the emptied segment was marked as free.
  harness.media_[0]->SetBytes(0, 0, before);
  harness.options_.capacity_bytes = 12 * kSegment;  // So that it is not emptied again at once.
  harness.Mount();
  EXPECT_TRUE(harness.Read(*blocks[0]).ok());
  EXPECT_TRUE(harness.Erase(blocks[0]->id()).ok());
  harness.Restart();
  EXPECT_EQ(harness.Read(*blocks[0]).code(), Code::kNotFound);
  EXPECT_TRUE(harness.Read(*blocks[1]).ok());  // Dropped, not erased: it may be back.
}

TEST(NvmeTierTest, TheSegmentWithTheLeastLiveBytesGoesFirst) {
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

TEST(NvmeTierTest, ReadsOfASegmentThatIsReclaimedGetTheirBytes) {
  NvmeHarness harness(Small(4));
  const auto blocks = FillSegments(&harness, 1);
  TestBlock target(5'000'000, 5000);
  Batch<ReadOp> read;
  read.ops.push_back(
      {.id = blocks[0]->id(), .target = target.memory(), .status = {}, .checksum = {}});
  bool read_done = false;
  read.on_done = [&](Batch<ReadOp>&) { read_done = true; };
  // The read hangs alone; everything else goes on.
  harness.disks_[0]->Hang(true);
  harness.tier()->Read(&read);
  harness.executor_.RunAll();
  EXPECT_FALSE(read_done);
  Batch<WriteOp> write;
  std::vector<std::unique_ptr<TestBlock>> more = Blocks(1000, 60, 5000);
  for (const auto& block : more) write.ops.push_back(block->ToWrite());
  harness.tier()->Write(&write);
  harness.disks_[0]->Hang(false);
  harness.executor_.RunAll();
  ASSERT_TRUE(read_done);
  EXPECT_TRUE(read.ops[0].status.ok());
  EXPECT_TRUE(std::ranges::equal(target.memory().first(5000), blocks[0]->raw()));
}

// ---- Faults of drives ----

TEST(NvmeTierTest, AFullFileSystemMakesReclaimWorkWithTheSegmentsThereAre) {
  NvmeHarness harness(Small(8));
  harness.media_[0]->set_capacity_bytes(3 * kSegment + 4096);
  for (uint64_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok()) << i;
  }
  EXPECT_TRUE(harness.tier()->in_service());
  EXPECT_GT(harness.Counter("segments_reclaimed"), 0u);
  EXPECT_GT(harness.Counter("create_errors"), 0u);
  EXPECT_LE(harness.media_[0]->used_bytes(), 3 * kSegment);
  harness.media_[0]->set_capacity_bytes(100 * kSegment);
  harness.Advance(2'000'000'000);
  for (uint64_t i = 100; i < 200; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  EXPECT_GT(harness.media_[0]->used_bytes(), 3 * kSegment);
}

TEST(NvmeTierTest, AFileSystemWithoutRoomForOneSegmentIsNoSpace) {
  NvmeHarness harness(Small(8));
  harness.media_[0]->set_capacity_bytes(kSegment / 2);
  EXPECT_EQ(harness.Write(TestBlock(1, 4096)).code(), Code::kNoSpace);
  EXPECT_TRUE(harness.tier()->in_service());
  harness.media_[0]->set_capacity_bytes(100 * kSegment);
  harness.Advance(2'000'000'000);
  EXPECT_TRUE(harness.Write(TestBlock(1, 4096)).ok());
}

TEST(NvmeTierTest, AReadOnlyDriveServesReadsAndComesBackByItself) {
  NvmeHarness harness(Small());
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.disks_[0]->SetReadOnly(true);
  EXPECT_EQ(harness.Write(TestBlock(2, 8192)).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Write(TestBlock(3, 8192)).code(), Code::kUnavailable);
  EXPECT_TRUE(harness.Read(block).ok());
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kUnavailable) << "it may come back";
  harness.Advance(3'000'000'000);
  EXPECT_EQ(harness.Write(TestBlock(4, 8192)).code(), Code::kUnavailable);
  harness.disks_[0]->SetReadOnly(false);
  harness.Advance(2'000'000'000);
  EXPECT_TRUE(harness.Write(TestBlock(5, 8192)).ok());
  EXPECT_EQ(harness.Erase(block.id()).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound) << "an erased block came back";
}

TEST(NvmeTierTest, AHangingDriveGoesOutOfServiceAndComesBackWithEverything) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 10, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.disks_[0]->Hang(true);
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
  EXPECT_EQ(harness.listener_.health, std::vector<bool>{false});
  EXPECT_NE(harness.listener_.health_why.message().find("has not completed"), std::string::npos);
  EXPECT_EQ(harness.Read(*blocks[1]).code(), Code::kUnavailable);
  EXPECT_EQ(harness.Write(TestBlock(60, 8192)).code(), Code::kUnavailable);
  EXPECT_EQ(harness.tier()->Probe(blocks[1]->id()).code(), Code::kUnavailable);
  harness.Advance(10'000'000'000);
  EXPECT_FALSE(harness.tier()->in_service());
  harness.disks_[0]->Hang(false);
  harness.Advance(2'000'000'000);
  EXPECT_EQ(quiescent, (read.ops[0].in_flight ? 1 : 0) + (write.ops[0].in_flight ? 1 : 0));
  EXPECT_TRUE(harness.tier()->in_service());
  EXPECT_EQ(harness.listener_.health, (std::vector<bool>{false, true}));
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
  EXPECT_TRUE(harness.Write(TestBlock(70, 8192)).ok());
  EXPECT_EQ(harness.tier()->Usage().queued_ops, 0u);
}

TEST(NvmeTierTest, ManyFailedReadsInARowTakeTheDriveOut) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 10, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.disks_[0]->FailAll(IoKind::kRead, Code::kUnavailable);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(harness.Read(*blocks[0]).code(), Code::kUnavailable);
    EXPECT_TRUE(harness.tier()->in_service());
  }
  EXPECT_EQ(harness.Read(*blocks[0]).code(), Code::kUnavailable);
  EXPECT_FALSE(harness.tier()->in_service());
  harness.disks_[0]->FailAll(IoKind::kRead, Code::kOk);
  harness.Advance(2'000'000'000);
  EXPECT_TRUE(harness.tier()->in_service());
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeTierTest, AFailedWriteCostsItsOwnBlockOnly) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 8, 8192);
  std::vector<const TestBlock*> all;
  for (const auto& block : blocks) all.push_back(block.get());
  int writes = 0;
  harness.disks_[0]->SetFault([&](const IoRequest& request) {
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

TEST(NvmeTierTest, EveryWriteThatCanFailFailsOnceAndNothingAcknowledgedIsLost) {
  for (int failing = 1; failing < 60; ++failing) {
    NvmeHarness harness(Small(5));
    harness.listener_.choose = KeepAll;
    int writes = 0;
    harness.disks_[0]->SetFault([&](const IoRequest& request) {
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
        if (harness.listener_.lost.contains(blocks[i]->id())) continue;
        EXPECT_TRUE(harness.Read(*blocks[i]).ok()) << failing << " lost block " << i;
      }
      for (const size_t i : erased) {
        EXPECT_EQ(harness.Read(*blocks[i]).code(), Code::kNotFound) << failing << " block " << i;
      }
      harness.Restart();
    }
  }
}

TEST(NvmeTierTest, ADriveThatCannotBeReadAtStartJoinsLater) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 10, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.Unmount();
  harness.MountWithoutRecovery();
  harness.disks_[0]->FailAll(IoKind::kRead, Code::kUnavailable);
  EXPECT_EQ(harness.RecoverNow().code(), Code::kUnavailable);
  EXPECT_FALSE(harness.tier()->in_service());
  harness.disks_[0]->FailAll(IoKind::kRead, Code::kOk);
  harness.Advance(2'000'000'000);
  EXPECT_TRUE(harness.tier()->in_service());
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeTierTest, ADriveThatHangsAtStartIsNotWaitedFor) {
  NvmeHarness harness(Small(), 2);
  const auto blocks = Blocks(0, 10, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.Unmount();
  harness.MountWithoutRecovery();
  harness.disks_[1]->Hang(true);
  Status result(Code::kBusy);
  harness.tier_->Recover([&](Status status) { result = std::move(status); });
  harness.Advance(6'000'000'000);
  EXPECT_TRUE(result.ok());
  size_t there = 0;
  for (const auto& block : blocks) there += harness.Read(*block).ok() ? 1 : 0;
  EXPECT_GT(there, 0u);
  EXPECT_LT(there, 10u);
  // A copy may be on the drive that is not read yet.
  EXPECT_EQ(harness.Erase(TestBlock(99, 4096).id()).code(), Code::kUnavailable);
  harness.disks_[1]->Hang(false);
  harness.Advance(3'000'000'000);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

// ---- Several drives ----

TEST(NvmeTierTest, WritesGoToAllDrivesInTurn) {
  NvmeTierOptions options = Small(24);
  NvmeHarness harness(options, 3);
  for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 8192)).ok());
  for (const auto& media : harness.media_) EXPECT_GE(media->List().size(), 1u);
}

TEST(NvmeTierTest, AFailingDriveCostsItsOwnBlocksForTheTimeBeing) {
  NvmeHarness harness(Small(16), 2);
  const auto blocks = Blocks(0, 20, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.disks_[1]->Hang(true);
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
  EXPECT_TRUE(harness.listener_.health.empty());
  size_t there = 0;
  for (const auto& block : blocks) {
    const Status status = harness.tier()->Probe(block->id());
    EXPECT_TRUE(status.ok() || status.code() == Code::kUnavailable);
    if (status.ok()) ++there;
  }
  EXPECT_EQ(there, 10u);
  for (uint64_t i = 100; i < 110; ++i) EXPECT_TRUE(harness.Write(TestBlock(i, 8192)).ok());
  EXPECT_EQ(quiescent, 0u);
  harness.disks_[1]->Hang(false);
  harness.Advance(2'000'000'000);
  EXPECT_EQ(quiescent, 10u);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

// ---- Destruction ----

TEST(NvmeTierTest, ATierMayGoWhileItsDriveStillWorks) {
  NvmeHarness harness(Small());
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  TestBlock target(2, 8192);
  Batch<ReadOp> read;
  read.ops.push_back({.id = block.id(), .target = target.memory(), .status = {}, .checksum = {}});
  bool done = false;
  read.on_done = [&](Batch<ReadOp>&) { done = true; };
  const TestBlock other(3, 8192);
  Batch<WriteOp> write;
  write.ops = {other.ToWrite()};
  write.on_done = [&](Batch<WriteOp>&) { done = true; };
  harness.tier()->Read(&read);
  harness.tier()->Write(&write);
  harness.tier_.reset();
  harness.executor_.RunAll();
  EXPECT_FALSE(done);
}

}  // namespace
}  // namespace aquifer
