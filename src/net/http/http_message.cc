#include "net/http/http_message.h"

#include <algorithm>
#include <optional>

namespace aquifer {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// None: it is badly encoded, or means a byte that has no business in a name.
std::optional<std::string> Decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      if (c == '\0') return std::nullopt;
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    decoded += c;
  }
  return decoded;
}

}  // namespace

Status ParseTarget(std::string_view target, HttpRequest* request) {
  const Status wrong(Code::kInvalid, "the target is not a path, as in /v1/status");
  if (!target.starts_with('/')) return wrong;
  const size_t mark = target.find('?');
  const auto path = Decode(target.substr(0, mark), false);
  if (!path) return wrong;
  request->path = *path;
  request->query.clear();
  std::string_view rest = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    const auto name = Decode(pair.substr(0, equals), true);
    const auto value =
        Decode(equals == std::string_view::npos ? "" : pair.substr(equals + 1), true);
    if (!name || !value) return wrong;
    if (!request->query.emplace(*name, *value).second) {
      return Status(Code::kInvalid, "a parameter is there twice; give each once");
    }
  }
  return Status();
}

}  // namespace aquifer
