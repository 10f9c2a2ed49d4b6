// The eviction order that learns: keeps the blocks that bring the most hits for the time that they
// are kept, as reuse_model.h tells from the requests that came by; only leaves go, as always. A new
// block may be worth less than all that is there, and then it is the next victim itself.
//
// It holds itself against plain leaf-first LRU all the time: what that would hold is known from the
// order of use (block_history.h). When it is behind LRU by more than a sliver of the requests, LRU
// decides until that is made good.
//
// What it costs the owner's thread is a few lookups a block; tables are made by `run_elsewhere` and
// taken over when they are done. Its memory is 60 bytes for each block and for each of its ghosts,
// of which there are four or so a block, and 20 more for a block: 336 in all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "aquifer/status.h"
#include "base/executor.h"
#include "policy/eviction_order.h"

namespace aquifer {

struct LearnedOrderOptions {
  uint32_t max_blocks = 0;  // Refs are below this.
  // Whether it holds itself against LRU. Not for a lower tier, which does not get all that is asked
  // for: its hits say little.
  bool compare_with_lru = true;
  // Where tables are made; empty: at once, where they are needed. What it is given may outlive the
  // order.
  std::function<void(Task)> run_elsewhere{};
};

struct LearnedOrderStats {
  uint64_t asked_blocks = 0;
  uint64_t hits = 0;      // Of those, from the first of a request on.
  uint64_t lru_hits = 0;  // What LRU would have had.
  bool lru_decides = false;
  uint64_t takeovers = 0;  // How often LRU had to.
  uint64_t tables = 0;
};

class LearnedOrder : public EvictionOrder {
 public:
  virtual LearnedOrderStats stats() const = 0;
};

// kInvalid: max_blocks is zero. kNoSpace: no memory.
Result<std::unique_ptr<LearnedOrder>> NewLearnedOrder(const LearnedOrderOptions& options);

}  // namespace aquifer
