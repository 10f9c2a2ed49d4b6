// What a restart finds: footers, scans, deletions, files that are not ours, and damage.
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tier/nvme/nvme_format.h"
#include "tier/nvme/nvme_small.h"

namespace aquifer {
namespace {

TEST(NvmeRecoveryTest, ASealedSegmentIsFoundAgainByItsFooter) {
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

TEST(NvmeRecoveryTest, PayloadsAreNotReadAtStart) {
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

TEST(NvmeRecoveryTest, TheOpenSegmentIsFilledFurtherAfterARestart) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 12, 5000);
  for (const auto& block : blocks) {
    ASSERT_TRUE(harness.Write(*block).ok());
    harness.Restart();
  }
  EXPECT_LE(harness.media[0]->List().size(), 3u);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeRecoveryTest, LeftoversBehindTheEndOfTheLogAreNotTakenForItsContinuation) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 3, 8192);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  harness.Unmount();
  // As if the process had died with the page of the second group not written and the third's there.
  const uint64_t second = DataOffset(kSegment) + 3 * kPageBytes;
  harness.media[0]->SetBytes(0, second, std::vector<std::byte>(kPageBytes));
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().blocks, 1u);
  const TestBlock instead(10, 8192);  // Ends where the second block ended.
  ASSERT_TRUE(harness.Write(instead).ok());
  harness.Restart();
  EXPECT_EQ(harness.nvme()->recovery().blocks, 2u);
  EXPECT_TRUE(harness.Read(instead).ok());
  EXPECT_EQ(harness.Read(*blocks[2]).code(), Code::kNotFound);
}

TEST(NvmeRecoveryTest, AFooterOfManyPagesIsReadInASecondPiece) {
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

TEST(NvmeRecoveryTest, ADamagedFooterPageIsReplacedByAScan) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  harness.media[0]->FlipBit(0, kSegment - 2 * kPageBytes + 100, 3);
  harness.Mount();
  const NvmeRecovery& found = harness.nvme()->recovery();
  EXPECT_EQ(found.segments_by_footer, 0u);
  EXPECT_EQ(found.segments_by_scan, 2u);
  EXPECT_EQ(found.blocks, blocks.size());
  ASSERT_EQ(found.messages.size(), 1u);
  EXPECT_NE(found.messages[0].find("footer is damaged"), std::string::npos);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeRecoveryTest, EveryRecordThatIsLostToDamageIsCounted) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  harness.media[0]->FlipBit(0, kSegment - 2 * kPageBytes + 100, 3);  // The footer,
  harness.media[0]->FlipBit(0, DataOffset(kSegment) + 100, 3);       // and what a scan begins with.
  harness.Mount();
  const NvmeRecovery& found = harness.nvme()->recovery();
  EXPECT_GT(found.corrupt_records, 0u);
  EXPECT_EQ(found.corrupt_records, blocks.size() - found.blocks);
  EXPECT_EQ(harness.Counter("corrupt_records"), found.corrupt_records);
}

TEST(NvmeRecoveryTest, ADamagedTrailerIsReplacedByAScan) {
  NvmeHarness made(Small());
  const auto blocks = FillSegments(&made, 1);
  made.Unmount();
  for (uint64_t byte = 0; byte < 64; byte += 4) {  // Whichever field it is.
    SCOPED_TRACE(byte);
    NvmeHarness harness(Small(), std::vector{made.media[0]->Clone()});
    harness.media[0]->FlipBit(0, kSegment - kPageBytes + byte, 0);
    harness.Mount();
    EXPECT_EQ(harness.nvme()->recovery().segments_by_footer, 0u);
    EXPECT_EQ(harness.nvme()->recovery().blocks, blocks.size());
    for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
    harness.Restart();  // It was given a new footer, or is open.
    EXPECT_EQ(harness.nvme()->recovery().blocks, blocks.size());
  }
}

