// What this process uses of its host, as the kernel counts it. Reads /proc; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace aquifer {

struct ProcessUsage {
  std::map<std::string, double>
      cpu_seconds{};           // By thread's name; those that are not ours: "other".
  double all_cpu_seconds = 0;  // Of threads that have ended, too.
  uint64_t resident_bytes = 0;
  uint64_t open_files = 0;
};

ProcessUsage OwnUsage();

}  // namespace aquifer
