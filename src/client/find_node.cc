#include "client/find_node.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>

#include "net/local/default_socket.h"
#include "net/local/frame_socket.h"

namespace aquifer {
namespace {

std::string FromEnvironment(const char* name) {
  const char* const text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets it.
  return text == nullptr ? "" : text;
}

}  // namespace

std::vector<std::string> NodeSockets(const std::string& given) {
  if (!given.empty()) return {given};
  if (std::string named = FromEnvironment("AQUIFER_SOCKET"); !named.empty()) return {named};
  SocketPlaces places;
  places.runtime_directory = FromEnvironment("XDG_RUNTIME_DIR");
  return DefaultSockets(places, ::geteuid());
}

Result<Descriptor> ConnectToFirst(std::span<const std::string> sockets) {
  if (sockets.size() == 1) return ConnectTo(sockets.front());
  for (const std::string& socket : sockets) {
    if (!IsSafePlace(socket, ::geteuid())) continue;
    if (Result<Descriptor> connected = ConnectTo(socket); connected.ok()) return connected;
  }
  return Status(Code::kUnavailable,
                fmt::format("no node answers on {}; start one with `aquifer serve`, or name its "
                            "socket",
                            fmt::join(sockets, ", ")));
}

}  // namespace aquifer
