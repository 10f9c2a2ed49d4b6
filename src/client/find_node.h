// Finds the node of this host when the caller does not name its socket. This is the only file in
// which the client reads the environment.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/descriptor.h"

namespace aquifer {

// The sockets to try, in order: the given one; else $AQUIFER_SOCKET; else all of DefaultSockets().
std::vector<std::string> NodeSockets(const std::string& given);

// Connects to the first socket on which a node answers. Of several sockets, those come first that
// only root and this user can create. A socket whose node has ended, or belongs to another user,
// does not hide the next one.
Result<Descriptor> ConnectToFirst(std::span<const std::string> sockets);

}  // namespace aquifer
