#include "tier/dram/dram_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "testing/seeded_random.h"
#include "tier/dram/dram_tier_fixture.h"

namespace aquifer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using DramTierTest = DramTierFixture;

TEST_F(DramTierTest, FindAgreesWithAModelThroughGrowthAndChurn) {
  MakeReady(64);
  SeededRandom random(3);
  std::map<uint64_t, SlotId> model;
  for (int step = 0; step < 60'000; ++step) {
    const uint64_t key = random.Below(1500) << 3;  // Close keys: long runs in the table.
    const BlockMeta meta = MetaOf(1, key);
    const auto known = model.find(key);
    ASSERT_EQ(tier_->Find(meta.id), known == model.end() ? kNoSlot : known->second);
    if (known == model.end()) {
      auto slot = tier_->Allocate(Tenant(1), kPage);
      if (!slot.ok()) continue;
      tier_->Publish(*slot, meta);
      model.emplace(key, *slot);
    } else if (random.Below(3) == 0) {
      tier_->Retract(known->second);
      tier_->Free(known->second);
      model.erase(known);
    }
    ASSERT_EQ(tier_->Usage().block_count, model.size());
    ASSERT_EQ(tier_->Usage().live_bytes, model.size() * kPage);
  }
}

TEST_F(DramTierTest, BlocksAreEnumeratedWithParentsFirst) {
  MakeReady(2);
  std::vector<SlotId> slots;
  for (const uint32_t position : {2u, 0u, 1u, 0u, 3u}) {
    const SlotId slot = MustAllocate(1, kPage);
    tier_->Publish(slot, MetaOf(1, 100 + slots.size(), position));
    slots.push_back(slot);
  }
  tier_->Retract(slots[3]);
  std::vector<uint32_t> positions;
  tier_->Enumerate([&](const BlockMeta& meta) { positions.push_back(meta.position); });
  EXPECT_THAT(positions, ElementsAre(0, 1, 2, 3));
}

TEST_F(DramTierTest, VisitingAnExtentShowsWhatIsPublishedAndMayDropIt) {
  MakeReady(2);
  std::vector<SlotId> slots;
  for (uint64_t i = 0; i < 6; ++i) slots.push_back(MustAllocate(1, kPage));
  for (const uint64_t i : {0, 2, 4}) tier_->Publish(slots[i], MetaOf(1, i));
  const uint32_t extent = tier_->SlotExtent(slots[0]);
  for (const uint64_t i : {1, 3, 5}) tier_->Free(slots[i]);
  tier_->Retire(extent);
  std::vector<SlotId> visited;
  tier_->VisitSlots(extent, 0, UINT32_MAX, [&](SlotId slot, const BlockId& id) {
    EXPECT_EQ(tier_->Find(id), slot);
    visited.push_back(slot);
    tier_->Retract(slot);
    tier_->Free(slot);
  });
  EXPECT_THAT(visited, ElementsAre(slots[0], slots[2], slots[4]));
  EXPECT_THAT(tier_->Extents(), IsEmpty());
  tier_->VisitSlots(extent, 0, UINT32_MAX, [&](SlotId, const BlockId&) { ADD_FAILURE(); });
}

using DramTierDeathTest = DramTierTest;

TEST_F(DramTierDeathTest, MisuseByOurOwnCodeIsCaught) {
  MakeReady(2);
  const SlotId slot = MustAllocate(1, kPage);
  const SlotId published = MustAllocate(1, kPage);
  tier_->Publish(published, MetaOf(1, 1));
  EXPECT_DEATH(tier_->Free(published), "published");
  EXPECT_DEATH(tier_->Quarantine(published), "published");
  EXPECT_DEATH(tier_->Publish(published, MetaOf(1, 2)), "published");
  EXPECT_DEATH(tier_->Publish(slot, MetaOf(1, 1)), "Find");    // It is there already.
  EXPECT_DEATH(tier_->Publish(slot, MetaOf(2, 1)), "tenant");  // It is another tenant's memory.
  BlockMeta large = MetaOf(1, 3);
  large.raw_bytes = kPage + 1;
  EXPECT_DEATH(tier_->Publish(slot, large), "raw_bytes");
  tier_->Free(slot);
  EXPECT_DEATH(tier_->Free(slot), "kFree");
  EXPECT_DEATH(tier_->SlotBytes(slot), "kFree");
  EXPECT_DEATH(tier_->SlotBytes(kNoSlot), "IndexOf");
  EXPECT_DEATH(tier_->Retire(1000), "next_name_");
}

