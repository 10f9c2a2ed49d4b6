// One seed, from its first step to its outcome.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/world/engine.h"
#include "sim/world/fault.h"
#include "sim/world/scenario.h"

namespace aquifer {

struct RunOutcome {
  std::string violation;           // Empty: all is well.
  std::vector<std::string> trace;  // Its last lines, if something is wrong.
  uint64_t digest = 0;             // Of the whole trace.
  uint64_t steps = 0;
  int64_t simulated_nanos = 0;
  EngineCounts counts;
  FaultCounts faults{};

  bool ok() const { return violation.empty(); }
};

RunOutcome RunScenario(const Scenario& scenario,
                       const std::function<void(const std::string&)>& on_line = {});

// The run that is under way, for who must tell of it before the process ends.
class Running {
 public:
  virtual uint64_t seed() const = 0;
  virtual std::vector<std::string> Last(size_t lines) const = 0;

 protected:
  ~Running() = default;
};
const Running* RunUnderWay();  // Null: none.

}  // namespace aquifer
