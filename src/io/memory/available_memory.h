// How much memory this process may still take, from what the kernel says of the host and of the
// control groups that enclose it.
#pragma once

#include <cstdint>
#include <string>

namespace aquifer {

// Where the kernel's files are; tests give their own.
struct MemoryRoots {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
  std::string huge_pages = "/sys/kernel/mm/hugepages/hugepages-2048kB";
};

// The least of MemAvailable and, for each enclosing cgroup (version 2 or 1), its limit less what is
// used; page cache that can be dropped counts as free. 0 when the host does not say.
uint64_t AvailableMemoryBytes(const MemoryRoots& roots);

// All memory, used or not: the least of the host's memory and the limits of the enclosing
// cgroups. 0 when the host does not say.
uint64_t MemoryLimitBytes(const MemoryRoots& roots);

// In the pool of 2 MiB pages, neither used nor promised to somebody.
uint64_t FreeHugePageBytes(const MemoryRoots& roots);

}  // namespace aquifer
