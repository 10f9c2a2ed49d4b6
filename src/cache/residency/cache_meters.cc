#include "cache/residency/cache_meters.h"

#include <algorithm>
#include <string>

namespace aquifer {
namespace {

using C = CacheCounters;

constexpr CounterLine kTable[] = {
    {&C::match_requests, "match_requests", "Match requests that were answered."},
    {&C::match_keys, "match_keys", "Keys that Match was asked for."},
    {&C::match_hits, "match_hits", "Keys of these that matched."},
    {&C::fetch_hits_dram, "fetch_hits_dram", "Blocks lent from DRAM."},
    {&C::fetch_hits_nvme, "fetch_hits_nvme", "Blocks lent after a load from NVMe."},
    {&C::fetch_hits_durable, "fetch_hits_durable", "Blocks lent after a load from a durable tier."},
    {&C::fetch_bytes_dram, "", "Bytes of the blocks that were lent from DRAM."},
    {&C::fetch_bytes_nvme, "", "Bytes of the blocks that were loaded from NVMe and lent."},
    {&C::fetch_bytes_durable, "",
     "Bytes of the blocks that were loaded from durable tiers and lent."},
    {&C::fetch_misses, "fetch_misses", "Blocks that no tier had."},
    {&C::fetch_late, "fetch_late", "Blocks that did not come before the fetch's deadline."},
    {&C::fetch_failed, "fetch_failed", "Blocks that a tier had and could not serve."},
    {&C::reserved, "reserved", "Slots given out by Reserve."},
    {&C::reserve_have, "reserve_have", "Blocks that were there when they were to be reserved."},
    {&C::reserve_being_filled, "reserve_being_filled", "Blocks that another engine was filling."},
    {&C::reserve_refused, "reserve_refused", "Blocks for which Reserve gave no slot."},
    {&C::committed, "committed", "Blocks that were published."},
    {&C::committed_bytes, "", "Bytes of the blocks that were published."},
    {&C::aborted, "aborted", "Reservations that were given up before every head was there."},
    {&C::overdue, "overdue_reservations",
     "Reservations that were void because they took too long."},
    {&C::overdue_leases, "overdue_leases", "Leases that were held for too long."},
    {&C::dropped_notes, "dropped_notes",
     "Hints and reports beyond what a client may send at once."},
    {&C::prestaged, "prestaged_blocks", "Blocks that Prestage brought to DRAM."},
    {&C::reported_corrupt, "corrupt_reported", "Blocks that a reader called damaged."},
};

}  // namespace

std::span<const CounterLine> CounterTable() { return kTable; }

void CacheMeters::AddTenant(uint16_t tenant) {
  if (by_tenant_.size() <= tenant) by_tenant_.resize(size_t{tenant} + 1);
}

const CacheMeters::Tenant& CacheMeters::At(uint16_t tenant) const {
  static const Tenant kNone;
  return tenant < by_tenant_.size() ? by_tenant_[tenant] : kNone;
}

const CacheCounters& CacheMeters::of(uint16_t tenant) const { return At(tenant).counters; }

void CacheMeters::CountSaved(uint16_t tenant, double milliseconds) {
  Tenant& own = by_tenant_[tenant];
  if (milliseconds > 0) {
    own.saved_ms += milliseconds;
  } else {
    own.lost_ms -= milliseconds;
  }
}

void AddCounters(const CacheCounters& counters, CacheStats* stats) {
  for (const CounterLine& line : kTable) {
    if (!line.name.empty()) stats->counters.emplace_back(line.name, counters.*line.field);
  }
}

}  // namespace aquifer
