// Liveness finds out whether a node still reads its ring. While requests are open, the link thread
// looks once a second. The node counts as lost when it has read nothing for several looks. Looks
// are counted and not time: if the whole host stood still, no node counts as lost. Not thread-safe;
// reads no clock.
#pragma once

#include <cstdint>

namespace aquifer {

class Liveness {
 public:
  static constexpr int64_t kLookNanos = 1'000'000'000;
  static constexpr int kMaxMissedLooks = 5;

  enum class Finding : uint8_t {
    kFine,
    kAsk,  // The node has read everything. Send it a frame, so that the next look can tell.
    kLost,
  };

  // `taken_bytes` is how much the node has ever read; `all` is true if that was everything.
  Finding Look(int64_t now_nanos, uint64_t taken_bytes, bool all);
  // No request is open.
  void Rest() { next_nanos_ = 0; }
  int64_t next_nanos() const { return next_nanos_; }  // When to look next.

 private:
  int64_t next_nanos_ = 0;  // 0 while no request is open.
  uint64_t taken_bytes_ = 0;
  int missed_ = 0;
};

}  // namespace aquifer
