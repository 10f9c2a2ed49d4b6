#include "plan/log_histogram.h"

#include <algorithm>
#include <cmath>

namespace aquifer {
namespace {

constexpr double kSteps = 256;  // In each doubling.
constexpr double kLeast = 1.0 / 256;
constexpr double kMost = 1e18;

// Values from kLeast * 2^e * (1 + s / 256) on lie in bucket e * 256 + s: the logarithm, straight
// between the powers of two, which is quicker and has whole numbers on its edges.
double Position(double value) {
  int exponent = 0;
  const double fraction = std::frexp(std::clamp(value, kLeast, kMost) / kLeast, &exponent);
  return (exponent - 1 + (2 * fraction - 1)) * kSteps;
}

double ValueAt(double position) {
  const double exponent = std::floor(position / kSteps);
  return kLeast * std::ldexp(1 + (position / kSteps - exponent), static_cast<int>(exponent));
}

}  // namespace

void LogHistogram::Add(double value, double weight) {
  // A value on an edge belongs below it: "up to 7" has the sevens.
  const auto bucket = static_cast<size_t>(std::max(std::ceil(Position(value)), 1.0)) - 1;
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  buckets_[bucket] += weight;
  total_ += weight;
}

double LogHistogram::UpTo(double value) const {
  if (value <= 0) return 0;
  const double position = Position(value);
  const auto whole = std::min(static_cast<size_t>(position), buckets_.size());
  double sum = 0;
  for (size_t i = 0; i < whole; ++i) sum += buckets_[i];
  if (whole < buckets_.size()) sum += buckets_[whole] * (position - static_cast<double>(whole));
  return sum;
}

double LogHistogram::Quantile(double part) const {
  const double wanted = part * total_;
  double sum = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i] > 0 && sum + buckets_[i] >= wanted) {
      return ValueAt(static_cast<double>(i) + std::clamp((wanted - sum) / buckets_[i], 0.0, 1.0));
    }
    sum += buckets_[i];
  }
  return 0;
}

}  // namespace aquifer
