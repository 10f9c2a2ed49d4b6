// The slot path: what the cache does in the pool for every block, on its own thread.
#include <benchmark/benchmark.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_extents.h"
#include "tier/dram/dram_pool.h"

namespace aquifer {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kExtent = uint64_t{64} << 20;

// One block leaves and one comes: Retract, Free, Allocate, SlotBytes, Publish. The memory is never
// touched, so it costs nothing.
void BM_ReplaceBlock(benchmark::State& state) {
  const auto blocks = static_cast<uint64_t>(state.range(0));
  ManualClock clock;
  ManualExecutor executor(&clock);
  MemoryExtents memory;
  const uint64_t extents = (blocks * kPage + kExtent - 1) / kExtent;
  auto made = NewDramPool({.capacity_bytes = (extents + 1) * kExtent,
                           .keep_available_bytes = 0,
                           .ready_extents = UINT32_MAX},
                          &memory, &executor, &executor);
  AQ_CHECK(made.ok());
  const std::unique_ptr<DramPool> pool = *std::move(made);
  pool->Tick();
  executor.RunAll();
  const TenantId tenant = TenantIdOf("bench");
  std::vector<SlotId> slots;
  for (uint32_t i = 0; i < blocks; ++i) {
    auto slot = pool->Allocate(tenant, kPage);
    AQ_CHECK(slot.ok());
    pool->Publish(*slot, tenant, kPage, i);
    slots.push_back(*slot);
  }
  uint32_t next = 0;
  for (auto _ : state) {
    next = static_cast<uint32_t>((next + 7919) % slots.size());  // Far from the last.
    pool->Retract(slots[next]);
    pool->Free(slots[next]);
    slots[next] = *pool->Allocate(tenant, kPage);
    benchmark::DoNotOptimize(pool->SlotBytes(slots[next]).data());
    pool->Publish(slots[next], tenant, kPage, next);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ReplaceBlock)->Arg(1 << 10)->Arg(1 << 18);

}  // namespace
}  // namespace aquifer