// All that its header says is as good as lost with a bit of it. But for magic and version, by which
// strangers and later releases are told.
TEST(NvmeRecoveryTest, ASegmentWithADamagedHeaderIsUsedAgain) {
  NvmeHarness made(Small());
  const auto blocks = FillSegments(&made, 1);
  made.Unmount();
  for (uint64_t byte = 12; byte < 72; byte += 4) {
    SCOPED_TRACE(byte);
    NvmeHarness harness(Small(), std::vector{made.media[0]->Clone()});
    harness.media[0]->FlipBit(0, byte, 0);
    harness.Mount();
    const NvmeRecovery& found = harness.nvme()->recovery();
    EXPECT_EQ(found.segments_skipped, 1u);
    ASSERT_EQ(found.messages.size(), 1u);
    EXPECT_NE(found.messages[0].find("header is damaged"), std::string::npos);
    EXPECT_LE(found.blocks, 1u);  // What the next segment has.
    EXPECT_EQ(harness.Read(*blocks[0]).code(), Code::kNotFound);
    for (uint64_t i = 100; i < 200; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
    std::vector<std::byte> header = harness.media[0]->Bytes(0, 0, kPageBytes);
    SegmentHeader written;
    EXPECT_EQ(DecodeHeader(std::span(header).first<kPageBytes>(), &written), HeaderVerdict::kOk);
  }
}

TEST(NvmeRecoveryTest, ErasuresSurviveARestartEvenWhenOneMapIsDamaged) {
  for (uint64_t copy = 0; copy < 2; ++copy) {
    NvmeHarness harness(Small());
    const auto blocks = FillSegments(&harness, 1);
    for (size_t i = 0; i < 6; ++i) ASSERT_TRUE(harness.Erase(blocks[i]->id()).ok());
    harness.Unmount();
    harness.media[0]->FlipBit(0, kMapsOffset + copy * MapBytes(kSegment) + 64, 0);
    harness.Mount();
    EXPECT_EQ(harness.nvme()->recovery().blocks_deleted, 6u);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(harness.Read(*blocks[i]).code(), i < 6 ? Code::kNotFound : Code::kOk);
    }
  }
}

// The process died, or the drive rotted, before the second copy had what the first one has.
TEST(NvmeRecoveryTest, AStartBringsBothMapsUpToDate) {
  for (uint64_t stale = 0; stale < 2; ++stale) {
    SCOPED_TRACE(stale);
    NvmeHarness harness(Small());
    const auto blocks = FillSegments(&harness, 1);
    const auto place_of = [](uint64_t copy) { return kMapsOffset + copy * MapBytes(kSegment); };
    const auto before = harness.media[0]->Bytes(0, place_of(stale), MapBytes(kSegment));
    ASSERT_TRUE(harness.Erase(blocks[0]->id()).ok());
    harness.Unmount();
    harness.media[0]->SetBytes(0, place_of(stale), before);
    harness.Mount();
    harness.Unmount();
    harness.media[0]->FlipBit(0, place_of(1 - stale) + 64, 0);
    harness.Mount();
    EXPECT_EQ(harness.nvme()->recovery().blocks_deleted, 1u);
    EXPECT_EQ(harness.Read(*blocks[0]).code(), Code::kNotFound) << "its erasure is undone";
    EXPECT_TRUE(harness.Read(*blocks[1]).ok());
  }
}

TEST(NvmeRecoveryTest, WithBothMapsDamagedNothingOfTheSegmentIsServed) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  for (uint64_t copy = 0; copy < 2; ++copy) {
    harness.media[0]->FlipBit(0, kMapsOffset + copy * MapBytes(kSegment) + 64, 0);
  }
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().segments_skipped, 1u);
  EXPECT_LE(harness.nvme()->recovery().blocks, 1u);
}

