// The conclusions from a plan's numbers, in words: whether it pays, why, what is odd, and what was
// assumed. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/planner.h"

namespace aquifer {

// Where more size begins to give less: the point that lies farthest above the straight line from
// the first to the last, sizes taken as their logarithms (Satopaa et al., "Finding a Kneedle in a
// Haystack").
size_t FindKnee(const std::vector<HitPoint>& hits);

// Sets verdict, reasons, warnings and assumptions from the rest.
void Advise(Plan* plan);

// The purchase that gains most, or null: then none pays.
const Purchase* BuyNext(const Plan& plan);
// The size of DRAM alone, of those looked at, that gains most, or null: then none pays.
const Outcome* BestDram(const Plan& plan);

}  // namespace aquifer
