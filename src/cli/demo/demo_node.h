// A first sign of life of a node that runs: one client stores a few blocks, another one recalls and
// compares them. Nothing of it stays there. `aquifer demo --socket`, and ./run.
#pragma once

#include <string>

#include "aquifer/status.h"

namespace aquifer {

// Says on standard output what it sees.
Status DemonstrateNode(const std::string& socket);

}  // namespace aquifer
