// What a durable tier says of itself to metrics and to the administrator.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tier/tier.h"

namespace aquifer {

// One durable tier, as this node sees it.
struct DurableStats {
  std::string name;
  bool in_service = true;
  std::string why{};            // Why it is not, or was not the last time.
  double latency_ms = 0;        // Of a read, as observed.
  double bytes_per_second = 0;  // The same.
  TierUsage usage;              // The store's, as far as it is known.
  uint64_t looks = 0;           // Questions whether a block is there.
  uint64_t looks_found = 0;
  uint64_t loaded_blocks = 0;
  uint64_t loaded_bytes = 0;
  uint64_t failed_loads = 0;  // Not there, damaged, late or refused.
  uint64_t written_blocks = 0;
  uint64_t written_bytes = 0;
  uint64_t failed_writes = 0;     // Tried, and to be tried again.
  uint64_t waiting_loads = 0;     // Blocks.
  uint64_t waiting_writes = 0;    // The same.
  uint64_t waiting_erasures = 0;  // The same.
  uint64_t unswept_tenants = 0;   // That were deleted, and of which something may be there.
  // How long the block of durable class has waited that has waited longest; 0: none does.
  double oldest_unprotected_seconds = 0;
  std::vector<std::pair<std::string, uint64_t>> counters{};  // The tier's own, by name.
};

}  // namespace aquifer
