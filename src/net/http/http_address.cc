#include "net/http/http_address.h"

#include <fmt/format.h>

namespace aquifer {

bool HttpAddress::loopback() const { return host == "::1" || host.starts_with("127."); }

std::string HttpAddress::Text() const {
  const bool six = host.find(':') != std::string::npos;
  return six ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace aquifer
