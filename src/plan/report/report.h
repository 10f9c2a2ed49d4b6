// A plan as people and programs read it. Pure: a plan in, a text out.
#pragma once

#include <string>

#include "plan/planner.h"

namespace aquifer {

// For a terminal; ends with a newline.
std::string PlanText(const Plan& plan);
// One object; docs/operating/planning.md lists its members.
std::string PlanJson(const Plan& plan);
// A page that needs nothing but itself: no script, no request; light or dark as the reader has it.
std::string PlanHtml(const Plan& plan);

}  // namespace aquifer
