// The default places of a node's socket. A node listens at the first place that it can use. A
// client connects to the first place where a node answers.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace aquifer {

struct SocketPlaces {
  std::string run_directory = "/run/aquifer";
  std::string runtime_directory{};  // The value of $XDG_RUNTIME_DIR; empty if unset.
  std::string temporary_directory = "/tmp";
};

// "/run/aquifer/node.sock", "$XDG_RUNTIME_DIR/aquifer.sock", "/tmp/aquifer-<uid>/node.sock".
std::vector<std::string> DefaultSockets(const SocketPlaces& places, uid_t uid);

// Returns true if only root and this user can have put a node there. Any user may make a directory
// in /tmp, listen in it, and wait for this user's token and blocks.
bool IsSafePlace(const std::string& socket, uid_t uid);

// A longer path does not fit into a Unix socket's address.
inline constexpr size_t kMaxSocketPathBytes = 107;

}  // namespace aquifer
