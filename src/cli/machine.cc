#include "cli/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include <fstream>
#include <map>
#include <sstream>

#include "io/memory/extent.h"

namespace aquifer {
namespace {

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

unsigned UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<unsigned>(CPU_COUNT(&set));
}

uint64_t TotalMemoryBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  uint64_t kib = 0;
  std::string unit;
  while (file >> name >> kib >> unit) {
    if (name == "MemTotal:") return kib << 10;
  }
  return 0;
}

}  // namespace

Machine DescribeMachine() {
  Machine machine;
  machine.cpu = CpuName();
  machine.cores = UsableCores();
  machine.memory_bytes = TotalMemoryBytes();
  machine.memory_available_bytes = SystemExtentSource()->AvailableBytes();
  utsname names{};
  if (uname(&names) == 0) machine.kernel = fmt::format("{} {}", names.sysname, names.release);
  return machine;
}

std::string FileSystemOf(const std::string& directory) {
  struct statfs info{};
  if (statfs(directory.c_str(), &info) != 0) return "unknown file system";
  static const auto* const known = new std::map<uint64_t, std::string>{
      {0xEF53, "ext4"},        {0x58465342, "xfs"},     {0x9123683E, "btrfs"},
      {0x01021994, "tmpfs"},   {0x794C7630, "overlay"}, {0xF2F52010, "f2fs"},
      {0x2FC12FC1, "zfs"},     {0x6969, "nfs"},         {0x65735546, "fuse"},
      {0xCA451A4E, "bcachefs"}};
  const auto type = static_cast<uint64_t>(info.f_type) & UINT32_MAX;
  const auto found = known->find(type);
  return found != known->end() ? found->second : fmt::format("file system {:#x}", type);
}

}  // namespace aquifer
