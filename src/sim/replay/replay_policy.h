// A ReplayPolicy decides which blocks of a trace are kept, in a fixed number of blocks. The
// product's own orders run here as in a node (replay_order.h). The others are for comparison.
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

  // Takes the requests in the order of the trace. Returns how many blocks were there, from the
  // first on. Then all blocks of the request are used, and the missing ones stored.
  virtual uint32_t Use(const ReplayRequest& request, std::span<const uint32_t> blocks) = 0;

  // Blocks written to the lower tier; 0 if there is none.
  virtual uint64_t writes() const { return 0; }
};

// Takes "lru", "lru-2", "s3-fifo", "arc", "lirs" and "belady"; returns null for other names. The
// trace outlives the policy: belady looks ahead in it.
std::unique_ptr<ReplayPolicy> NewComparisonPolicy(std::string_view name, const ReplayTrace& trace,
                                                  uint32_t capacity_blocks);

}  // namespace aquifer
