#include "base/text/duration_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

namespace aquifer {
namespace {

struct Unit {
  char name;
  int64_t seconds;
};
constexpr std::array kUnits = {Unit{'d', 86'400}, Unit{'h', 3'600}, Unit{'m', 60}, Unit{'s', 1}};
constexpr int64_t kLargest = int64_t{100} * 366 * 86'400;  // Beyond any use, far from overflow.

Status Unreadable(std::string_view text) {
  return Status(Code::kInvalid,
                fmt::format("'{}' is not a time; write it like 90s, 15m, 12h or 7d", text));
}

}  // namespace

Result<int64_t> ParseSeconds(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return Unreadable(text);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.empty()) unit = "s";
  for (const Unit& known : kUnits) {
    if (unit.size() != 1 || unit[0] != known.name) continue;
    if (number > kLargest / known.seconds) return Unreadable(text);
    return number * known.seconds;
  }
  return Unreadable(text);
}

std::string SecondsText(int64_t seconds) {
  for (const Unit& unit : kUnits) {
    if (seconds != 0 && seconds % unit.seconds == 0) {
      return fmt::format("{}{}", seconds / unit.seconds, unit.name);
    }
  }
  return "0s";
}

}  // namespace aquifer
