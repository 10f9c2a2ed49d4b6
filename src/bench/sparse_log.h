// A log of the NVMe tier whose segments are sealed and real in everything but the payloads, which
// are holes: a terabyte of it takes a few hundred megabytes of disk.
#pragma once

#include <cstdint>
#include <string>

#include "aquifer/layout.h"
#include "aquifer/status.h"

namespace aquifer {

struct SparseLogOptions {
  std::string directory;  // Made if missing.
  uint64_t segment_bytes = 0;
  uint64_t blocks = 0;
  uint32_t chain_blocks = 100;
  Layout layout;  // Of the blocks; the first group is used.
  std::string tenant;
};

struct SparseLog {
  uint64_t segments = 0;
  uint64_t bytes = 0;  // As the files' sizes say.
};

Result<SparseLog> WriteSparseLog(const SparseLogOptions& options);

// Makes later reads of the log come from the drive and not from memory. Best effort.
void DropSparseLogFromPageCache(const std::string& directory);

}  // namespace aquifer
