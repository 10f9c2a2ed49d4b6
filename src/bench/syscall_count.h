// How many system calls something makes, on all threads of this program, as strace sees them.
#pragma once

#include <cstdint>
#include <functional>

#include "aquifer/status.h"

namespace aquifer {

// Runs `work` once, under strace. kNotFound where that is missing, kUnavailable where it may not
// look at us, and what `work` fails with.
Result<uint64_t> CountSyscalls(const std::function<Status()>& work);

}  // namespace aquifer
