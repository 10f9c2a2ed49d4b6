#include "io/memory/available_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace aquifer {
namespace {

constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

std::optional<std::string> ReadWhole(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// The number that `text` starts with, after spaces.
std::optional<uint64_t> Number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// A file with one number; none for "max", as for a file that is not there.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  const auto text = ReadWhole(path);
  return text.has_value() ? Number(*text) : std::nullopt;
}

// The number behind `name` in a file with a name and a number in each line.
std::optional<uint64_t> ReadField(const std::string& path, std::string_view name) {
  std::istringstream lines(ReadWhole(path).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return Number(std::string_view(line).substr(name.size()));
  }
  return std::nullopt;
}

// The files that say how much a group may still take; no bound when it has no limit.
struct CgroupFiles {
  std::string_view limit;
  std::string_view second_limit;  // May be empty.
  std::string_view usage;
  std::string_view droppable;  // In memory.stat.
};
constexpr CgroupFiles kVersion2 = {"memory.max", "memory.high", "memory.current", "inactive_file "};
constexpr CgroupFiles kVersion1 = {"memory.limit_in_bytes", "", "memory.usage_in_bytes",
                                   "total_inactive_file "};
constexpr uint64_t kNoBound = std::numeric_limits<uint64_t>::max();

// A number of a folder's files.
std::optional<uint64_t> ReadNumberIn(const std::string& folder, std::string_view name) {
  return ReadNumber(folder + "/" + std::string(name));
}

uint64_t LimitOfGroup(const std::string& folder, const CgroupFiles& files) {
  const uint64_t limit = ReadNumberIn(folder, files.limit).value_or(kNoBound);
  if (files.second_limit.empty()) return limit;
  return std::min(limit, ReadNumberIn(folder, files.second_limit).value_or(kNoBound));
}

uint64_t RoomInGroup(const std::string& folder, const CgroupFiles& files) {
  const uint64_t limit = LimitOfGroup(folder, files);
  if (limit == kNoBound) return kNoBound;
  const uint64_t usage = ReadNumberIn(folder, files.usage).value_or(0);
  const uint64_t droppable = ReadField(folder + "/memory.stat", files.droppable).value_or(0);
  const uint64_t used = usage - std::min(usage, droppable);
  return limit - std::min(limit, used);
}

using Measure = uint64_t (*)(const std::string& folder, const CgroupFiles& files);

// The least of the group and all around it. In a container the path may be the host's, of which
// only the end point is mounted here; the folders that are not there say nothing.
uint64_t LeastInGroups(const std::string& mount, std::string path, const CgroupFiles& files,
                       Measure measure) {
  uint64_t least = measure(mount, files);
  while (path.size() > 1) {
    least = std::min(least, measure(mount + path, files));
    path.resize(path.rfind('/'));
  }
  return least;
}

uint64_t LeastByCgroups(const MemoryRoots& roots, Measure measure) {
  std::istringstream lines(ReadWhole(roots.proc + "/self/cgroup").value_or(""));
  uint64_t least = kNoBound;
  for (std::string line; std::getline(lines, line);) {
    // "0::/path" is version 2; "4:memory:/path" or "4:cpu,memory:/path" is version 1.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    std::string path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers == ",,") {
      least = std::min(least, LeastInGroups(roots.cgroup, std::move(path), kVersion2, measure));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(
          least, LeastInGroups(roots.cgroup + "/memory", std::move(path), kVersion1, measure));
    }
  }
  return least;
}

}  // namespace

uint64_t AvailableMemoryBytes(const MemoryRoots& roots) {
  const auto host_kib = ReadField(roots.proc + "/meminfo", "MemAvailable:");
  if (!host_kib.has_value()) return 0;
  return std::min(*host_kib * 1024, LeastByCgroups(roots, &RoomInGroup));
}

uint64_t MemoryLimitBytes(const MemoryRoots& roots) {
  const auto host_kib = ReadField(roots.proc + "/meminfo", "MemTotal:");
  if (!host_kib.has_value()) return 0;
  return std::min(*host_kib * 1024, LeastByCgroups(roots, &LimitOfGroup));
}

uint64_t FreeHugePageBytes(const MemoryRoots& roots) {
  const uint64_t free = ReadNumber(roots.huge_pages + "/free_hugepages").value_or(0);
  const uint64_t promised = ReadNumber(roots.huge_pages + "/resv_hugepages").value_or(0);
  return (free - std::min(free, promised)) * kHugePageBytes;
}

}  // namespace aquifer
