// The eviction order with a million blocks, half of them leaves, as a full cache has it.
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "policy/eviction/leaf_recency.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr uint32_t kBlocks = 1'000'000;
constexpr uint16_t kTenants = 16;

BlockFeatures Of(uint32_t ref) {
  BlockFeatures features;
  features.tenant = static_cast<uint16_t>(ref % kTenants);
  return features;
}

std::unique_ptr<EvictionOrder> Fill(int64_t* now) {
  auto order = *NewLeafRecency({.max_blocks = kBlocks});
  SeededRandom random(1);
  for (uint32_t ref = 0; ref < kBlocks; ++ref) {
    order->Add(ref, Of(ref), static_cast<int64_t>(random.Below(kBlocks)));
    if (random.Below(2) == 0) order->SetLeaf(ref, false);
  }
  *now = kBlocks;
  return order;
}

void BM_Touch(benchmark::State& state) {
  int64_t now = 0;
  const auto order = Fill(&now);
  SeededRandom random(2);
  for (auto unused : state) {
    const auto ref = static_cast<uint32_t>(random.Below(kBlocks));
    order->Touch(ref, Of(ref), ++now);
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["bytes_per_block"] = static_cast<double>(order->bytes()) / order->size();
}
BENCHMARK(BM_Touch);

void BM_HoldAndUnhold(benchmark::State& state) {
  int64_t now = 0;
  const auto order = Fill(&now);
  SeededRandom random(3);
  for (auto unused : state) {
    const auto ref = static_cast<uint32_t>(random.Below(kBlocks));
    order->Hold(ref);
    order->Unhold(ref);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_HoldAndUnhold);

// The least valuable block of all goes, and a new one takes its ref.
void BM_EvictAndAdd(benchmark::State& state) {
  int64_t now = 0;
  const auto order = Fill(&now);
  for (auto unused : state) {
    const uint32_t victim = order->Victim([](uint16_t) { return true; });
    order->Remove(victim);
    order->Add(victim, Of(victim), ++now);
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_EvictAndAdd);

}  // namespace
}  // namespace aquifer
