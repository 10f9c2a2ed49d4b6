#include "base/text/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace aquifer {
namespace {

constexpr size_t kMostSlips = 2;

// Letters to insert, drop or change (Levenshtein's distance).
size_t Slips(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NearestName(std::string_view typed, std::span<const std::string> names) {
  std::string nearest;
  size_t least = kMostSlips + 1;
  for (const std::string& name : names) {
    const bool begins = !typed.empty() && name.starts_with(typed);
    const size_t slips = begins ? 0 : Slips(typed, name);
    // A short word is two slips away from any other.
    if (slips < least && slips < std::max<size_t>(typed.size(), 1)) {
      least = slips;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace aquifer
