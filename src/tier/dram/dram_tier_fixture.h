// What the tests of the DRAM tier share: blocks, and a tier whose workers and owner are stepped by
// hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "aquifer/checksum.h"
#include "base/clock.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_extents.h"
#include "testing/seeded_random.h"
#include "tier/dram/dram_tier.h"

namespace aquifer {

inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kExtent = 64 * 1024;
inline constexpr uint64_t kKeep = 10 * kExtent;

inline uint64_t RoundUp(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

inline TenantId Tenant(int number) { return TenantIdOf("tenant-" + std::to_string(number)); }

inline BlockMeta MetaOf(int tenant, uint64_t key, uint32_t position = 0) {
  BlockMeta meta;
  meta.id.tenant = Tenant(tenant);
  std::memcpy(meta.id.key.bytes.data(), &key, sizeof(key));
  meta.position = position;
  meta.raw_bytes = meta.stored_bytes = kPage;
  return meta;
}

// Page-aligned bytes that are a function of `seed`.
struct Buffer {
  explicit Buffer(uint64_t bytes, uint64_t seed = 0)
      : storage(new(std::align_val_t(kPage)) std::byte[RoundUp(bytes)]{}),
        span(storage.get(), RoundUp(bytes)) {
    if (seed != 0) SeededRandom(seed).Fill(span.first(bytes));
  }

  struct Delete {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t(kPage));
    }
  };
  std::unique_ptr<std::byte[], Delete> storage;
  std::span<std::byte> span;
};

struct SampleBlock {
  SampleBlock(int tenant, uint64_t key, uint64_t bytes)
      : meta(MetaOf(tenant, key)), data(bytes, key) {
    meta.raw_bytes = meta.stored_bytes = bytes;
    meta.checksum = ChecksumOf(data.span.first(bytes));
  }
  WriteOp ToWrite() const { return {.meta = meta, .source = data.span, .status = {}}; }

  BlockMeta meta;
  Buffer data;
};

inline ReadOp ReadOf(const SampleBlock& block, Buffer& target) {
  ReadOp op;
  op.id = block.meta.id;
  op.target = target.span;
  return op;
}

class DramTierFixture : public ::testing::Test {
 protected:
  void Make(DramTierOptions options) {
    auto made = NewDramTier(options, &extents_, &workers_, &executor_, &clock_);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    tier_ = *std::move(made);
  }

  // With every extent of the capacity faulted in.
  void MakeReady(uint64_t extents) {
    Make({.capacity_bytes = extents * kExtent,
          .extent_bytes = kExtent,
          .keep_available_bytes = kKeep,
          .ready_extents = UINT32_MAX});
    tier_->Tick();
    Settle();
  }

  // Runs workers and owner until nothing is left to do.
  void Settle() {
    while (workers_.RunAll() + executor_.RunAll() > 0) {
    }
  }

  SlotId MustAllocate(int tenant, uint64_t bytes) {
    auto slot = tier_->Allocate(Tenant(tenant), bytes);
    if (!slot.ok() && slot.status().code() == Code::kBusy) {
      Settle();
      slot = tier_->Allocate(Tenant(tenant), bytes);
    }
    EXPECT_TRUE(slot.ok()) << slot.status().ToString();
    return slot.ok() ? *slot : kNoSlot;
  }

  Code AllocateCode(int tenant, uint64_t bytes) {
    auto slot = tier_->Allocate(Tenant(tenant), bytes);
    return slot.ok() ? Code::kOk : slot.status().code();
  }

  // Fills a slot and publishes it, as the cache does.
  SlotId PublishFilled(const SampleBlock& block, int tenant) {
    const SlotId slot = MustAllocate(tenant, block.meta.raw_bytes);
    std::ranges::copy(block.data.span, tier_->SlotBytes(slot).begin());
    tier_->Publish(slot, block.meta);
    return slot;
  }

  template <class Op>
  struct Submitted {
    Batch<Op> batch;
    int done = 0;
    std::vector<size_t> quiescent;
  };

  template <class Op>
  std::unique_ptr<Submitted<Op>> Submit(std::vector<Op> ops, int64_t deadline = kNoDeadline) {
    auto submitted = std::make_unique<Submitted<Op>>();
    Submitted<Op>* const raw = submitted.get();
    raw->batch.ops = std::move(ops);
    raw->batch.deadline_nanos = deadline;
    raw->batch.on_done = [raw](Batch<Op>&) { ++raw->done; };
    raw->batch.on_quiescent = [raw](Batch<Op>&, size_t op) {
      EXPECT_EQ(raw->done, 1);
      raw->quiescent.push_back(op);
    };
    if constexpr (std::is_same_v<Op, ReadOp>) tier_->Read(&raw->batch);
    if constexpr (std::is_same_v<Op, WriteOp>) tier_->Write(&raw->batch);
    if constexpr (std::is_same_v<Op, EraseOp>) tier_->Erase(&raw->batch);
    EXPECT_EQ(raw->done, 0);
    return submitted;
  }

  auto SubmitRead(const SampleBlock& block, Buffer& target, int64_t deadline = kNoDeadline) {
    return Submit<ReadOp>({ReadOf(block, target)}, deadline);
  }

  Code WriteOne(const SampleBlock& block) {
    auto write = Submit<WriteOp>({block.ToWrite()});
    Settle();
    EXPECT_EQ(write->done, 1);
    return write->batch.ops[0].status.code();
  }

  uint64_t Counter(const std::string& name) {
    for (const auto& [counter, value] : tier_->Counters()) {
      if (counter == name) return value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  ManualClock clock_;
  ManualExecutor executor_{&clock_};
  ManualExecutor workers_{&clock_};
  MemoryExtents extents_;
  std::unique_ptr<DramTier> tier_;
};

}  // namespace aquifer
