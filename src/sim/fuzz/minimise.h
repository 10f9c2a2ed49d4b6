// Makes a failing seed small: leaves out faults, engines and steps as long as it still fails in the
// same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "sim/fuzz/reduction.h"
#include "sim/world/run.h"

namespace aquifer {

struct MinimiseOptions {
  size_t most_runs = 200;
  // Runs what is left of the seed; another one in tests.
  std::function<RunOutcome(const Scenario&)> run = [](const Scenario& scenario) {
    return RunScenario(scenario);
  };
};

struct Minimised {
  Reduction reduction;
  RunOutcome outcome;
  size_t runs = 0;
};

// `outcome` is that of the whole seed.
Minimised Minimise(uint64_t seed, const RunOutcome& outcome, const MinimiseOptions& options = {});

// Without its numbers: two failures of the same kind say the same.
std::string KindOfViolation(const std::string& violation);

}  // namespace aquifer
