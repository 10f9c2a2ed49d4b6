#include "sim/replay/replay_trace.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

namespace aquifer {
namespace {

constexpr uint64_t kRequestsBetweenProgress = 4096;

// A request of k blocks has more tokens than k - 1 blocks hold, and at most as many as k hold.
class BlockSize {
 public:
  void Add(uint64_t tokens, uint64_t blocks) {
    if (blocks == 0) return;
    least_ = std::max(least_, (tokens + blocks - 1) / blocks);
    if (blocks > 1)
      most_ = std::min(most_, (tokens - std::min<uint64_t>(tokens, 1)) / (blocks - 1));
  }

  // Returns 0 if no size fits all requests. Of several sizes, the one that people choose.
  uint32_t Find() const {
    if (least_ == 0 || least_ > most_ || least_ > UINT32_MAX / 2) return 0;
    const uint64_t round = std::bit_ceil(least_);
    return static_cast<uint32_t>(round <= most_ ? round : least_);
  }

 private:
  uint64_t least_ = 0;
  uint64_t most_ = UINT64_MAX;
};

uint32_t Clamp(uint64_t tokens) {
  return static_cast<uint32_t>(std::min<uint64_t>(tokens, UINT32_MAX));
}

}  // namespace

Result<ReplayTrace> LoadReplayTrace(TraceReader* reader, const std::function<bool()>& on_progress) {
  ReplayTrace trace;
  std::unordered_map<uint64_t, uint32_t> numbers;  // lookup only: never walked
  BlockSize size;
  TraceRequest request;
  while (true) {
    AQ_ASSIGN_OR_RETURN(const bool more, reader->Next(&request));
    if (!more) break;
    if (reader->requests() % kRequestsBetweenProgress == 0 && on_progress && !on_progress()) {
      return Status(Code::kLate, "interrupted");
    }
    size.Add(request.input_tokens, request.block_ids.size());
    trace.requests.push_back({.at_nanos = static_cast<int64_t>(request.timestamp_ms) * 1'000'000,
                              .input_tokens = Clamp(request.input_tokens),
                              .output_tokens = Clamp(request.output_tokens),
                              .full_blocks = 0,
                              .first = trace.blocks.size(),
                              .blocks = static_cast<uint32_t>(request.block_ids.size())});
    for (const uint64_t id : request.block_ids) {
      const auto [found, added] = numbers.try_emplace(id, trace.distinct);
      if (added && ++trace.distinct == UINT32_MAX - 1) {
        return Status(Code::kNoSpace, "the trace has more different blocks than can be numbered");
      }
      trace.blocks.push_back(found->second);
    }
  }
  trace.tokens_per_block = size.Find();
  for (ReplayRequest& each : trace.requests) {
    each.full_blocks = trace.tokens_per_block == 0
                           ? each.blocks
                           : std::min(each.blocks, each.input_tokens / trace.tokens_per_block);
  }
  return trace;
}

std::vector<int64_t> NanosToContinuation(const ReplayTrace& trace) {
  constexpr uint32_t kNobody = UINT32_MAX;
  std::vector<int64_t> nanos(trace.requests.size(), 0);
  std::vector<uint32_t> last(trace.distinct, kNobody);  // By block: the request that used it last.
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const auto blocks = trace.BlocksOf(trace.requests[i]);
    size_t known = 0;
    while (known < blocks.size() && last[blocks[known]] != kNobody) ++known;
    if (known > 0) {
      const uint32_t before = last[blocks[known - 1]];
      const int64_t gap = trace.requests[i].at_nanos - trace.requests[before].at_nanos;
      if (known >= trace.requests[before].full_blocks && nanos[before] == 0) {
        nanos[before] = std::max<int64_t>(gap, 1);
      }
    }
    for (const uint32_t block : blocks) last[block] = static_cast<uint32_t>(i);
  }
  return nanos;
}

}  // namespace aquifer
