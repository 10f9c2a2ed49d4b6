// The eviction order that learns: keeps the blocks that save the most milliseconds for the bytes
// and the time that they are kept. How often that is, reuse_model.h tells from the requests that
// came by; how much, block_weight.h. Only leaves go, as always. A new block may be worth less than
// all that is there, and then it is the next victim itself.
//
// It holds itself against plain leaf-first LRU all the time: what that would hold in as many bytes
// is known from the order of use (block_history.h). When what it saves is behind what LRU would by
// more than a sliver of the requests, LRU decides until that is made good.
//
// What it costs the owner's thread is a few lookups a block; tables are made by `run_elsewhere` and
// taken over when they are done. Its memory is 60 bytes for each block and for each of its ghosts,
// of which there are four or so a block, and 20 more for a block: 336 in all. Blocks of one tenant
// (in DRAM: of one of its pools), priority and weight share a shelf (shelf.h) of up to 83 KB. A
// tenant has at most 64 of those: past that a block is on the one of the nearest priority and, of
// these, of the nearest weight, and counts as if it had both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "aquifer/status.h"
#include "base/executor.h"
#include "policy/eviction/eviction_order.h"

namespace aquifer {

struct LearnedOrderOptions {
  uint32_t max_blocks = 0;  // Refs are below this.
  // Whether it holds itself against LRU. A lower tier cannot: what the tiers above have is not
  // asked of it.
  bool compare_with_lru = true;
  // Where tables are made; empty: at once, where they are needed. What it is given may outlive the
  // order.
  std::function<void(Task)> run_elsewhere{};
};

// kInvalid: max_blocks is zero. kNoSpace: no memory.
Result<std::unique_ptr<EvictionOrder>> NewLearnedOrder(const LearnedOrderOptions& options);

}  // namespace aquifer
