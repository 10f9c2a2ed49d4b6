// What the clients asked for and what became of it: every counter in one table, for each tenant and
// over all of them. What tiers, loads and writes count themselves is not here.
//
// Runs on the owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "aquifer/cache.h"

namespace aquifer {

inline constexpr size_t kRefusals = 6;

struct CacheCounters {
  uint64_t match_requests = 0;
  uint64_t match_keys = 0;
  uint64_t match_hits = 0;
  uint64_t fetch_hits_dram = 0;
  uint64_t fetch_hits_nvme = 0;
  uint64_t fetch_hits_durable = 0;
  uint64_t fetch_bytes_dram = 0;
  uint64_t fetch_bytes_nvme = 0;
  uint64_t fetch_bytes_durable = 0;
  uint64_t fetch_misses = 0;
  uint64_t fetch_late = 0;
  uint64_t fetch_failed = 0;
  uint64_t reserved = 0;
  uint64_t reserve_have = 0;
  uint64_t reserve_being_filled = 0;
  uint64_t reserve_refused = 0;
  uint64_t committed = 0;
  uint64_t committed_bytes = 0;
  uint64_t aborted = 0;
  uint64_t reported_corrupt = 0;
  uint64_t overdue = 0;
  uint64_t overdue_leases = 0;
  uint64_t dropped_notes = 0;
  uint64_t prestaged = 0;
};

// One line of the table. Stats() has the counters under these names; an empty name is not in
// Stats().
struct CounterLine {
  uint64_t CacheCounters::* field;
  std::string_view name;
  std::string_view help;
};
std::span<const CounterLine> CounterTable();

class CacheMeters {
 public:
  // A tenant's counters are kept from its first client on.
  void AddTenant(uint16_t tenant);

  // Counts for the tenant, and for all.
  void Count(uint16_t tenant, uint64_t CacheCounters::* what, uint64_t count = 1) {
    all_.*what += count;
    by_tenant_[tenant].counters.*what += count;
  }
  void CountRefusal(uint16_t tenant, Refusal why) {
    Count(tenant, &CacheCounters::reserve_refused);
    ++refused_for_[static_cast<size_t>(why)];
  }
  // What a fetch saved against computing the blocks, by the engines' own reports. Negative: it took
  // longer.
  void CountSaved(uint16_t tenant, double milliseconds);

  const CacheCounters& all() const { return all_; }
  const CacheCounters& of(uint16_t tenant) const;
  const std::array<uint64_t, kRefusals>& refused_for() const { return refused_for_; }
  double saved_ms(uint16_t tenant) const { return At(tenant).saved_ms; }
  double lost_ms(uint16_t tenant) const { return At(tenant).lost_ms; }

 private:
  struct Tenant {
    CacheCounters counters;
    double saved_ms = 0;
    double lost_ms = 0;
  };

  const Tenant& At(uint16_t tenant) const;

  CacheCounters all_;
  std::array<uint64_t, kRefusals> refused_for_{};
  std::vector<Tenant> by_tenant_;
};

// Adds the counters to the list, in the table's order.
void AddCounters(const CacheCounters& counters, CacheStats* stats);

}  // namespace aquifer
