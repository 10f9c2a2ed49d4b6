// A whole trace in memory, for judging policies. Blocks are numbered 0, 1, 2... in the order in
// which they first come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "trace/trace_reader.h"

namespace aquifer {

struct ReplayRequest {
  int64_t at_nanos = 0;
  uint32_t input_tokens = 0;
  uint32_t output_tokens = 0;
  uint32_t full_blocks = 0;  // The last block may be partly filled.
  uint64_t first = 0;        // Where its blocks begin in ReplayTrace::blocks.
  uint32_t blocks = 0;
};

struct ReplayTrace {
  std::vector<ReplayRequest> requests;
  std::vector<uint32_t> blocks;  // Blocks of all requests, one request after the other.
  uint32_t distinct = 0;
  uint32_t tokens_per_block = 0;  // 0: the lengths fit no size, and every block counts as full.

  std::span<const uint32_t> BlocksOf(const ReplayRequest& request) const {
    return std::span(blocks).subspan(request.first, request.blocks);
  }
};

// Reads to the end, or returns kLate if `on_progress`, which is called now and then, returned
// false. Returns kNoSpace for more than 2^32 - 2 different blocks.
Result<ReplayTrace> LoadReplayTrace(TraceReader* reader, const std::function<bool()>& on_progress);

// For each request, the time to the request that continues it, at least 1; 0: none. A request
// continues an earlier one if it begins with all full blocks of that one. No request between them
// may go further along the same way.
std::vector<int64_t> NanosToContinuation(const ReplayTrace& trace);

}  // namespace aquifer