// All sums are right, as if a bug of ours had written it.
TEST(NvmeRecoveryTest, ARecordThatCannotBeOfItsSegmentIsNotServed) {
  const TestBlock block(1, 5000);
  NvmeHarness made(Small());
  ASSERT_TRUE(made.Write(block).ok());
  made.Unmount();
  const std::function<void(Record*)> wrongs[] = {
      [](Record* record) { ++record->generation; },
      [](Record* record) { record->payload_offset = kMapsOffset; },
      [](Record* record) { record->payload_offset = kSegment - kPageBytes; },
      [](Record* record) { record->payload_offset = kSegment + kPageBytes; }};
  for (size_t i = 0; i < std::size(wrongs); ++i) {
    SCOPED_TRACE(i);
    NvmeHarness harness(Small(), std::vector{made.media[0]->Clone()});
    MemoryMedia* const media = harness.media[0].get();
    std::vector<std::byte> first = media->Bytes(0, 0, kPageBytes);
    std::vector<std::byte> group = media->Bytes(0, DataOffset(kSegment), kPageBytes);
    SegmentHeader header;
    ASSERT_EQ(DecodeHeader(std::span(first).first<kPageBytes>(), &header), HeaderVerdict::kOk);
    const auto page = std::span(group).first<kPageBytes>();
    RecordPage described{
        .kind = RecordPageKind::kGroup, .use = header.use, .offset = DataOffset(kSegment)};
    ASSERT_EQ(DecodeRecordPage(page, &described), PageVerdict::kOk);
    Record record;
    ASSERT_EQ(DecodeRecord(RecordAt(page, 0), &record), RecordVerdict::kOk);
    wrongs[i](&record);
    EncodeRecord(record, RecordAt(page, 0));
    FinishRecordPage(described, page);
    media->SetBytes(0, DataOffset(kSegment), group);
    harness.Mount();
    EXPECT_EQ(harness.nvme()->recovery().corrupt_records, 1u);
    EXPECT_EQ(harness.nvme()->recovery().blocks, 0u);
    EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  }
}

TEST(NvmeRecoveryTest, EnumerateIsTheSameAfterARestart) {
  NvmeHarness harness(Small());
  for (uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 5000, i % 7)).ok());
  const auto list = [&] {
    std::vector<BlockId> ids;
    for (const BlockMeta& meta : harness.Metas()) ids.push_back(meta.id);
    return ids;
  };
  const std::vector<BlockId> before = list();
  harness.Restart();
  EXPECT_EQ(list(), before);
}

TEST(NvmeRecoveryTest, AFileOfSomebodyElseIsLeftAloneAndCountsAgainstTheCap) {
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

TEST(NvmeRecoveryTest, ASegmentOfALaterVersionIsLeftAlone) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  const std::byte later[] = {std::byte{2}};
  harness.media[0]->SetBytes(0, 8, later);
  const std::vector<std::byte> before = harness.media[0]->Bytes(0, 0, kSegment);
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().segments_skipped, 1u);
  EXPECT_NE(harness.nvme()->recovery().messages[0].find("later version"), std::string::npos);
  for (uint64_t i = 100; i < 200; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
  EXPECT_EQ(harness.media[0]->Bytes(0, 0, kSegment), before);
  EXPECT_LE(harness.media[0]->used_bytes(), 8 * kSegment);
}

TEST(NvmeRecoveryTest, ASegmentOfAnotherDriveIsLeftAlone) {
  NvmeHarness other(Small());
  const auto theirs = Blocks(1000, 40, 5000);
  for (const auto& block : theirs) ASSERT_TRUE(other.Write(*block).ok());
  other.Unmount();
  NvmeHarness harness(Small());
  harness.random = SeededRandom(1234);
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  // Under its own number, so that only whose it is tells.
  ASSERT_TRUE(harness.media[0]->Create(3, kSegment).ok());
  harness.media[0]->SetBytes(3, 0, other.media[0]->Bytes(3, 0, kSegment));
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().segments_skipped, 1u);
  ASSERT_EQ(harness.nvme()->recovery().messages.size(), 1u);
  EXPECT_NE(harness.nvme()->recovery().messages[0].find("another drive"), std::string::npos);
  for (const auto& block : theirs) EXPECT_EQ(harness.Read(*block).code(), Code::kNotFound);
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

