#include "sim/world/scenario.h"

#include <algorithm>
#include <string>

#include "testing/chain.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr int64_t kMicro = 1'000;
constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

enum Stream : uint64_t { kShape = 1, kNode, kFaults, kRanks, kStores, kEngines = 100 };

// A stream of numbers of its own for each part, so that a change to one leaves the others alone.
uint64_t StreamSeed(uint64_t seed, uint64_t stream) {
  SeededRandom random(seed ^ stream * 0xD6E8FEB86659FD93u);
  random.Next();
  return random.Next();
}

bool OneIn(SeededRandom* random, uint64_t count) { return random->Below(count) == 0; }

uint64_t Between(SeededRandom* random, uint64_t low, uint64_t high) {
  return low + random->Below(high - low + 1);
}

template <class T>
T OneOf(SeededRandom* random, std::initializer_list<T> values) {
  return values.begin()[random->Below(values.size())];
}

std::vector<Layout> MakeLayouts(SeededRandom* random) {
  std::vector<Layout> layouts;
  for (uint64_t count = Between(random, 1, 2); count > 0; --count) {
    const uint64_t bytes = OneOf<uint64_t>(random, {4096, 4096, 4100, 8192, 12'288});
    const uint64_t groups = OneIn(random, 3) ? 2 : 1;
    layouts.push_back(LayoutOfBytes(bytes, groups));
    layouts.back().model[1] = static_cast<std::byte>(layouts.size());
  }
  return layouts;
}

void MakeTenants(SeededRandom* random, bool roomy, CacheOptions* cache) {
  const uint64_t count = Between(random, 1, 3);
  for (uint64_t i = 0; i < count; ++i) {
    TenantOptions tenant;
    tenant.name = "tenant-" + std::to_string(i);
    if (OneIn(random, 4)) tenant.dram_ceiling_bytes = cache->dram_bytes / Between(random, 2, 4);
    if (OneIn(random, 4)) {
      tenant.dram_floor_bytes = std::min(cache->dram_bytes / 4, tenant.dram_ceiling_bytes);
    }
    if (!roomy && OneIn(random, 4)) {
      tenant.nvme_ceiling_bytes = cache->nvme_bytes / Between(random, 2, 8);
    }
    if (!roomy && !cache->nvme_directories.empty() && OneIn(random, 6)) {
      tenant.nvme_floor_bytes = std::min(cache->nvme_bytes / 8, tenant.nvme_ceiling_bytes);
    }
    if (OneIn(random, 4)) tenant.ttl_seconds = static_cast<int64_t>(Between(random, 1, 600));
    cache->tenants.push_back(tenant);
  }
}

SimulatedNodeOptions MakeNode(SeededRandom* random, bool roomy) {
  SimulatedNodeOptions node;
  CacheOptions& cache = node.core.cache;
  node.core.extent_bytes = OneOf<uint64_t>(random, {32, 64, 64, 128}) << 10;
  cache.dram_bytes =
      node.core.extent_bytes * Between(random, 2, 8) + OneOf<uint64_t>(random, {0, 5000});
  cache.keep_available_bytes = 1 << 20;
  node.core.ready_extents = OneOf<uint32_t>(random, {0, 1, UINT32_MAX});
  node.core.max_blocks = OneIn(random, 8) ? 64 : 2048;
  node.core.max_leases_per_client = OneIn(random, 8) ? 12 : 1024;
  node.core.max_requests_per_client = OneIn(random, 16) ? 1 : 64;
  node.core.max_sessions = OneIn(random, 8) ? 2 : 100;
  node.core.tick_nanos = OneOf<int64_t>(random, {50 * kMilli, 500 * kMilli});
  node.core.reopen_nanos = OneOf<int64_t>(random, {100 * kMilli, kSecond});
  const uint64_t drives = OneIn(random, 12) ? 0 : OneIn(random, 3) ? 2 : 1;
  for (uint64_t i = 0; i < drives; ++i)
    cache.nvme_directories.push_back("drive-" + std::to_string(i));
  cache.nvme_segment_bytes = OneOf<uint64_t>(random, {96, 128, 128, 192}) << 10;
  const uint64_t segments = roomy ? 96 : Between(random, 6, 14);
  cache.nvme_bytes = std::max<uint64_t>(
      (segments * cache.nvme_segment_bytes + 4096) * std::max<uint64_t>(drives, 1),
      (uint64_t{1} << 20) * std::max<uint64_t>(drives, 1));
  cache.nvme_sync = OneIn(random, 2);
  cache.write_bytes_per_second = OneOf<uint64_t>(random, {0, 0, 0, 1'000'000, 100'000'000});
  cache.overdue_nanos = OneOf<int64_t>(random, {100 * kMilli, 10 * kSecond, 60 * kSecond});
  cache.assumed_prefill_ms_per_token = OneOf<double>(random, {0, 0, 0.25});
  node.disk.latency_nanos = OneOf<int64_t>(random, {5 * kMicro, 80 * kMicro, kMilli});
  node.disk.jitter_nanos = OneOf<int64_t>(random, {5 * kMicro, 200 * kMicro, 5 * kMilli});
  node.disk.bytes_per_second = OneOf<uint64_t>(random, {0, 200'000'000, 2'000'000'000});
  node.disk.max_queued = OneIn(random, 16) ? 128 : 4096;
  node.disk.shuffle = true;
  node.disk.tear_failed_writes = true;
  node.owner_task_nanos = OneOf<int64_t>(random, {200, 2 * kMicro, 20 * kMicro});
  node.worker_task_nanos = OneOf<int64_t>(random, {2 * kMicro, 20 * kMicro, 500 * kMicro});
  MakeTenants(random, roomy, &cache);
  return node;
}

// Which faults a seed may see: some see none of a kind, so that the rest is seen more clearly.
std::vector<FaultKind> KindsOf(SeededRandom* random, const Scenario& scenario) {
  std::vector<FaultKind> kinds;
  for (size_t i = 0; i < kNodeFaultKinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    const bool wanted = kind == FaultKind::kCrash ? !OneIn(random, 6) : OneIn(random, 3);
    if (!wanted) continue;
    const bool costs_blocks = kind == FaultKind::kBitFlip || kind == FaultKind::kFullDrive ||
                              kind == FaultKind::kFailedCreates;
    if (scenario.roomy && costs_blocks) continue;
    if (kind == FaultKind::kPowerLoss && scenario.roomy && !scenario.node.core.cache.nvme_sync) {
      continue;
    }
    kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace

Scenario MakeScenario(uint64_t number) {
  const bool has_stores = HasStores(number);
  const uint64_t seed = has_stores ? number - kStoreSeeds : number;
  Scenario scenario;
  scenario.seed = number;
  SeededRandom random(StreamSeed(seed, kShape));
  scenario.roomy = OneIn(&random, 2);
  scenario.node = MakeNode(&random, scenario.roomy);
  // By number and not by chance: all else of a seed stays what it is.
  scenario.node.core.cache.eviction =
      seed % 4 == 3 ? EvictionPolicy::kLru : EvictionPolicy::kLearned;
  if (seed % 8 == 5) scenario.node.core.cache.nvme_written_part = 0.4;
  scenario.node.seed = StreamSeed(seed, kNode);
  scenario.layouts = MakeLayouts(&random);
  const size_t tenants = scenario.node.core.cache.tenants.size();
  const uint64_t engines = Between(&random, 1, 4);
  for (uint64_t i = 0; i < engines; ++i) {
    scenario.engines.push_back({.tenant = static_cast<uint32_t>(i % tenants),
                                .seed = StreamSeed(seed, kEngines + i),
                                .ranks = 1,
                                .present = true});
  }
  SeededRandom ranks(StreamSeed(seed, kRanks));
  if (OneIn(&ranks, 3)) {
    for (EnginePlan& engine : scenario.engines) engine.ranks = OneIn(&ranks, 2) ? 2 : 1;
  }
  scenario.think_nanos = OneOf<int64_t>(&random, {20 * kMicro, kMilli, 50 * kMilli, 2 * kSecond});
  scenario.conversations = Between(&random, 2, 6);
  scenario.chain_blocks = OneOf<uint64_t>(&random, {4, 12, 24});
  scenario.ends_with_deletion = OneIn(&random, 4);
  scenario.steps = Between(&random, 800, 4000);
  const uint64_t faults = OneIn(&random, 8) ? 0 : Between(&random, 1, 8);
  scenario.faults = MakeFaultSchedule({.seed = StreamSeed(seed, kFaults),
                                       .steps = scenario.steps,
                                       .count = faults,
                                       .kinds = KindsOf(&random, scenario)});
  if (has_stores) AddStores(StreamSeed(seed, kStores), &scenario);
  scenario.node.reorder_until_sync =
      std::any_of(scenario.faults.begin(), scenario.faults.end(),
                  [](const Fault& fault) { return fault.kind == FaultKind::kPowerLoss; });
  return scenario;
}

}  // namespace aquifer
