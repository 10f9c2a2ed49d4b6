// A trace against the product's own eviction orders, told of it as a cache would tell them: a chain
// is asked for, then used tail first and stored, then room is made. One tier, or DRAM above NVMe.
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
  // By request, what the caller says of it; empty: nothing.
  std::vector<SessionHint> hints;
};

// "lru-leaf" or "learned", and with two tiers "lru", which is the same as "lru-leaf"; null when it
// is none of these. The trace outlives it.
Result<std::unique_ptr<ReplayPolicy>> NewOrderPolicy(std::string_view name,
                                                     const ReplayTrace& trace,
                                                     ReplayOrderOptions options);

}  // namespace aquifer