TEST_F(DramTierDeathTest, FreeingTwiceIsCaughtAlsoWhileTheFreeIsDeferred) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  const SlotId slot = PublishFilled(block, 1);
  Buffer target(kPage);
  auto read = SubmitRead(block, target);
  tier_->Retract(slot);
  tier_->Free(slot);
  EXPECT_DEATH(tier_->Free(slot), "kLeaving");
}

TEST_F(DramTierTest, BlocksOf4KiBTo64MiBComeBackAsTheyWere) {
  Make({.capacity_bytes = uint64_t{512} << 20, .ready_extents = 6});
  tier_->Tick();
  Settle();
  uint64_t key = 1;
  for (const uint64_t bytes :
       {kPage, kPage + 17, uint64_t{1} << 20, (uint64_t{5} << 20) + 4000, uint64_t{64} << 20}) {
    const SampleBlock block(1, key++, bytes);
    ASSERT_EQ(WriteOne(block), Code::kOk) << bytes;
    Buffer target(bytes);
    auto read = SubmitRead(block, target);
    Settle();
    ASSERT_EQ(read->done, 1);
    ASSERT_TRUE(read->batch.ops[0].status.ok());
    EXPECT_EQ(read->batch.ops[0].checksum, block.meta.checksum);
    EXPECT_TRUE(std::ranges::equal(target.span.first(bytes), block.data.span.first(bytes)));
  }
}

TEST_F(DramTierTest, TheOwnerTouchesNoPayload) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  PublishFilled(block, 1);
  Buffer target(kPage);
  auto read = SubmitRead(block, target);
  executor_.RunAll();
  EXPECT_EQ(target.span[0], std::byte{0});
  EXPECT_EQ(read->done, 0);
  EXPECT_EQ(tier_->Usage().queued_ops, 1u);
  workers_.RunAll();
  EXPECT_TRUE(std::ranges::equal(target.span, block.data.span));
  EXPECT_EQ(read->done, 0);
  executor_.RunAll();
  EXPECT_EQ(read->done, 1);
  EXPECT_EQ(tier_->Usage().queued_ops, 0u);
  EXPECT_EQ(Counter("copied_bytes"), kPage);
}

TEST_F(DramTierTest, ACorruptBlockIsReportedDroppedAndItsSlotFreed) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  ASSERT_EQ(WriteOne(block), Code::kOk);
  tier_->SlotBytes(tier_->Find(block.meta.id))[77] ^= std::byte{1};
  Buffer target(kPage);
  auto first = SubmitRead(block, target);
  auto second = SubmitRead(block, target);  // Queued before the first one found out.
  Settle();
  EXPECT_EQ(first->batch.ops[0].status.code(), Code::kCorrupt);
  EXPECT_EQ(second->batch.ops[0].status.code(), Code::kCorrupt);
  EXPECT_EQ(tier_->Probe(block.meta.id).code(), Code::kNotFound);
  EXPECT_EQ(Counter("corrupt_blocks"), 1u);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, 0u);
  EXPECT_EQ(WriteOne(block), Code::kOk);  // It may be stored again.
}

TEST_F(DramTierTest, ACorruptBlockInASlotOfTheCachesStaysAllocatedUntilTheCacheFreesIt) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  const SlotId slot = PublishFilled(block, 1);
  tier_->SlotBytes(slot)[0] ^= std::byte{1};
  Buffer target(kPage);
  auto read = SubmitRead(block, target);
  Settle();
  EXPECT_EQ(read->batch.ops[0].status.code(), Code::kCorrupt);
  EXPECT_EQ(tier_->Find(block.meta.id), kNoSlot);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, kPage);
  tier_->Retract(slot);  // The cache does not know yet.
  tier_->Free(slot);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, 0u);
}

