// Touching shared memory that another process punched out or truncated raises SIGBUS. Payload is
// therefore only touched inside this guard, which turns the signal into kCorrupt.
#pragma once

#include <functional>

#include "aquifer/status.h"

namespace aquifer {

// Runs `touch` on this thread. kCorrupt if it hit memory that is gone; `touch` is then abandoned in
// the middle, so it must hold no lock and own nothing. A SIGBUS outside of a guard goes to whoever
// handled it before us.
Status GuardBusErrors(const std::function<void()>& touch);

}  // namespace aquifer
