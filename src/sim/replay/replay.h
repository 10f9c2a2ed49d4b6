// Judges eviction policies on a request trace: how many of the requested blocks would have been
// there. All blocks have one size, and requests come one after the other. A block is a hit if it is
// there with all blocks before it. Blocks that the model generates are not stored.
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
  double written_part = 1;   // Of what is stored, to NVMe: as in a node's configuration.
  // How often callers are right when they say if a conversation goes on; 0: they say nothing.
  double hint_accuracy = 0;
  // With true, callers also say when: right within a factor of two if they are right, and any time
  // if not.
  bool hint_returns = false;
};

struct ReplayOutcome {
  uint64_t blocks = 0;  // Blocks requested.
  uint64_t hits = 0;
  uint64_t writes = 0;  // Blocks written to the second tier.

  double hit_rate() const {
    return blocks == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(blocks);
  }
  // Writes for each block that had to be computed.
  double writes_per_insert() const {
    return hits == blocks ? 0 : static_cast<double>(writes) / static_cast<double>(blocks - hits);
  }
};

// The names that ReplaySetup::policy may have.
const std::vector<std::string_view>& ReplayPolicies();

// Returns kInvalid if there is no such policy, or it has no second tier.
Status CheckSetup(const ReplaySetup& setup);

// kInvalid: CheckSetup() refuses the setup. kLate: `on_progress`, which now and then gets the
// number of finished requests, returned false.
Result<ReplayOutcome> Replay(const ReplayTrace& trace, const ReplaySetup& setup,
                             const std::function<bool(uint64_t requests)>& on_progress);

}  // namespace aquifer
