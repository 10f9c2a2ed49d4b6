#include "policy/write_threshold.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr double kStep = 0.002;  // A few hundred blocks move it through a tenth.

}  // namespace

// Raised a little by what is written and lowered by what is not, it rests where as much comes above
// it as should.
bool WriteThreshold::Admit(double reuse_probability) {
  const bool admitted = reuse_probability >= threshold_;
  const double move = admitted ? 1 - options_.written_part : -options_.written_part;
  threshold_ = std::clamp(threshold_ + kStep * move, 0.0, 1.0);
  return admitted;
}

}  // namespace aquifer
