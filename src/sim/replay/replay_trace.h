// A whole trace in memory, as policies are judged on it: blocks are numbered 0, 1, 2... in the
// order in which they first come.
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
  uint32_t full_blocks = 0;  // The last one may be partly filled.
  uint64_t first = 0;        // Its blocks lie here in ReplayTrace::blocks.
  uint32_t blocks = 0;
};

struct ReplayTrace {
  std::vector<ReplayRequest> requests;
  std::vector<uint32_t> blocks;  // Of all requests, one after the other.
  uint32_t distinct = 0;
  uint32_t tokens_per_block = 0;  // 0: the lengths fit no size, and every block counts as full.

  std::span<const uint32_t> BlocksOf(const ReplayRequest& request) const {
    return std::span(blocks).subspan(request.first, request.blocks);
  }
};

// Reads to the end, or until `on_progress`, called now and then, says false: then it is kLate.
// kNoSpace: more than 2^32 - 2 different blocks.
Result<ReplayTrace> LoadReplayTrace(TraceReader* reader, const std::function<bool()>& on_progress);

// Which requests are gone on from, and after how long, at least 1: a later one begins with all of
// their full blocks, and no other request came between that went the same way further. 0: none.
std::vector<int64_t> NanosToContinuation(const ReplayTrace& trace);

}  // namespace aquifer
