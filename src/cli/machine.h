// This host in a few words: the head of every report that holds figures.
#pragma once

#include <cstdint>
#include <string>

namespace aquifer {

struct Machine {
  std::string cpu;     // "AMD EPYC 9354"
  unsigned cores = 0;  // That this process may run on.
  uint64_t memory_bytes = 0;
  uint64_t memory_available_bytes = 0;
  std::string kernel;  // "Linux 6.1.0"
};

Machine DescribeMachine();

// "ext4", "xfs", "tmpfs"; "file system 0x..." for one that we do not know.
std::string FileSystemOf(const std::string& directory);

}  // namespace aquifer
