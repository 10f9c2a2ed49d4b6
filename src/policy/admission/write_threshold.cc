#include "policy/admission/write_threshold.h"

#include <algorithm>

namespace aquifer {
namespace {

// How far one block moves it: a few hundred move it through a tenth. The smaller, the longer until
// the part comes out right; until then more is written in hours in which much returns, and less in
// others.
constexpr double kStep = 0.002;
constexpr double kFreelyWaiting = 0.125;

}  // namespace

// Raised a little by what is written and lowered by what is not, it rests where as much comes above
// it as should.
bool WriteThreshold::Admit(double reuse_probability, double affordable_part) {
  const double part = std::min(options_.written_part, affordable_part);
  const bool admitted = Passes(reuse_probability);
  Move(admitted ? 1 - part : -part);
  return admitted;
}

void WriteThreshold::Reverse() { Move(1); }

void WriteThreshold::Move(double by) { threshold_ = std::clamp(threshold_ + kStep * by, 0.0, 1.0); }

double AffordablePart(uint64_t waiting_bytes, uint64_t most_waiting_bytes) {
  const double most = static_cast<double>(most_waiting_bytes);
  const double left = most - static_cast<double>(waiting_bytes);
  return left <= 0 ? 0 : std::min(left / (most * (1 - kFreelyWaiting)), 1.0);
}

}  // namespace aquifer
