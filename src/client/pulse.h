// Whether a node still takes what it is sent. It is looked at once a second while something is
// asked of it, and lost when it took nothing between many looks. The looks are counted, not the
// time: of a whole host that stood still, nobody is lost. Not thread-safe; knows no clock.
#pragma once

#include <cstdint>

namespace aquifer {

class Pulse {
 public:
  static constexpr int64_t kBeatNanos = 1'000'000'000;
  static constexpr int kMissedBeats = 5;

  enum class Finding : uint8_t {
    kFine,
    kAsk,  // It has taken all there was: send it something, so that the next look can tell.
    kLost,
  };

  // `taken_bytes` is what it took, ever; `all` whether that was everything.
  Finding Look(int64_t now_nanos, uint64_t taken_bytes, bool all);
  // Nothing is asked of it.
  void Rest() { next_nanos_ = 0; }
  int64_t next_nanos() const { return next_nanos_; }  // When to look again.

 private:
  int64_t next_nanos_ = 0;  // 0: at rest.
  uint64_t taken_bytes_ = 0;
  int missed_ = 0;
};

}  // namespace aquifer
