// Where a server is, as people write it: "host", "host:port", "[::1]:port". A host is a name or an
// address, and nothing is looked up. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace aquifer {

struct HostPort {
  std::string host{};  // Without brackets.
  uint16_t port = 0;   // 0: none is said.

  std::string ToString() const;  // As it is written.
};

// Nothing where it is something else, or more than that.
std::optional<HostPort> ParseHostPort(std::string_view text);

}  // namespace aquifer
