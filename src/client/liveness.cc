#include "client/liveness.h"

namespace aquifer {

Liveness::Finding Liveness::Look(int64_t now_nanos, uint64_t taken_bytes, bool all) {
  const bool rested = next_nanos_ == 0;
  if (!rested && now_nanos < next_nanos_) return Finding::kFine;
  next_nanos_ = now_nanos + kLookNanos;
  if (rested || taken_bytes != taken_bytes_) {
    taken_bytes_ = taken_bytes;
    missed_ = 0;
    return Finding::kFine;
  }
  if (all) return Finding::kAsk;
  return ++missed_ >= kMaxMissedLooks ? Finding::kLost : Finding::kFine;
}

}  // namespace aquifer
