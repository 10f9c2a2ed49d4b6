// The only source of time. Nothing in cache, index, policy or tier reads a clock by itself, so that
// tests and the simulator can step time by hand.
#pragma once

#include <cstdint>

namespace aquifer {

class Clock {
 public:
  virtual ~Clock() = default;

  // Monotonic; starts anywhere. Deadlines and durations are in this time.
  virtual int64_t NowNanos() const = 0;

  // The calendar's time, which may jump. Only expiries, which outlive the process, are in it.
  virtual int64_t UnixSeconds() const = 0;
};

// The machine's clocks. Lives for ever.
Clock* SystemClock();

// "Never": a deadline that does not pass.
inline constexpr int64_t kNoDeadline = INT64_MAX;

}  // namespace aquifer