TEST(NvmeRecoveryTest, ASegmentUnderAnotherNumberIsLeftAlone) {
  NvmeHarness harness(Small());
  const auto blocks = FillSegments(&harness, 1);
  harness.Unmount();
  ASSERT_TRUE(harness.media[0]->Create(7, kSegment).ok());
  harness.media[0]->SetBytes(7, 0, harness.media[0]->Bytes(0, 0, kSegment));
  harness.Mount();
  EXPECT_EQ(harness.nvme()->recovery().segments_skipped, 1u);
  EXPECT_EQ(harness.nvme()->recovery().blocks, blocks.size());
}

TEST(NvmeRecoveryTest, ATruncatedFileGivesWhatIsLeftOfIt) {
  for (uint64_t bytes = 0; bytes < kSegment; bytes += 3000) {
    NvmeHarness harness(Small());
    const auto blocks = FillSegments(&harness, 1);
    harness.Unmount();
    harness.media[0]->Truncate(0, bytes);
    harness.Mount();
    uint64_t there = 0;
    for (const auto& block : blocks) {
      const Status status = harness.Read(*block);
      EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound) << status.ToString();
      if (status.ok()) ++there;
    }
    EXPECT_EQ(there, harness.nvme()->recovery().blocks);
    for (uint64_t i = 100; i < 140; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 16 << 10)).ok());
    EXPECT_LE(harness.media[0]->used_bytes(), 8 * kSegment);
  }
}

// Its maps are where they were when it was whole.
TEST(NvmeRecoveryTest, WhatIsDeletedFromATruncatedFileStaysDeleted) {
  NvmeTierOptions options;
  options.segment_bytes = uint64_t{256} << 20;
  options.capacity_bytes = 4 * options.segment_bytes;
  const uint64_t left_bytes = uint64_t{64} << 20;
  ASSERT_LT(MapBytes(left_bytes), MapBytes(options.segment_bytes));
  NvmeHarness harness(options);
  const TestBlock deleted(1, 8192);
  const TestBlock kept(2, 8192);
  ASSERT_TRUE(harness.Write(deleted).ok());
  ASSERT_TRUE(harness.Write(kept).ok());
  harness.Unmount();
  harness.media[0]->Truncate(0, left_bytes);
  harness.Mount();
  ASSERT_TRUE(harness.Read(deleted).ok());
  EXPECT_TRUE(harness.Erase(deleted.id()).ok());
  for (int start = 0; start < 2; ++start) {
    harness.Restart();
    EXPECT_EQ(harness.Read(deleted).code(), Code::kNotFound);
    EXPECT_TRUE(harness.Read(kept).ok());
  }
}

TEST(NvmeRecoveryTest, SwappedPagesAreNeverServed) {
  NvmeHarness made(Small());
  const auto blocks = FillSegments(&made, 2);
  made.Unmount();
  SeededRandom random(5);
  for (int trial = 0; trial < 300; ++trial) {
    NvmeHarness harness(Small(), std::vector{made.media[0]->Clone()});
    for (int swaps = 0; swaps < 4; ++swaps) {
      harness.media[0]->SwapRanges(static_cast<uint32_t>(random.Below(2)),
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

TEST(NvmeRecoveryTest, FlippedBitsAnywhereAreNeverServed) {
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
    NvmeHarness harness(Small(), std::vector{made.media[0]->Clone()});
    const uint64_t flips = 1 + random.Below(3);
    for (uint64_t i = 0; i < flips; ++i) {
      harness.media[0]->FlipBit(static_cast<uint32_t>(random.Below(3)), random.Below(kSegment),
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

TEST(NvmeRecoveryTest, ABlockWhoseBytesRottedIsDroppedForGood) {
  NvmeHarness harness(Small());
  const TestBlock block(1, 8192);
  ASSERT_TRUE(harness.Write(block).ok());
  harness.media[0]->FlipBit(0, DataOffset(kSegment) + kPageBytes + 77, 5);
  EXPECT_EQ(harness.Read(block).code(), Code::kCorrupt);
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  EXPECT_EQ(harness.listener.lost[block.id()], Code::kCorrupt);
  EXPECT_EQ(harness.Counter("corrupt_blocks"), 1u);
  EXPECT_TRUE(harness.Write(block).ok());
  EXPECT_TRUE(harness.Read(block).ok());
}

}  // namespace
}  // namespace aquifer
