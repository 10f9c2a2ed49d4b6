#include "metrics/time_histogram.h"

#include <algorithm>
#include <bit>

namespace aquifer {
namespace {

constexpr int kFirstPower = 10;  // The first bucket ends at 2^10 ns.

size_t BucketOf(uint64_t nanos) {
  const int power = nanos <= 1 ? 0 : std::bit_width(nanos - 1);  // The least with 2^power >= nanos.
  return std::min(static_cast<size_t>(std::max(power - kFirstPower, 0)), TimeHistogram::kBuckets);
}

}  // namespace

void TimeHistogram::Add(int64_t nanos) {
  const int64_t took = std::max<int64_t>(nanos, 0);
  ++counts_[BucketOf(static_cast<uint64_t>(took))];
  ++count_;
  sum_nanos_ += took;
}

int64_t TimeHistogram::UpperNanos(size_t bucket) { return int64_t{1} << (kFirstPower + bucket); }

double TimeHistogram::QuantileSeconds(double part) const {
  if (count_ == 0) return 0;
  uint64_t below = 0;
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    below += counts_[bucket];
    if (static_cast<double>(below) >= part * static_cast<double>(count_)) {
      return static_cast<double>(UpperNanos(bucket)) / 1e9;
    }
  }
  return static_cast<double>(UpperNanos(kBuckets)) / 1e9;  // Beyond: at least half of that.
}

}  // namespace aquifer
