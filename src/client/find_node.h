// Where the node of this host is when the caller does not say: the only place where the client
// reads the environment.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"

namespace aquifer {

// Where to look, in this order: the socket that was given, else $AQUIFER_SOCKET, else all of
// DefaultSockets().
std::vector<std::string> NodeSockets(const std::string& given);

// To the first on which a node answers and, of several, where none but root and this user can have
// put one: a place whose node is another user's, or has ended, does not hide the next.
Result<Descriptor> ConnectToFirst(std::span<const std::string> sockets);

}  // namespace aquifer
