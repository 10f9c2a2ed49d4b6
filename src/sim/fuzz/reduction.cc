#include "sim/fuzz/reduction.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace aquifer {

Result<Scenario> Reduce(uint64_t seed, const Reduction& reduction) {
  Scenario scenario = MakeScenario(seed);
  for (const size_t engine : reduction.left_out_engines) {
    if (engine >= scenario.engines.size()) {
      return Status(Code::kInvalid, fmt::format("seed {} has {} engines, and no engine {}", seed,
                                                scenario.engines.size(), engine));
    }
    scenario.engines[engine].present = false;
  }
  std::vector<Fault> kept;
  for (size_t i = 0; i < scenario.faults.size(); ++i) {
    if (std::ranges::find(reduction.left_out_faults, i) == reduction.left_out_faults.end()) {
      kept.push_back(scenario.faults[i]);
    }
  }
  if (kept.size() + reduction.left_out_faults.size() != scenario.faults.size()) {
    return Status(Code::kInvalid,
                  fmt::format("seed {} has {} faults, numbered from 0; some that are left out are "
                              "not among them, or are there twice",
                              seed, scenario.faults.size()));
  }
  scenario.faults = std::move(kept);
  if (reduction.steps != 0) scenario.steps = reduction.steps;
  return scenario;
}

std::string ArgumentsOf(const Reduction& reduction) {
  std::string text;
  if (!reduction.left_out_faults.empty()) {
    text += fmt::format(" --leave-out-faults {}", fmt::join(reduction.left_out_faults, ","));
  }
  if (!reduction.left_out_engines.empty()) {
    text += fmt::format(" --leave-out-engines {}", fmt::join(reduction.left_out_engines, ","));
  }
  if (reduction.steps != 0) text += fmt::format(" --steps {}", reduction.steps);
  return text;
}

}  // namespace aquifer
