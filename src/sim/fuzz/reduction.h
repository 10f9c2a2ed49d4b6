// A seed's scenario with parts of it left out: what the minimiser tries, and what a command line
// can say so that a person sees the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/world/scenario.h"

namespace aquifer {

struct Reduction {
  std::vector<size_t> left_out_faults{};   // By their place in the seed's schedule.
  std::vector<size_t> left_out_engines{};  // By their number.
  uint64_t steps = 0;                      // 0: as many as the seed says.

  friend bool operator==(const Reduction&, const Reduction&) = default;
};

// kInvalid names the part that the seed does not have.
Result<Scenario> Reduce(uint64_t seed, const Reduction& reduction);

// " --leave-out-faults 0,3 --steps 812": nothing where nothing is left out.
std::string ArgumentsOf(const Reduction& reduction);

}  // namespace aquifer
