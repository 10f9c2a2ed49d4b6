// Least recently used first, leaves only: the eviction order to begin with. A priority shifts a
// block's last use by a fixed time, so that a block of lower priority looks as if it had not been
// used for longer. What a caller said has ended looks oldest of all.
//
// Every tenant has a heap of the blocks that may be evicted; held blocks and inner ones are in no
// heap and cost nothing when touched. 24 bytes a block, and 16 more while it may be evicted.
#pragma once

#include <cstdint>
#include <memory>

#include "aquifer/status.h"
#include "policy/eviction/eviction_order.h"

namespace aquifer {

struct LeafRecencyOptions {
  uint32_t max_blocks = 0;  // Refs are below this.
  // A step of priority is worth so much time since the last use.
  int64_t priority_step_nanos = int64_t{600} * 1'000'000'000;
};

// kInvalid: max_blocks is zero. kNoSpace: no memory.
Result<std::unique_ptr<EvictionOrder>> NewLeafRecency(const LeafRecencyOptions& options);

}  // namespace aquifer
