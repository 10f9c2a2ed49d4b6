// Where HTTP is served; a numeric address.
#pragma once

#include <cstdint>
#include <string>

namespace aquifer {

struct HttpAddress {
  std::string host = "127.0.0.1";  // "::1" without brackets.
  uint16_t port = 9470;            // 0: any that is free.

  bool loopback() const;
  std::string Text() const;  // "127.0.0.1:9470", "[::1]:9470"

  friend bool operator==(const HttpAddress&, const HttpAddress&) = default;
};

}  // namespace aquifer
