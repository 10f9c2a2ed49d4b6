#include "base/text/size_text.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

namespace aquifer {
namespace {

struct Unit {
  std::string_view name;  // In lower case.
  double bytes;
};

constexpr double kKibi = 1024;
constexpr std::array kUnits = {
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"k", kKibi},
    Unit{"kib", kKibi},
    Unit{"kb", 1e3},
    Unit{"m", kKibi* kKibi},
    Unit{"mib", kKibi* kKibi},
    Unit{"mb", 1e6},
    Unit{"g", kKibi* kKibi* kKibi},
    Unit{"gib", kKibi* kKibi* kKibi},
    Unit{"gb", 1e9},
    Unit{"t", kKibi* kKibi* kKibi* kKibi},
    Unit{"tib", kKibi* kKibi* kKibi* kKibi},
    Unit{"tb", 1e12},
};

constexpr double kLargest = 1e18;

Status Unreadable(std::string_view text) {
  return Status(Code::kInvalid,
                fmt::format("'{}' is not a size; write it like 512MiB, 2GiB or 1TB", text));
}

}  // namespace

Result<uint64_t> ParseSize(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return Unreadable(text);
  std::string name;
  for (const char c : text.substr(static_cast<size_t>(end - text.data()))) {
    if (c != ' ') name.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  for (const Unit& unit : kUnits) {
    if (unit.name != name) continue;
    const double bytes = number * unit.bytes;
    if (bytes > kLargest) return Unreadable(text);
    return static_cast<uint64_t>(std::llround(bytes));
  }
  return Unreadable(text);
}

std::string SizeText(uint64_t bytes) {
  constexpr std::array<std::pair<int, const char*>, 4> kShifts = {
      {{40, "TiB"}, {30, "GiB"}, {20, "MiB"}, {10, "KiB"}}};
  for (const auto& [shift, name] : kShifts) {
    const uint64_t unit = uint64_t{1} << shift;
    if (bytes < unit) continue;
    if (bytes % unit == 0) return fmt::format("{}{}", bytes >> shift, name);
    return fmt::format("{:.1f}{}", static_cast<double>(bytes) / static_cast<double>(unit), name);
  }
  return fmt::format("{}B", bytes);
}

}  // namespace aquifer
