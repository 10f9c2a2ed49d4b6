// What a store moves at its best, learned from what it moved: bytes over the time in which at least
// one request was under way, the best stretch of late. Numbers in, a number out.
#pragma once

#include <algorithm>
#include <cstdint>

namespace aquifer {

class StorePace {
 public:
  void Begin(int64_t now_nanos) {
    if (under_way_++ == 0) busy_since_ = now_nanos;
  }

  void End(int64_t now_nanos, uint64_t moved_bytes) {
    bytes_ += moved_bytes;
    busy_nanos_ += now_nanos - busy_since_;
    busy_since_ = now_nanos;
    --under_way_;
    if (busy_nanos_ < kStretchNanos) return;
    // Stretches with little in them say nothing of the store, so the best one counts, and fades.
    const double rate = static_cast<double>(bytes_) * 1e9 / static_cast<double>(busy_nanos_);
    best_ = std::max(rate, best_ * 0.95);
    bytes_ = 0;
    busy_nanos_ = 0;
  }

  double bytes_per_second() const { return best_; }  // 0: not known yet.

 private:
  static constexpr int64_t kStretchNanos = 100'000'000;

  uint64_t under_way_ = 0;
  int64_t busy_since_ = 0;
  int64_t busy_nanos_ = 0;  // Of this stretch.
  uint64_t bytes_ = 0;
  double best_ = 0;
};

}  // namespace aquifer
