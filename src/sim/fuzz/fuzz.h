// Seed after seed, until one fails, the time is over, or someone says stop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "sim/world/engine.h"
#include "sim/world/fault.h"
#include "sim/world/run.h"

namespace aquifer {

struct FuzzOptions {
  uint64_t first_seed = 1;  // Behind the last seed there is, it ends.
  uint64_t seeds = UINT64_MAX;
  double seconds = 0;  // Of real time; 0: no limit.
};

struct FuzzReport {
  uint64_t seeds = 0;
  uint64_t steps = 0;
  double seconds = 0;
  double simulated_seconds = 0;
  EngineCounts counts;
  FaultCounts faults{};
  std::optional<uint64_t> failed_seed;
  RunOutcome failure;

  size_t fault_kinds_seen() const;
};

// `go_on` is asked after every seed.
FuzzReport Fuzz(const FuzzOptions& options,
                const std::function<bool(const FuzzReport&)>& go_on = {});

// The kinds that may come: those at stores only once one of them was seen.
size_t PossibleFaultKinds(const FaultCounts& faults);
// "17 of 18 kinds of faults: crash 12, ...". What was not seen is named.
std::string TextOf(const FaultCounts& faults);

}  // namespace aquifer
