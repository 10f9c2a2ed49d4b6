// Runs a trace against the product's own eviction orders, in the same steps as a cache. A chain is
// requested, then used tail first and stored, then room is made. One tier, or DRAM above NVMe.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "policy/eviction/block_features.h"
#include "sim/replay/replay_policy.h"
#include "sim/replay/replay_trace.h"

namespace aquifer {

struct ReplayOrderOptions {
  uint32_t capacity_blocks = 0;
  uint32_t nvme_blocks = 0;  // 0: there is no second tier.
  double written_part = 1;   // Of what is stored, to NVMe: as in a node's configuration.
  // For each request, the caller's hint; empty: no hints.
  std::vector<SessionHint> hints;
};

// Takes "lru-leaf" or "learned"; with two tiers also "lru", which is the same as "lru-leaf".
// Returns null for other names. The trace outlives the policy.
Result<std::unique_ptr<ReplayPolicy>> NewOrderPolicy(std::string_view name,
                                                     const ReplayTrace& trace,
                                                     ReplayOrderOptions options);

}  // namespace aquifer
