#include "cli/unix_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace aquifer {
namespace {

constexpr time_t kTimeoutSeconds = 60;

}  // namespace

Result<Descriptor> ConnectToUnixSocket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Status(Code::kInvalid, fmt::format("{} is too long for a socket", path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval timeout{.tv_sec = kTimeoutSeconds, .tv_usec = 0};
  if (!socket.valid() ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) != 0) {
    return Status(Code::kUnavailable, fmt::format("connect: {}", std::strerror(errno)));
  }
  return socket;
}

}  // namespace aquifer
