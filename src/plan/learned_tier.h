// The node's own learned order (policy/eviction/learned_order.h) on the requests of a trace, at one
// size: what depths cannot tell, since what it keeps does not follow from the order of use alone.
// It costs some microseconds a block, so it runs for the first `max_references` blocks of a trace.
// One node, one tier. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "policy/eviction/learned_order.h"
#include "trace/trace_reader.h"

namespace aquifer {

struct LearnedTierOptions {
  uint64_t capacity_blocks = 0;
  uint64_t block_tokens = 0;
  uint64_t max_references = 1'000'000;
};

class LearnedTier {
 public:
  static Result<std::unique_ptr<LearnedTier>> New(const LearnedTierOptions& options);

  // `used` are the blocks of the prompt and, behind them, those of the output that are stored.
  void Ask(const TraceRequest& request, std::span<const uint64_t> used);
  // A block that was known by another name before, as an output is until a prompt names it.
  void Rename(uint64_t from, uint64_t to);

  // False: it has had its references and looks at nothing more.
  bool runs() const { return references_ < options_.max_references; }
  uint64_t references() const { return references_; }
  double hit_rate() const {
    return references_ == 0 ? 0 : static_cast<double>(hits_) / static_cast<double>(references_);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Resident {
    uint64_t block = 0;
    uint64_t name = 0;  // Stays what it was first.
    uint32_t parent = kNone;
    uint32_t children = 0;
  };

  LearnedTier(const LearnedTierOptions& options, std::unique_ptr<EvictionOrder> order)
      : options_(options), order_(std::move(order)) {}

  uint32_t Find(uint64_t block) const;
  uint64_t NameOf(uint64_t block) const;
  uint32_t Place(uint64_t block, uint32_t parent);
  void Use(uint32_t ref, uint32_t position, int64_t now_nanos);
  void EvictOne();

  const LearnedTierOptions options_;
  const std::unique_ptr<EvictionOrder> order_;
  std::vector<Resident> residents_;                 // By ref.
  std::vector<uint32_t> free_;                      // Refs.
  std::unordered_map<uint64_t, uint32_t> refs_;     // By block, of those that are there.
  std::unordered_map<uint64_t, uint64_t> renamed_;  // The first name of each block.
  std::vector<uint32_t> chain_;                     // Of the request at hand.
  uint64_t hits_ = 0;
  uint64_t references_ = 0;
};

}  // namespace aquifer
