// A clock that stands still until a test moves it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace aquifer {

class ManualClock final : public Clock {
 public:
  int64_t NowNanos() const override { return nanos_; }
  int64_t UnixMicros() const override { return unix_micros_; }

  void Advance(int64_t nanos) { nanos_ += nanos; }
  void SetNanos(int64_t nanos) { nanos_ = nanos; }
  void SetUnixSeconds(int64_t seconds) { unix_micros_ = seconds * 1'000'000; }
  void SetUnixMicros(int64_t micros) { unix_micros_ = micros; }

 private:
  std::atomic<int64_t> nanos_{1'000'000'000};
  std::atomic<int64_t> unix_micros_{1'800'000'000'000'000};
};

}  // namespace aquifer
