// How long something took, as counts in fixed buckets: each twice as wide as the one before it,
// from about a microsecond to about a minute. Adding is a few instructions and allocates nothing.
// The buckets are the same everywhere and for ever, so histograms of several nodes can be added up.
//
// Plain integers: one thread at a time. Copy it to read it elsewhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace aquifer {

class TimeHistogram {
 public:
  static constexpr size_t kBuckets = 27;  // The last ends at 2^36 ns, 69 s; longer ones are beyond.

  void Add(int64_t nanos);

  uint64_t count() const { return count_; }
  double sum_seconds() const { return static_cast<double>(sum_nanos_) / 1e9; }
  // The times in the bucket alone.
  uint64_t in_bucket(size_t bucket) const { return counts_[bucket]; }
  // A time in the bucket is at most so long.
  static int64_t UpperNanos(size_t bucket);

  // `part` of all took at most about so long: the upper end of their bucket. 0: there are none.
  double QuantileSeconds(double part) const;

 private:
  std::array<uint64_t, kBuckets + 1> counts_{};  // The last one is what is beyond.
  uint64_t count_ = 0;
  int64_t sum_nanos_ = 0;
};

}  // namespace aquifer
