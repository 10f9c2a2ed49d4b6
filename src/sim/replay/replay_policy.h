// What decides which blocks of a trace are kept, at a fixed number of blocks. The product's own
// orders run here as they do in a node (replay_order.h); the others are there to be compared with.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "sim/replay/replay_trace.h"

namespace aquifer {

class ReplayPolicy {
 public:
  virtual ~ReplayPolicy() = default;

  // Requests come in the order of the trace. Returns how many blocks from the first on were there;
  // then all of them are used, and those that were not are stored.
  virtual uint32_t Use(const ReplayRequest& request, std::span<const uint32_t> blocks) = 0;

  // Blocks written to the lower tier; 0 where there is none.
  virtual uint64_t writes() const { return 0; }
};

// "lru", "lru-2", "s3-fifo", "arc", "lirs" and "belady"; null when it is none of these. The trace
// outlives the policy: belady looks ahead in it.
std::unique_ptr<ReplayPolicy> NewComparisonPolicy(std::string_view name, const ReplayTrace& trace,
                                                  uint32_t capacity_blocks);

}  // namespace aquifer
