// What a seed decides before anything happens: the node and its limits, who uses it and how, and
// which faults come when. All of it is small, so that eviction, reclaim, quotas and recovery happen
// all the time, and a seed takes milliseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "aquifer/layout.h"
#include "sim/world/fault.h"
#include "sim/world/node.h"
#include "sim/world/shared_stores.h"

namespace aquifer {

struct EnginePlan {
  uint32_t tenant = 0;
  uint64_t seed = 0;
  uint32_t ranks = 1;
  bool present = true;  // The minimiser takes engines away.
  uint32_t node = 0;
};

struct Scenario {
  uint64_t seed = 0;
  SimulatedNodeOptions node;
  // Of seeds from kStoreSeeds on (scenario_stores.cc): durable tiers, and in most of these another
  // node that shares them.
  StoresPlan stores;
  std::optional<SimulatedNodeOptions> second_node;
  std::vector<Layout> layouts;
  std::vector<EnginePlan> engines;
  int64_t think_nanos = 0;     // An engine's usual pause between two things it does.
  uint64_t conversations = 0;  // Chains that a tenant has at most.
  uint64_t chain_blocks = 0;   // About how long they get.
  uint64_t steps = 0;          // Then the faults end, and everything is checked.
  std::vector<Fault> faults;
  // NVMe has room for all that is stored, and no bit flips: what is flushed must be found.
  bool roomy = false;
  bool ends_with_deletion = false;  // Everything is deleted at the end, and must stay so.
};

Scenario MakeScenario(uint64_t number);

// So many seeds from here on have durable tiers. All else of such a seed is as in the seed less
// this number.
inline constexpr uint64_t kStoreSeeds = 5'000'000'000'000'000'000;
inline bool HasStores(uint64_t seed) {
  return seed >= kStoreSeeds && seed - kStoreSeeds < 1'000'000'000'000'000'000;
}
// Adds them, and what befalls them. `random` is a stream of its own.
void AddStores(uint64_t random_seed, Scenario* scenario);

}  // namespace aquifer
