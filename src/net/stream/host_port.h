// Parses a server's address as people write it: "host", "host:port", "[::1]:port". A host is a name
// or an address. Nothing is looked up. Any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace aquifer {

struct HostPort {
  std::string host{};  // Without brackets.
  uint16_t port = 0;   // 0: the text names no port.

  std::string ToString() const;  // The address as it is written.
};

// Returns nothing if the text is something else, or has more than an address.
std::optional<HostPort> ParseHostPort(std::string_view text);

}  // namespace aquifer
