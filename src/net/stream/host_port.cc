#include "net/stream/host_port.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace aquifer {
namespace {

constexpr std::string_view kOfName =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
// The characters of an address in brackets.
constexpr std::string_view kOfAddress = "abcdefABCDEF0123456789:.";

// Returns 0 if the text is no port.
uint16_t ParsePort(std::string_view text) {
  uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, port);
  return error == std::errc() && stopped == end ? port : uint16_t{0};
}

}  // namespace

std::string HostPort::ToString() const {
  const bool brackets = host.find(':') != std::string::npos;
  std::string text = brackets ? fmt::format("[{}]", host) : host;
  if (port != 0) text += fmt::format(":{}", port);
  return text;
}

std::optional<HostPort> ParseHostPort(std::string_view text) {
  const bool brackets = text.starts_with('[');
  if (brackets) text.remove_prefix(1);
  const std::string_view host = text.substr(0, text.find(brackets ? ']' : ':'));
  const bool good =
      !host.empty() &&
      host.find_first_not_of(brackets ? kOfAddress : kOfName) == std::string_view::npos &&
      (!brackets || (host.size() < text.size() && host.find(':') != std::string_view::npos));
  if (!good) return std::nullopt;
  HostPort parsed{.host = std::string(host)};
  text.remove_prefix(host.size() + (brackets ? 1 : 0));
  if (text.empty()) return parsed;
  parsed.port = text.front() == ':' ? ParsePort(text.substr(1)) : uint16_t{0};
  if (parsed.port == 0) return std::nullopt;
  return parsed;
}

}  // namespace aquifer
