// Where the blocks of a request are in a fleet: how deep in the stack of the node that it is routed
// to, in that of the node that used them last, and in that of the whole fleet. Whoever knows how
// many blocks fit into a tier then knows whether the tier has them.
//
// Outputs are followed where asked for: what a request made is taken to have been stored behind its
// prompt, and blocks that a later prompt has there for the first time are taken to be it. One
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/fleet.h"
#include "plan/lru_stack.h"
#include "trace/trace_reader.h"

namespace aquifer {

struct FleetStacksOptions {
  uint32_t nodes = 1;
  Routing routing = Routing::kSticky;
  uint64_t block_tokens = 0;
  bool follow_outputs = false;
  LruStackOptions stack{};
};

// By block of the prompt, in blocks, along the chain never falling: a block counts only where all
// before it are there. LruStack::kNever: nowhere.
struct RequestDepths {
  std::vector<double> local;
  std::vector<double> peer;  // Kept only with several nodes.
  std::vector<double> fleet;
  bool known = true;           // False: none of its blocks is followed.
  uint64_t output_blocks = 0;  // That were stored behind it.
  // The depth of each block by itself, before neighbours stood in for those not followed.
  std::vector<double> own;
};

class FleetStacks {
 public:
  explicit FleetStacks(const FleetStacksOptions& options);

  // Looks where the blocks are, then uses them.
  void Ask(const TraceRequest& request, RequestDepths* depths);

  // Of the last request: its blocks and, behind them, those of its output that are followed; and
  // which blocks of outputs it gave names to, from and to.
  std::span<const uint64_t> used() const { return used_; }
  std::span<const std::pair<uint64_t, uint64_t>> named() const { return named_; }

  double distinct_blocks() const { return fleet().blocks(); }
  uint32_t rate_shift() const { return fleet().rate_shift(); }
  size_t bytes() const;

 private:
  LruStack& fleet() { return stacks_.back(); }
  const LruStack& fleet() const { return stacks_.back(); }
  bool single() const { return options_.nodes == 1; }

  void NameOutputs(std::span<const uint64_t> blocks);
  void AddOutputs(const TraceRequest& request);
  void Touch(std::span<const uint64_t> blocks, uint32_t node);
  uint32_t Route(const TraceRequest& request, const std::vector<double>& fleet_depths);

  const FleetStacksOptions options_;
  std::vector<LruStack>
      stacks_;                  // One for each node, then the fleet's; with one node they are one.
  std::vector<double> tokens_;  // Routed to each node.
  double all_tokens_ = 0;
  uint64_t requests_ = 0;
  std::vector<uint64_t> used_;
  std::vector<std::pair<uint64_t, uint64_t>> named_;
};

}  // namespace aquifer
