#include "client/find_node.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "net/default_socket.h"

namespace aquifer {
namespace {

std::string FromEnvironment(const char* name) {
  const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets it.
  return text == nullptr ? "" : text;
}

}  // namespace

std::string FindNodeSocket() {
  if (std::string named = FromEnvironment("AQUIFER_SOCKET"); !named.empty()) return named;
  SocketPlaces places;
  places.runtime_directory = FromEnvironment("XDG_RUNTIME_DIR");
  const std::vector<std::string> sockets = DefaultSockets(places, ::geteuid());
  const auto there = std::find_if(sockets.begin(), sockets.end(), [](const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
  });
  return there == sockets.end() ? sockets.front() : *there;
}

}  // namespace aquifer
