// Where a node's socket is when nobody says: a node takes the first place that it can use, a client
// the first where one answers.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace aquifer {

struct SocketPlaces {
  std::string run_directory = "/run/aquifer";
  std::string runtime_directory{};  // $XDG_RUNTIME_DIR; empty: none.
  std::string temporary_directory = "/tmp";
};

// "/run/aquifer/node.sock", "$XDG_RUNTIME_DIR/aquifer.sock", "/tmp/aquifer-<uid>/node.sock".
std::vector<std::string> DefaultSockets(const SocketPlaces& places, uid_t uid);

// Whether nobody but root and this user can have put a node there. Anybody may make a directory in
// /tmp, listen in it and wait for this user's token and blocks.
bool IsSafePlace(const std::string& socket, uid_t uid);

// Longer ones do not fit a Unix socket's address.
inline constexpr size_t kMaxSocketPathBytes = 107;

}  // namespace aquifer
