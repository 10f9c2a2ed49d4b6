// The slot path (what the cache does for every block, on its own thread) and copies through the
// Tier interface, beside a plain memcpy of the same bytes by one thread.
#include <benchmark/benchmark.h>

#include <cstring>
#include <future>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "aquifer/checksum.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/executor.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_extents.h"
#include "tier/dram/dram_tier.h"

namespace aquifer {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kExtent = uint64_t{64} << 20;
constexpr size_t kBatch = 64;

BlockMeta MetaOf(uint64_t number, uint64_t bytes) {
  BlockMeta meta;
  meta.id.tenant = TenantIdOf("bench");
  const uint64_t key = number * 0x9E3779B97F4A7C15u;
  std::memcpy(meta.id.key.bytes.data(), &key, sizeof(key));
  meta.raw_bytes = meta.stored_bytes = bytes;
  return meta;
}

// A pool that holds `blocks` blocks of 4 KiB. Its memory is never touched, so it costs nothing.
class FullPool {
 public:
  explicit FullPool(uint64_t blocks) {
    const uint64_t extents = (blocks * kPage + kExtent - 1) / kExtent;
    auto made = NewDramTier({.capacity_bytes = (extents + 1) * kExtent,
                             .keep_available_bytes = 0,
                             .ready_extents = UINT32_MAX},
                            &extents_, &executor_, &executor_, &clock_);
    AQ_CHECK(made.ok());
    tier_ = *std::move(made);
    tier_->Tick();
    executor_.RunAll();
    for (uint64_t i = 0; i < blocks; ++i) {
      metas_.push_back(MetaOf(i, kPage));
      auto slot = tier_->Allocate(metas_[i].id.tenant, kPage);
      AQ_CHECK(slot.ok());
      tier_->Publish(*slot, metas_[i]);
    }
  }

  DramTier& tier() { return *tier_; }
  // A different block each time, far from the last.
  const BlockMeta& Next() { return metas_[(next_ += 7919) % metas_.size()]; }

 private:
  ManualClock clock_;
  ManualExecutor executor_{&clock_};
  MemoryExtents extents_;
  std::unique_ptr<DramTier> tier_;
  std::vector<BlockMeta> metas_;
  size_t next_ = 0;
};

void BM_Find(benchmark::State& state) {
  FullPool pool(static_cast<uint64_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(pool.tier().Find(pool.Next().id));
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Find)->Arg(1 << 10)->Arg(1 << 18);

// One block leaves and one comes: Find, Retract, Free, Allocate, SlotBytes, Publish.
void BM_ReplaceBlock(benchmark::State& state) {
  FullPool pool(static_cast<uint64_t>(state.range(0)));
  for (auto _ : state) {
    const BlockMeta& meta = pool.Next();
    const SlotId slot = pool.tier().Find(meta.id);
    pool.tier().Retract(slot);
    pool.tier().Free(slot);
    auto again = pool.tier().Allocate(meta.id.tenant, kPage);
    benchmark::DoNotOptimize(pool.tier().SlotBytes(*again).data());
    pool.tier().Publish(*again, meta);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ReplaceBlock)->Arg(1 << 10)->Arg(1 << 18);

struct Buffers {
  explicit Buffers(uint64_t bytes)
      : bytes(bytes), memory(new(std::align_val_t(kPage)) std::byte[kBatch * bytes]) {
    for (uint64_t i = 0; i < kBatch * bytes; ++i) memory[i] = static_cast<std::byte>(i * 31);
  }
  ~Buffers() { ::operator delete[](memory, std::align_val_t(kPage)); }
  std::span<std::byte> At(size_t i) const { return {memory + i * bytes, bytes}; }

  const uint64_t bytes;
  std::byte* const memory;
};

void CountBytes(benchmark::State& state, uint64_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBatch * bytes));
}

void BM_Memcpy(benchmark::State& state) {
  const auto bytes = static_cast<uint64_t>(state.range(0));
  const Buffers from(bytes);
  const Buffers to(bytes);
  for (auto _ : state) {
    for (size_t i = 0; i < kBatch; ++i) {
      std::memcpy(to.At(i).data(), from.At(i).data(), bytes);
      benchmark::ClobberMemory();
    }
  }
  CountBytes(state, bytes);
}
BENCHMARK(BM_Memcpy)->Arg(4 << 10)->Arg(64 << 10)->Arg(1 << 20)->Arg(4 << 20)->UseRealTime();

// A batch of 64 through the tier: copied, checksummed and verified by `threads` workers.
void BM_ReadBatch(benchmark::State& state) {
  const auto bytes = static_cast<uint64_t>(state.range(0));
  const auto executor = NewThreadExecutor({}, SystemClock());
  auto workers = NewThreadWorkerPool(static_cast<int>(state.range(1)), "worker");
  MemoryExtents extents;
  auto made = NewDramTier({.capacity_bytes = kBatch * bytes + 2 * kExtent,
                           .keep_available_bytes = 0,
                           .ready_extents = UINT32_MAX},
                          &extents, workers.get(), executor.get(), SystemClock());
  AQ_CHECK(made.ok());
  std::unique_ptr<DramTier> tier = *std::move(made);
  const auto on_owner = [&](auto task) {
    std::promise<void> done;
    executor->Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  };

  const Buffers blocks(bytes);
  const Buffers targets(bytes);
  Batch<ReadOp> batch;
  for (size_t i = 0; i < kBatch; ++i) {
    BlockMeta meta = MetaOf(i, bytes);
    meta.checksum = ChecksumOf(blocks.At(i));
    Code code = Code::kBusy;
    while (code == Code::kBusy) {
      on_owner([&] {
        tier->Tick();
        auto slot = tier->Allocate(meta.id.tenant, bytes);
        code = slot.ok() ? Code::kOk : slot.status().code();
        if (!slot.ok()) return;
        std::memcpy(tier->SlotBytes(*slot).data(), blocks.At(i).data(), bytes);
        tier->Publish(*slot, meta);
      });
    }
    AQ_CHECK(code == Code::kOk);
    ReadOp op;
    op.id = meta.id;
    op.target = targets.At(i);
    batch.ops.push_back(std::move(op));
  }

  for (auto _ : state) {
    std::promise<void> done;
    batch.on_done = [&done](Batch<ReadOp>& read) {
      for (const ReadOp& op : read.ops) AQ_CHECK(op.status.ok());
      done.set_value();
    };
    executor->Post([&] { tier->Read(&batch); });
    done.get_future().wait();
  }
  CountBytes(state, bytes);
  on_owner([&] { tier.reset(); });
  workers.reset();
  executor->Stop();
}
BENCHMARK(BM_ReadBatch)
    ->ArgsProduct({{4 << 10, 64 << 10, 1 << 20, 4 << 20}, {1, 2}})
    ->UseRealTime();

}  // namespace
}  // namespace aquifer
