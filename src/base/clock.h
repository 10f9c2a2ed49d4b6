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

  // The calendar's time, which may jump. Only what outlives the process is in it: expiries, and the
  // order of what several lives have written.
  virtual int64_t UnixMicros() const = 0;
  int64_t UnixSeconds() const { return UnixMicros() / 1'000'000; }
};

// The machine's clocks. Lives for ever.
Clock* SystemClock();

// "Never": a deadline that does not pass.
inline constexpr int64_t kNoDeadline = INT64_MAX;

}  // namespace aquifer
