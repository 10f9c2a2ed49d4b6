// What a core says of itself to whoever runs it, all tenants included: for metrics and for the
// administrator. A client learns less, by Stats(). Copies, so that any thread may read them once
// the owner has made them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "cache/residency/cache_meters.h"
#include "cache/transfer/durable_stats.h"
#include "metrics/time_histogram.h"

namespace aquifer {

inline constexpr size_t kCountedTierKinds = 3;  // DRAM, NVMe, the durable ones.
inline constexpr size_t kTimedRequests = 9;

// In the order of CoreSnapshot::requests.
inline constexpr std::array<std::string_view, kTimedRequests> kTimedRequestNames = {
    "match", "fetch", "reserve", "commit", "flush", "pin", "prestage", "evict", "drain"};

// What the clients of one tenant asked for, and what became of it.
struct TenantCounters {
  uint64_t match_keys = 0;
  uint64_t match_hits = 0;
  std::array<uint64_t, kCountedTierKinds> fetch_hits{};  // By the tier where they were.
  std::array<uint64_t, kCountedTierKinds> fetch_hit_bytes{};
  uint64_t fetch_misses = 0;
  uint64_t fetch_late = 0;
  uint64_t fetch_failed = 0;
  uint64_t committed_blocks = 0;
  uint64_t committed_bytes = 0;
  uint64_t reserve_refused = 0;
  // Fetching against computing what was fetched, as the engines' own reports tell; ranks of one
  // engine that fetch the same count once. What a fetch cost more than it saved is in the second.
  double saved_ms = 0;
  double lost_ms = 0;
};

struct TenantSnapshot {
  TenantOptions options;  // An empty name: its blocks were found on a disk, and nobody came yet.
  TenantCounters counters;
  uint64_t dram_bytes = 0;
  uint64_t nvme_bytes = 0;
  uint64_t lost_unwritten = 0;  // Blocks dropped from DRAM before any other tier had them.
  uint64_t lost_undurable = 0;  // Blocks of durable class dropped before a durable tier had them.
  uint64_t orphaned = 0;        // Blocks dropped because one above them was.
};

struct SessionSnapshot {
  std::string name;
  Key head;  // The last key of its chain.
  uint16_t group = 0;
  uint16_t part = 0;
  uint32_t blocks = 0;  // Of the chain up to there; 0: its head is not there any more.
  uint64_t tokens = 0;
  uint64_t bytes = 0;
};

struct CoreSnapshot {
  CacheStats stats;  // Without tenant_bytes.
  std::array<TimeHistogram, kTimedRequests> requests;
  std::array<uint64_t, kRefusals> refused{};  // Reservations, by Refusal.
  TimeHistogram load_wait;                    // From asked for to handed to NVMe.
  TimeHistogram load;                         // From asked for to being in DRAM.
  TimeHistogram write_wait;                   // From committed to handed to NVMe.
  TimeHistogram write;                        // A batch, at NVMe.
  uint64_t requests_under_way = 0;
  uint64_t loads_waiting = 0;
  uint64_t nvme_queued = 0;  // Operations at the tier.
  uint64_t loaded_bytes = 0;
  uint64_t sessions = 0;
  uint64_t clients = 0;
  size_t tenants = 0;
  std::vector<DurableStats> durable;  // In the order in which they were given.
  bool draining = false;
};

}  // namespace aquifer
