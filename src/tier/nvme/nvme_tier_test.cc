// What the NVMe tier promises beyond tier.h.
#include "tier/nvme/nvme_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tier/nvme/nvme_io.h"
#include "tier/nvme/nvme_small.h"

namespace aquifer {
namespace {

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
    return harness.media[0]->Size(0);
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

TEST(NvmeTierTest, ManyErasesOfOneSegmentAreOneMapWrite) {
  NvmeHarness harness(Small());
  const auto blocks = Blocks(0, 12, 4096);
  for (const auto& block : blocks) ASSERT_TRUE(harness.Write(*block).ok());
  const uint64_t before = harness.Counter("map_writes");
  Batch<EraseOp> batch;
  for (const auto& block : blocks) batch.ops.push_back({.id = block->id(), .status = {}});
  harness.tier()->Erase(&batch);
  harness.executor.RunAll();
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
  harness.executor.RunAll();
  EXPECT_TRUE(write.ops[0].status.ok());
  EXPECT_TRUE(erase.ops[0].status.ok());
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  harness.Restart();
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
}

TEST(NvmeTierTest, ExpiredBlocksAreMissesAndDoNotSurviveARestart) {
  NvmeHarness harness(Small());
  TestBlock block(1, 8192);
  block.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
  TestBlock other(2, 8192);
  other.meta().expiry_unix_seconds = harness.clock.UnixSeconds() + 10;
  ASSERT_TRUE(harness.Write(block).ok());
  ASSERT_TRUE(harness.Write(other).ok());
  EXPECT_TRUE(harness.Read(block).ok());
  harness.clock.SetUnixSeconds(block.meta().expiry_unix_seconds);
  EXPECT_EQ(harness.tier()->Probe(block.id()).code(), Code::kNotFound);
  EXPECT_TRUE(harness.Metas().empty());
  EXPECT_EQ(harness.Read(block).code(), Code::kNotFound);
  EXPECT_TRUE(harness.listener.lost.contains(block.id()));
  harness.Restart();
  EXPECT_EQ(harness.nvme()->recovery().blocks_expired, 2u);
  EXPECT_EQ(harness.tier()->Usage().block_count, 0u);
}

TEST(NvmeTierTest, WritesGoToAllDrivesInTurn) {
  NvmeTierOptions options = Small(24);
  NvmeHarness harness(options, 3);
  for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(harness.Write(TestBlock(i, 8192)).ok());
  for (const auto& media : harness.media) EXPECT_GE(media->List().size(), 1u);
}

// Two groups of records and a bit, which is nearly a segment of these.
constexpr uint64_t kNearlySegment = 25;
NvmeTierOptions SegmentsOfTwoGroups() {
  NvmeTierOptions options = Small();
  options.segment_bytes *= 2;
  options.capacity_bytes *= 2;
  return options;
}

std::vector<Status> WriteAll(NvmeHarness* harness,
                             const std::vector<std::unique_ptr<TestBlock>>& blocks) {
  std::vector<const TestBlock*> all;
  for (const auto& block : blocks) all.push_back(block.get());
  return harness->Write(all);
}

TEST(NvmeTierTest, TheNextSegmentIsOpenBeforeTheLastIsFull) {
  NvmeHarness harness(SegmentsOfTwoGroups());
  size_t payloads = 0;
  size_t payloads_before = 0;
  harness.disks[0]->SetFault([&](const IoRequest& request) {
    if (request.file == 0 && request.data.size() == 8192) ++payloads;
    if (request.file == 1 && request.kind == IoKind::kCreate) payloads_before = payloads;
    return Status();
  });
  for (const Status& status : WriteAll(&harness, Blocks(0, 2 * kNearlySegment, 8192))) {
    EXPECT_TRUE(status.ok());
  }
  EXPECT_GT(payloads_before, 0u);
  EXPECT_LT(payloads_before, payloads);
}

TEST(NvmeTierTest, ADriveThatFailsWithTwoSegmentsOpenLosesNothing) {
  NvmeHarness harness(SegmentsOfTwoGroups());
  const auto blocks = Blocks(0, kNearlySegment, 8192);
  for (const Status& status : WriteAll(&harness, blocks)) EXPECT_TRUE(status.ok());
  ASSERT_EQ(harness.Counter("segments_opened"), 2u);
  ASSERT_EQ(harness.Counter("segments_sealed"), 0u);
  harness.disks[0]->SetReadOnly(true);
  EXPECT_FALSE(harness.Write(TestBlock(1000, 8192)).ok());
  EXPECT_EQ(harness.Counter("segments_sealed"), 2u);
  harness.disks[0]->SetReadOnly(false);
  harness.Advance(60'000'000'000);
  EXPECT_TRUE(harness.Write(TestBlock(1001, 8192)).ok());
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
  harness.Restart();
  for (const auto& block : blocks) EXPECT_TRUE(harness.Read(*block).ok());
}

// Blocks of 8 KiB side by side in memory, as the slots of a chain are.
class SideBySide {
 public:
  static constexpr uint64_t kBytes = 8192;

  explicit SideBySide(uint64_t count) : blocks_(Blocks(0, count, kBytes)), memory_(count * kBytes) {
    for (const auto& block : blocks_) block->meta().id.tenant = {};
  }

  // The blocks in this order, block i in place i of the memory.
  std::vector<WriteOp> Writes(const std::vector<size_t>& order) {
    std::vector<WriteOp> writes;
    for (const size_t i : order) {
      const std::span<std::byte> place = memory_.span().subspan(i * kBytes, kBytes);
      std::ranges::copy(blocks_[i]->memory(), place.begin());
      writes.push_back(blocks_[i]->ToWrite());
      writes.back().source = place;
    }
    return writes;
  }
  TestBlock& block(size_t i) { return *blocks_[i]; }

 private:
  const std::vector<std::unique_ptr<TestBlock>> blocks_;
  PageBuffer memory_;
};

// How many blocks each request for payload wrote.
std::vector<size_t> PayloadRequests(NvmeHarness* harness, std::vector<WriteOp> writes) {
  std::vector<size_t> requests;
  EXPECT_TRUE(harness->Write(TestBlock(1000, 4096)).ok());  // The segment is open from here on.
  harness->disks[0]->SetFault([&](const IoRequest& request) {
    const uint64_t bytes = request.data.size();
    if (request.kind == IoKind::kWrite && bytes % SideBySide::kBytes == 0) {
      requests.push_back(bytes / SideBySide::kBytes);
    }
    return Status();
  });
  Batch<WriteOp> batch;
  batch.ops = std::move(writes);
  harness->tier()->Write(&batch);
  harness->executor.RunAll();
  harness->disks[0]->SetFault({});
  for (const WriteOp& op : batch.ops) EXPECT_TRUE(op.status.ok()) << op.status.ToString();
  return requests;
}

TEST(NvmeTierTest, NeighboursInMemoryGoToTheDriveInOneRequest) {
  struct Case {
    std::vector<size_t> order;
    std::vector<size_t> requests;
  };
  for (const Case& one :
       {Case{{0, 1, 2, 3, 4, 5, 6, 7}, {8}}, Case{{0, 1, 2, 4, 5, 3, 6, 7}, {3, 2, 1, 2}},
        Case{{3, 2, 1, 0}, {1, 1, 1, 1}}}) {
    NvmeHarness harness(Small());
    SideBySide blocks(8);
    EXPECT_EQ(PayloadRequests(&harness, blocks.Writes(one.order)), one.requests);
    for (const size_t i : one.order) EXPECT_TRUE(harness.Read(blocks.block(i)).ok());
    harness.Restart();
    for (const size_t i : one.order) EXPECT_TRUE(harness.Read(blocks.block(i)).ok());
  }
}

// A tenant can make its own memory fail.
TEST(NvmeTierTest, ARequestIsOfOneTenant) {
  NvmeHarness harness(Small());
  SideBySide blocks(8);
  for (const size_t i : {3u, 4u}) blocks.block(i).meta().id.tenant.bytes[0] = std::byte{1};
  EXPECT_EQ(PayloadRequests(&harness, blocks.Writes({0, 1, 2, 3, 4, 5, 6, 7})),
            (std::vector<size_t>{3, 2, 3}));
}

TEST(NvmeTierTest, ARequestThatFailsCostsTheBlocksInIt) {
  NvmeHarness harness(Small());
  ASSERT_TRUE(harness.Write(TestBlock(1000, 4096)).ok());
  SideBySide blocks(8);
  Batch<WriteOp> batch;
  batch.ops = blocks.Writes({0, 1, 2, 4, 5, 3, 6, 7});  // In requests of 3, 2, 1 and 2.
  constexpr std::array<size_t, 4> kWritten = {0, 1, 2, 3};
  constexpr std::array<size_t, 4> kFailed = {4, 5, 6, 7};
  harness.disks[0]->SetFault([](const IoRequest& request) {
    return request.data.size() == 2 * SideBySide::kBytes ? Status(Code::kNoSpace) : Status();
  });
  harness.tier()->Write(&batch);
  harness.executor.RunAll();
  harness.disks[0]->SetFault({});
  for (const bool restarted : {false, true}) {
    if (restarted) harness.Restart();
    for (const size_t i : kWritten) EXPECT_TRUE(harness.Read(blocks.block(i)).ok()) << i;
    for (const size_t i : kFailed) {
      EXPECT_EQ(harness.Read(blocks.block(i)).code(), Code::kNotFound) << i;
    }
  }
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(batch.ops[i].status.code(), i == 3 || i == 4 || i > 5 ? Code::kNoSpace : Code::kOk);
  }
}

// Each verified block by itself would be a group of its own: a page and a request more.
TEST(NvmeTierTest, ADriveThatHasEnoughToDoGetsWholeGroups) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  NvmeTierOptions options;
  options.capacity_bytes = 1024 * kMiB;
  options.segment_bytes = 256 * kMiB;
  NvmeHarness harness(options);
  harness.disk_options.bytes_per_second = 4'000'000'000;
  harness.Restart();
  const auto write = [&](uint64_t first) {
    const auto blocks = Blocks(first, 64, kMiB);
    Batch<WriteOp> batch;
    for (const auto& block : blocks) batch.ops.push_back(block->ToWrite());
    harness.tier()->Write(&batch);
    harness.Advance(1'000'000'000);
    for (const WriteOp& op : batch.ops) EXPECT_TRUE(op.status.ok()) << op.status.ToString();
  };
  write(0);  // The tier learns how fast the drive is.
  size_t pages = 0;
  harness.disks[0]->SetFault([&](const IoRequest& request) {
    if (request.kind == IoKind::kWrite && request.data.size() == kPageBytes) ++pages;
    return Status();
  });
  write(64);
  // Blocks by themselves until the drive has 8 MiB to do, then four to a page.
  EXPECT_LE(pages, 8u + 56 / 4);
}

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
  harness.nvme_tier.reset();
  harness.executor.RunAll();
  EXPECT_FALSE(done);
}

}  // namespace
}  // namespace aquifer
