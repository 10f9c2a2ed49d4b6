#include "net/default_socket.h"

#include <fmt/format.h>

namespace aquifer {

std::vector<std::string> DefaultSockets(const SocketPlaces& places, uid_t uid) {
  std::vector<std::string> paths = {places.run_directory + "/node.sock"};
  if (!places.runtime_directory.empty()) {
    paths.push_back(places.runtime_directory + "/aquifer.sock");
  }
  paths.push_back(fmt::format("{}/aquifer-{}/node.sock", places.temporary_directory, uid));
  return paths;
}

}  // namespace aquifer
