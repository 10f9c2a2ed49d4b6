// When a time that was given ends. Any thread.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace aquifer {

// kNoDeadline where that is beyond all time.
inline int64_t DeadlineAfter(int64_t from_nanos, int64_t timeout_nanos) {
  return timeout_nanos > kNoDeadline - from_nanos ? kNoDeadline : from_nanos + timeout_nanos;
}

}  // namespace aquifer