TEST_F(DramTierTest, BytesThatDoNotMatchTheirChecksumAreNotTaken) {
  MakeReady(1);
  SampleBlock block(1, 1, kPage);
  block.data.span[5] ^= std::byte{1};
  EXPECT_EQ(WriteOne(block), Code::kCorrupt);
  EXPECT_EQ(tier_->Find(block.meta.id), kNoSlot);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, 0u);
}

TEST_F(DramTierTest, AFullQueueIsBusyAtOnce) {
  Make({.capacity_bytes = 2 * kExtent,
        .extent_bytes = kExtent,
        .keep_available_bytes = 0,
        .ready_extents = 2,
        .max_queued_ops = 3});
  tier_->Tick();
  Settle();
  std::vector<SampleBlock> blocks;
  std::vector<WriteOp> ops;
  for (int i = 0; i < 5; ++i) {
    blocks.emplace_back(1, i + 1, kPage);
    ops.push_back(blocks.back().ToWrite());
  }
  auto write = Submit<WriteOp>(ops);
  auto second = Submit<WriteOp>({blocks[4].ToWrite()});
  executor_.RunAll();
  EXPECT_EQ(second->done, 1);
  EXPECT_EQ(second->batch.ops[0].status.code(), Code::kBusy);
  EXPECT_EQ(write->done, 0);
  Settle();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(write->batch.ops[i].status.code(), i < 3 ? Code::kOk : Code::kBusy);
  }
  EXPECT_EQ(Counter("refused_ops"), 3u);
  EXPECT_EQ(WriteOne(blocks[4]), Code::kOk);
}

TEST_F(DramTierTest, WritesWithoutRoomSayWhetherToWaitOrToEvict) {
  Make({.capacity_bytes = kExtent,
        .extent_bytes = kExtent,
        .keep_available_bytes = 0,
        .ready_extents = 0});
  const SampleBlock first(1, 1, kExtent);
  const SampleBlock second(1, 2, kExtent);
  EXPECT_EQ(WriteOne(first), Code::kBusy);  // An extent is being made.
  EXPECT_EQ(WriteOne(first), Code::kOk);
  EXPECT_EQ(WriteOne(second), Code::kNoSpace);
  EXPECT_EQ(WriteOne(first), Code::kOk);  // There already: needs no room.
  const SampleBlock large(1, 3, kExtent + 1);
  EXPECT_EQ(WriteOne(large), Code::kInvalid);
}

TEST_F(DramTierTest, TwoWritesOfOneBlockAtATimeKeepOneCopy) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage);
  auto write = Submit<WriteOp>({block.ToWrite(), block.ToWrite()});
  auto another = Submit<WriteOp>({block.ToWrite()});
  EXPECT_EQ(tier_->dram_usage().slot_bytes, 3 * kPage);
  Settle();
  for (const WriteOp& op : write->batch.ops) EXPECT_TRUE(op.status.ok());
  EXPECT_TRUE(another->batch.ops[0].status.ok());
  EXPECT_EQ(tier_->dram_usage().slot_bytes, kPage);
}

TEST_F(DramTierTest, AWriteIntoAnExtentThatIsRetiredMeanwhileIsBusy) {
  MakeReady(2);
  const SampleBlock block(1, 1, kPage);
  auto write = Submit<WriteOp>({block.ToWrite()});
  tier_->Retire(tier_->Extents()[0].extent);
  workers_.RunAll();
  executor_.RunAll();
  EXPECT_EQ(write->batch.ops[0].status.code(), Code::kBusy);
  EXPECT_THAT(tier_->Extents(), IsEmpty());
  EXPECT_EQ(WriteOne(block), Code::kOk);
}

TEST_F(DramTierTest, ErasingFreesWhatTheTierHoldsAndOnlyRetractsWhatTheCacheHolds) {
  MakeReady(1);
  const SampleBlock written(1, 1, kPage);
  const SampleBlock filled(1, 2, kPage);
  ASSERT_EQ(WriteOne(written), Code::kOk);
  const SlotId slot = PublishFilled(filled, 1);
  auto erase = Submit<EraseOp>(
      {{written.meta.id, {}}, {filled.meta.id, {}}, {MetaOf(2, 1).id, {}}, {written.meta.id, {}}});
  Settle();
  EXPECT_EQ(erase->done, 1);
  EXPECT_TRUE(erase->batch.ops[0].status.ok());
  EXPECT_TRUE(erase->batch.ops[1].status.ok());
  EXPECT_EQ(erase->batch.ops[2].status.code(), Code::kNotFound);
  EXPECT_EQ(erase->batch.ops[3].status.code(), Code::kNotFound);
  EXPECT_EQ(tier_->dram_usage().slot_bytes, kPage);
  tier_->Free(slot);
}

