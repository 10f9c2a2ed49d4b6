// What a seed from kStoreSeeds on has beside its node: durable tiers, mostly another node that
// shares them, and what befalls them. Drawn from a stream of its own.
#include <algorithm>
#include <initializer_list>
#include <string>

#include "sim/world/scenario.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1'000'000'000;

bool OneIn(SeededRandom* random, uint64_t count) { return random->Below(count) == 0; }

uint64_t Between(SeededRandom* random, uint64_t low, uint64_t high) {
  return low + random->Below(high - low + 1);
}

template <class T>
T OneOf(SeededRandom* random, std::initializer_list<T> values) {
  return values.begin()[random->Below(values.size())];
}

StorePlan MakeStore(SeededRandom* random, size_t number) {
  StorePlan plan;
  SimulatedStoreOptions& store = plan.store;
  store.name = "store-" + std::to_string(number);
  store.latency_nanos = OneOf<int64_t>(random, {100'000, kMilli, 20 * kMilli, 100 * kMilli});
  store.jitter_nanos = OneOf<int64_t>(random, {10'000, kMilli, 50 * kMilli});
  store.bytes_per_second = OneOf<uint64_t>(random, {0, 0, 20'000'000});
  store.max_queued = OneIn(random, 8) ? 32 : 1024;
  store.holds_buffers = OneIn(random, 3);
  store.listing_lag_nanos = OneIn(random, 3) ? OneOf<int64_t>(random, {kSecond, 20 * kSecond}) : 0;
  store.seed = random->Next();
  // A cache like Redis: it forgets, and what it has is not durable.
  if (OneIn(random, 5)) {
    plan.lasting = false;
    plan.writes = DurableWrites::kAll;
    store.forgets_expired = true;
    store.capacity_bytes = OneIn(random, 2) ? 64 << 10 : 0;
  } else {
    plan.writes = OneIn(random, 4) ? DurableWrites::kAll : DurableWrites::kDurable;
  }
  plan.write_bytes_per_second = OneOf<uint64_t>(random, {0, 0, 200'000});
  plan.tier.name = store.name;
  plan.tier.lossless = OneIn(random, 4) ? LosslessUse::kAlways : LosslessUse::kNever;
  plan.tier.max_queued_ops = OneIn(random, 8) ? 64 : 1024;
  plan.tier.scratch_bytes = OneIn(random, 8) ? 64 << 10 : 4 << 20;
  plan.tier.sweep_interval_nanos = OneOf<int64_t>(random, {20 * kSecond, 300 * kSecond});
  plan.tier.sweep_looks_per_second = OneOf<uint32_t>(random, {5, 50});
  return plan;
}

// Each tenant has an engine on both nodes.
void AddSecondNode(SeededRandom* random, Scenario* scenario) {
  SimulatedNodeOptions second = scenario->node;
  second.seed = random->Next();
  second.number = 1;
  if (OneIn(random, 3)) {
    second.core.cache.nvme_directories.clear();
    for (TenantOptions& tenant : second.core.cache.tenants) tenant.nvme_floor_bytes = 0;
  }
  scenario->second_node = second;
  const size_t tenants = scenario->node.core.cache.tenants.size();
  for (size_t i = scenario->engines.size(); i < 2 * tenants; ++i) {
    scenario->engines.push_back({.tenant = static_cast<uint32_t>(i % tenants),
                                 .seed = random->Next(),
                                 .ranks = 1,
                                 .present = true});
  }
  for (size_t i = 0; i < scenario->engines.size(); ++i) {
    scenario->engines[i].node = static_cast<uint32_t>(i / tenants % 2);
  }
}

void AddFaults(SeededRandom* random, Scenario* scenario) {
  std::vector<FaultKind> kinds;
  for (size_t i = kNodeFaultKinds; i < kFaultKinds; ++i) {
    if (OneIn(random, 3)) kinds.push_back(static_cast<FaultKind>(i));
  }
  // A node whose drives are gone says what a flush is worth.
  if (OneIn(random, 2)) kinds.push_back(FaultKind::kHostReplaced);
  const uint64_t count = OneIn(random, 6) ? 0 : Between(random, 1, 6);
  const std::vector<Fault> faults = MakeFaultSchedule(
      {.seed = random->Next(), .steps = scenario->steps, .count = count, .kinds = kinds});
  scenario->faults.insert(scenario->faults.end(), faults.begin(), faults.end());
  SortFaults(&scenario->faults);
}

}  // namespace

void AddStores(uint64_t random_seed, Scenario* scenario) {
  SeededRandom random(random_seed);
  StoresPlan& plan = scenario->stores;
  plan.seed = random.Next();
  plan.sealed = OneIn(&random, 2);
  const uint64_t stores = OneIn(&random, 3) ? 2 : 1;
  for (uint64_t i = 0; i < stores; ++i) plan.stores.push_back(MakeStore(&random, i));
  for (TenantOptions& tenant : scenario->node.core.cache.tenants) {
    if (OneIn(&random, 2)) tenant.durability = Durability::kDurable;
    // A time to live that ends while the seed runs, or outlives it.
    const uint64_t most = OneOf<uint64_t>(&random, {200, 4000});
    if (OneIn(&random, 3)) tenant.ttl_seconds = static_cast<int64_t>(Between(&random, 20, most));
  }
  scenario->steps *= 2;  // Twice as much happens, and keys and sweeps go by the clock.
  for (Fault& fault : scenario->faults) fault.step *= 2;
  scenario->think_nanos = std::max<int64_t>(scenario->think_nanos, kMilli);
  if (!OneIn(&random, 4)) AddSecondNode(&random, scenario);
  if (OneIn(&random, 3)) {
    const auto ahead = [&random] { return static_cast<int64_t>(random.Below(600)) - 300; };
    scenario->node.clock_ahead_seconds = ahead();
    if (scenario->second_node) scenario->second_node->clock_ahead_seconds = ahead();
  }
  AddFaults(&random, scenario);
}

}  // namespace aquifer
