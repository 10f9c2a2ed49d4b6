#include "reference/engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/hash_mix.h"

namespace aquifer::reference {
namespace {

// A NaN counts as less than every number. Comparing with NaN gives false both ways, and sorting by
// such an order is undefined.
float Ordered(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

}  // namespace

uint32_t Sample(std::span<const float> logits, float temperature, float top_p, uint64_t* random) {
  const auto largest = std::max_element(logits.begin(), logits.end(),
                                        [](float a, float b) { return Ordered(a) < Ordered(b); });
  if (temperature <= 0) return static_cast<uint32_t>(largest - logits.begin());
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double below = static_cast<double>(Ordered(*largest)) - Ordered(logits[i]);
    weights[i] = std::isnan(below) ? 1 : std::exp(-below / temperature);  // Both are infinite.
  }
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  });
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double kept = total * std::clamp(static_cast<double>(top_p), 0.0, 1.0);
  double sum = 0;
  size_t count = 0;
  while (count < order.size() && (count == 0 || sum < kept)) sum += weights[order[count++]];
  const double unit = static_cast<double>(SplitMix(random) >> 11) / 9007199254740992.0;
  double left = unit * sum;
  for (size_t i = 0; i + 1 < count; ++i) {
    left -= weights[order[i]];
    if (left < 0) return order[i];
  }
  return order[count - 1];
}

}  // namespace aquifer::reference
