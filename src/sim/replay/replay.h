// Judges eviction policies on a request trace: how many of the blocks that were asked for would
// have been there. Blocks are all of one size, requests come one after the other, and a hit is a
// block that is there with all blocks before it. Answers of the model are not stored.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "sim/replay/replay_trace.h"

namespace aquifer {

struct ReplaySetup {
  std::string policy;
  uint32_t capacity_blocks = 0;
  uint32_t nvme_blocks = 0;  // 0: there is no second tier.
  // Callers say of each request whether its conversation goes on, and are right so often; 0: they
  // say nothing.
  double hint_accuracy = 0;
  // They say when, too: to within a factor of two where they are right, and where not, anything.
  bool hint_returns = false;
};

struct ReplayOutcome {
  uint64_t blocks = 0;  // Asked for.
  uint64_t hits = 0;
  uint64_t writes = 0;  // To the second tier.

  double hit_rate() const {
    return blocks == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(blocks);
  }
  // For each block that had to be computed.
  double writes_per_insert() const {
    return hits == blocks ? 0 : static_cast<double>(writes) / static_cast<double>(blocks - hits);
  }
};

// The names that ReplaySetup::policy may have.
const std::vector<std::string_view>& ReplayPolicies();

// kInvalid: there is no such policy, or it has no second tier.
Status CheckSetup(const ReplaySetup& setup);

// kInvalid: CheckSetup() says so. kLate: `on_progress`, which hears the number of requests done now
// and then, said false.
Result<ReplayOutcome> Replay(const ReplayTrace& trace, const ReplaySetup& setup,
                             const std::function<bool(uint64_t requests)>& on_progress);

}  // namespace aquifer
