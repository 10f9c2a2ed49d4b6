// Plants a bug in the real code for as long as this lives.
#pragma once

#include "base/planted_bug.h"

namespace aquifer {

class PlantBug {
 public:
  explicit PlantBug(PlantedBug bug) { BugPlot::planted = bug; }
  ~PlantBug() { BugPlot::planted = PlantedBug::kNone; }
  PlantBug(const PlantBug&) = delete;
  PlantBug& operator=(const PlantBug&) = delete;
};

}  // namespace aquifer