TEST_F(DramTierTest, RequestsOfTheWrongSizeAreInvalid) {
  MakeReady(1);
  const SampleBlock block(1, 1, kPage + 1);
  WriteOp short_write = block.ToWrite();
  short_write.source = short_write.source.first(kPage);
  WriteOp coded = block.ToWrite();
  coded.meta.stored_bytes = kPage;
  WriteOp empty = block.ToWrite();
  empty.meta.raw_bytes = empty.meta.stored_bytes = 0;
  auto write = Submit<WriteOp>({short_write, coded, empty});
  Settle();
  for (const WriteOp& op : write->batch.ops) EXPECT_EQ(op.status.code(), Code::kInvalid);
  ASSERT_EQ(WriteOne(block), Code::kOk);
  Buffer target(kPage);
  auto read = SubmitRead(block, target);
  Settle();
  EXPECT_EQ(read->batch.ops[0].status.code(), Code::kInvalid);
}

// Files in memory that a test can cut off, as a mapper could with a hole in a huge-page extent.
class CutExtents final : public ExtentSource {
 public:
  Result<std::unique_ptr<Extent>> New(uint64_t bytes) override {
    descriptor = memfd_create("cut", 0);
    if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
      return Status(Code::kNoSpace);
    }
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return std::unique_ptr<Extent>(
        std::make_unique<CutExtent>(descriptor, std::span(static_cast<std::byte*>(memory), bytes)));
  }
  uint64_t AvailableBytes() override { return UINT64_MAX / 2; }

  int descriptor = -1;  // Of the latest.

 private:
  class CutExtent final : public Extent {
   public:
    CutExtent(int descriptor, std::span<std::byte> bytes)
        : descriptor_(descriptor), bytes_(bytes) {}
    ~CutExtent() override {
      munmap(bytes_.data(), bytes_.size());
      close(descriptor_);
    }
    std::span<std::byte> bytes() override { return bytes_; }
    void KeepContents() override {}
    int descriptor() const override { return descriptor_; }
    bool huge_pages() const override { return false; }

   private:
    const int descriptor_;
    const std::span<std::byte> bytes_;
  };
};

TEST_F(DramTierTest, MemoryThatIsGoneIsCorruptAndItsExtentTakesNothingNew) {
  CutExtents source;
  auto made = NewDramTier({.capacity_bytes = 2 * kExtent, .extent_bytes = kExtent}, &source,
                          &workers_, &executor_, &clock_);
  ASSERT_TRUE(made.ok());
  tier_ = *std::move(made);
  const SampleBlock block(1, 1, kExtent / 2);
  const SampleBlock next(1, 2, kExtent / 2);
  EXPECT_EQ(WriteOne(block), Code::kBusy);
  tier_->Tick();
  Settle();
  EXPECT_EQ(WriteOne(block), Code::kOk);
  const std::vector<ExtentInfo> before = tier_->Extents();
  ASSERT_EQ(ftruncate(before[0].descriptor, 0), 0);

  Buffer target(kExtent / 2);
  auto read = SubmitRead(block, target);
  auto write = Submit<WriteOp>({next.ToWrite()});
  Settle();
  EXPECT_EQ(read->batch.ops[0].status.code(), Code::kCorrupt);
  EXPECT_EQ(write->batch.ops[0].status.code(), Code::kCorrupt);
  EXPECT_EQ(Counter("bus_errors"), 2u);
  EXPECT_EQ(Counter("corrupt_blocks"), 1u);
  EXPECT_THAT(tier_->Extents(), IsEmpty());  // Both slots were the tier's own, so it closed.
  EXPECT_EQ(WriteOne(next), Code::kOk);
  tier_.reset();
}

}  // namespace
}  // namespace aquifer
