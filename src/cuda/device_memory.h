// Tells whether an address names memory of the host or of a device.
#pragma once

#include "aquifer/status.h"

namespace aquifer {

inline constexpr int kHostMemory = -1;

// The number of the CUDA device whose memory `address` is in, or kHostMemory. Costs nothing in a
// process that has not loaded the CUDA driver: it has no device's memory. Needs no CUDA compiler,
// so that a build without one still tells such memory from the host's. kUnavailable: the driver
// does not say, as after a lost context, and nobody may guess: the CPU would read a device's
// address.
Result<int> DeviceOfMemory(const void* address);

}  // namespace aquifer
