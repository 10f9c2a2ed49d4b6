// How the benchmark reaches the servers that it has started.
#pragma once

#include <string>

#include "aquifer/status.h"
#include "base/descriptor.h"

namespace aquifer {

// A stream; a read that has waited for a minute fails.
Result<Descriptor> ConnectToUnixSocket(const std::string& path);

}  // namespace aquifer
