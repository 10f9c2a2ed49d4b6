// Where the node of this host is when the caller does not say: the only place where the client
// reads the environment.
#pragma once

#include <string>

namespace aquifer {

// $AQUIFER_SOCKET, else the first of DefaultSockets() that is there, else the first of them.
std::string FindNodeSocket();

}  // namespace aquifer
