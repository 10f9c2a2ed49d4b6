// Where the administrator's Unix socket of a node lies.
#pragma once

#include <string>

namespace aquifer {

// "/run/aquifer/node.admin.sock" beside "/run/aquifer/node.sock".
std::string AdminSocketBeside(const std::string& node_socket);

}  // namespace aquifer
