#include "cache/cache_report.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cache/request/cache_job.h"

namespace aquifer {
namespace {

template <class Left>
void AddLeft(Left left, CacheStats* stats) {
  const std::pair<std::string, uint64_t> all[] = {
      {"corrupt_blocks", left(Leave::kCorrupt)},
      {"dropped_pressure", left(Leave::kPressure)},
      {"dropped_quota", left(Leave::kQuota)},
      {"dropped_expired", left(Leave::kExpired)},
      {"dropped_asked", left(Leave::kAsked)},
      {"dropped_orphaned", left(Leave::kOrphaned)},
      {"dropped_by_tier", left(Leave::kLostByTier)},
      {"dropped_to_durable", left(Leave::kToDurable)},
  };
  stats->counters.insert(stats->counters.end(), std::begin(all), std::end(all));
}

TenantCounters Summarise(const CacheMeters& meters, uint16_t tenant) {
  const CacheCounters& counters = meters.of(tenant);
  return {.match_keys = counters.match_keys,
          .match_hits = counters.match_hits,
          .fetch_hits = {counters.fetch_hits_dram, counters.fetch_hits_nvme,
                         counters.fetch_hits_durable},
          .fetch_hit_bytes = {counters.fetch_bytes_dram, counters.fetch_bytes_nvme,
                              counters.fetch_bytes_durable},
          .fetch_misses = counters.fetch_misses,
          .fetch_late = counters.fetch_late,
          .fetch_failed = counters.fetch_failed,
          .committed_blocks = counters.committed,
          .committed_bytes = counters.committed_bytes,
          .reserve_refused = counters.reserve_refused,
          .saved_ms = meters.saved_ms(tenant),
          .lost_ms = meters.lost_ms(tenant)};
}

}  // namespace

static_assert(kTimedRequests + 1 == kJobKinds);  // Nobody waits for a hint.

uint64_t CacheStats::Counter(std::string_view name) const {
  const auto found = std::find_if(counters.begin(), counters.end(),
                                  [name](const auto& counter) { return counter.first == name; });
  return found == counters.end() ? 0 : found->second;
}

// --- Stats

// What a tenant may know: of itself, and whether a tier works.
CacheStats CacheReport::StatsOf(uint16_t tenant) const {
  CacheStats stats;
  const Residency::TenantBlocks blocks = cache_.residency.blocks_of(tenant);
  stats.tiers.push_back({.tier = TierKind::kDram,
                         .in_service = true,
                         .capacity_bytes = cache_.residency.DramCeiling(tenant),
                         .used_bytes = cache_.residency.dram_bytes(tenant),
                         .blocks = blocks.in_dram,
                         .tenant_bytes = cache_.residency.dram_bytes(tenant),
                         .read_gbps = 0,
                         .drives = {}});
  if (cache_.drives.any()) {
    stats.tiers.push_back({.tier = TierKind::kNvme,
                           .in_service = cache_.drives.usable(),
                           .capacity_bytes = cache_.residency.NvmeCeiling(tenant),
                           .used_bytes = cache_.residency.nvme_bytes(tenant),
                           .blocks = blocks.on_nvme,
                           .tenant_bytes = cache_.residency.nvme_bytes(tenant),
                           .read_gbps = cache_.nvme_speed.BytesPerSecond(cache_.NowNanos()) / 1e9,
                           .drives = cache_.drives.Stats()});
    for (DriveStats& drive : stats.tiers.back().drives) drive.directory = drive.why = "";
  }
  AddDurable(false, &stats);
  AddCounters(cache_.meters.of(tenant), &stats);
  AddLeft([&](Leave why) { return blocks.left[static_cast<size_t>(why)]; }, &stats);
  stats.counters.emplace_back("lent_slots", cache_.loans.lent_to(tenant));
  return stats;
}

CacheStats CacheReport::StatsOfAll(uint16_t tenant) const {
  CacheStats stats;
  const DramUsage dram = dram_->usage();
  stats.tiers.push_back({.tier = TierKind::kDram,
                         .in_service = true,
                         .capacity_bytes = options_.dram_bytes,
                         .used_bytes = dram.slot_bytes,
                         .blocks = cache_.residency.dram_blocks(),
                         .tenant_bytes = cache_.residency.dram_bytes(tenant),
                         .read_gbps = 0,
                         .drives = {}});
  if (cache_.drives.any()) {
    const TierUsage usage = cache_.drives.ready() ? cache_.drives.tier()->Usage() : TierUsage{};
    stats.tiers.push_back({.tier = TierKind::kNvme,
                           .in_service = cache_.drives.usable(),
                           .capacity_bytes = options_.nvme_bytes,
                           .used_bytes = usage.used_bytes,
                           .blocks = cache_.residency.nvme_blocks(),
                           .tenant_bytes = cache_.residency.nvme_bytes(tenant),
                           .read_gbps = cache_.nvme_speed.BytesPerSecond(cache_.NowNanos()) / 1e9,
                           .drives = cache_.drives.Stats()});
  }
  AddDurable(true, &stats);
  const WriteDownStats& written = cache_.write_down.stats();
  const LoaderStats& loads = cache_.loader.stats();
  const EvictionStats policy = cache_.residency.dram_stats();
  AddCounters(cache_.meters.all(), &stats);
  AddLeft([this](Leave why) { return cache_.residency.left(why); }, &stats);
  const std::pair<std::string, uint64_t> others[] = {
      {"demoted_blocks", cache_.residency.demoted()},
      {"prestaged_unfetched_bytes", cache_.residency.unfetched_bytes()},
      {"prestaged_in_vain_bytes", cache_.residency.prestaged_in_vain_bytes()},
      {"nvme_loads", loads.loads},
      {"nvme_loads_shared", loads.shared_loads},
      {"nvme_loads_failed", loads.failed_loads},
      {"nvme_loads_late", loads.late_loads},
      {"write_down_blocks", written.written_blocks},
      {"write_down_bytes", written.written_bytes},
      {"write_down_retries", written.failed_blocks},
      {"write_down_refused", written.refused_blocks},
      {"write_down_admitted", cache_.write_down.aside().stats().admitted_blocks},
      {"write_down_set_aside", cache_.write_down.aside().stats().set_aside_blocks},
      {"write_down_taken_back", cache_.write_down.aside().stats().taken_back_blocks},
      {"write_down_waiting", cache_.write_down.waiting()},
      {"write_down_aside", cache_.write_down.aside().size()},
      {"policy_asked", policy.asked_blocks},
      {"policy_hits", policy.hits},
      {"policy_lru_hits", policy.lru_hits},
      {"policy_weighed_hits", static_cast<uint64_t>(policy.weighed_hits)},
      {"policy_weighed_lru_hits", static_cast<uint64_t>(policy.weighed_lru_hits)},
      {"policy_takeovers", policy.takeovers},
      {"policy_lru_decides", policy.lru_decides ? 1u : 0u},
      {"engines", cache_.clients.engines()},
      {"layouts", cache_.catalog.layouts()},
      {"lent_slots", cache_.loans.lent()},
      {"blocks", cache_.residency.index().size()},
      {"blocks_only_in_dram", cache_.residency.only_in_dram()},
      {"quarantined_bytes", dram.quarantined_bytes},
      {"withheld_bytes", cache_.residency.withheld_bytes()},
      {"pool_bytes", dram.extent_bytes},
      {"metadata_bytes", cache_.residency.metadata_bytes()},
      {"pending_erasures", cache_.eraser.pending()},
  };
  stats.counters.insert(stats.counters.end(), std::begin(others), std::end(others));
  for (auto& counter : dram_->Counters()) {
    stats.counters.emplace_back("dram_" + counter.first, counter.second);
  }
  if (cache_.drives.ready()) {
    for (auto& counter : cache_.drives.tier()->Counters()) {
      stats.counters.emplace_back("nvme_" + counter.first, counter.second);
    }
    const DiskStats disks = cache_.drives.disk_stats();
    stats.counters.emplace_back("nvme_disk_requests", disks.requests);
    stats.counters.emplace_back("nvme_submit_calls", disks.submit_calls);
  }
  AddDurableCounters(&stats);
  if (environment_.meter != nullptr) {
    stats.counters.emplace_back("owner_largest_task_entries", environment_.meter->most());
  }
  if (environment_.owner_longest_task) {
    stats.counters.emplace_back("owner_longest_task_us",
                                static_cast<uint64_t>(environment_.owner_longest_task() / 1000));
  }
  return stats;
}

// A tenant may know whether they work, and not where they are or what is wrong with them.
void CacheReport::AddDurable(bool sees_all, CacheStats* stats) const {
  if (cache_.durable == nullptr) return;
  for (const DurableStats& durable : cache_.durable->Stats()) {
    TierStats& tier = stats->tiers.emplace_back();
    tier.tier = TierKind::kDurable;
    tier.in_service = durable.in_service;
    tier.read_gbps = durable.bytes_per_second / 1e9;
    tier.drives.push_back({.directory = sees_all ? durable.name : "",
                           .in_service = durable.in_service,
                           .writable = durable.in_service,
                           .why = sees_all ? durable.why : ""});
    if (!sees_all) continue;
    tier.capacity_bytes = durable.usage.capacity_bytes;
    tier.used_bytes = durable.usage.used_bytes;
    tier.blocks = durable.usage.block_count;
  }
}

// What all of them did; each by itself is in the snapshot.
void CacheReport::AddDurableCounters(CacheStats* stats) const {
  if (cache_.durable == nullptr) return;
  DurableStats sum;
  for (const DurableStats& durable : cache_.durable->Stats()) {
    sum.looks += durable.looks;
    sum.loaded_blocks += durable.loaded_blocks;
    sum.failed_loads += durable.failed_loads;
    sum.written_blocks += durable.written_blocks;
    sum.failed_writes += durable.failed_writes;
    sum.waiting_writes += durable.waiting_writes;
    sum.waiting_erasures += durable.waiting_erasures;
  }
  const SessionNotesStats& notes = cache_.durable->notes().stats();
  const std::pair<std::string, uint64_t> all[] = {
      {"durable_looks", sum.looks},
      {"durable_loads", sum.loaded_blocks},
      {"durable_loads_failed", sum.failed_loads},
      {"durable_writes", sum.written_blocks},
      {"durable_writes_failed", sum.failed_writes},
      {"durable_writes_waiting", sum.waiting_writes},
      {"durable_erasures_waiting", sum.waiting_erasures},
      {"session_notes", notes.written},
      {"session_notes_failed", notes.failed},
      {"session_notes_skipped", notes.skipped},
  };
  stats->counters.insert(stats->counters.end(), std::begin(all), std::end(all));
}

// --- Snapshots

CoreSnapshot CacheReport::Snapshot() const {
  CoreSnapshot snapshot;
  snapshot.stats = StatsOfAll(UINT16_MAX);
  for (size_t kind = 0; kind < kTimedRequests; ++kind) {
    snapshot.requests[kind] = cache_.scheduler.times(kind);
  }
  snapshot.refused = cache_.meters.refused_for();
  snapshot.load_wait = cache_.loader.stats().wait;
  snapshot.load = cache_.loader.stats().load;
  snapshot.write_wait = cache_.write_down.stats().wait;
  snapshot.write = cache_.write_down.stats().write;
  snapshot.requests_under_way = cache_.scheduler.running();
  snapshot.loads_waiting = cache_.loader.pending();
  if (cache_.drives.ready()) snapshot.nvme_queued = cache_.drives.tier()->Usage().queued_ops;
  snapshot.loaded_bytes = cache_.loader.stats().loaded_bytes;
  snapshot.sessions = cache_.sessions.size();
  snapshot.clients = cache_.clients.attached();
  snapshot.tenants = cache_.catalog.tenants();
  if (cache_.durable != nullptr) snapshot.durable = cache_.durable->Stats();
  snapshot.draining = cache_.draining;
  return snapshot;
}

std::vector<TenantSnapshot> CacheReport::Tenants(size_t first, size_t max) const {
  std::vector<TenantSnapshot> tenants;
  const size_t end = std::min(first + max, cache_.catalog.tenants());
  for (size_t i = first; i < end; ++i) {
    const auto number = static_cast<uint16_t>(i);
    tenants.push_back(
        {.options = cache_.catalog.tenant(number).options,
         .counters = Summarise(cache_.meters, number),
         .dram_bytes = cache_.residency.dram_bytes(number),
         .nvme_bytes = cache_.residency.nvme_bytes(number),
         .lost_unwritten = cache_.residency.lost_unwritten(number),
         .lost_undurable = cache_.residency.lost_undurable(number),
         .orphaned =
             cache_.residency.blocks_of(number).left[static_cast<size_t>(Leave::kOrphaned)]});
  }
  return tenants;
}

std::vector<SessionSnapshot> CacheReport::Sessions(std::string_view tenant,
                                                   const std::string& after, size_t max) const {
  std::vector<SessionSnapshot> found;
  const std::optional<uint16_t> number = cache_.catalog.FindTenant(tenant);
  const SessionTable::ByName* const own = number ? cache_.sessions.SessionsOf(*number) : nullptr;
  if (own == nullptr) return found;
  const Index& index = cache_.residency.index();
  for (auto next = own->upper_bound(after); next != own->end() && found.size() < max; ++next) {
    const BlockName& head = next->second.head;
    SessionSnapshot session{
        .name = next->first, .head = head.key, .group = head.group, .part = head.part};
    const BlockRef ref = index.Find(head);
    if (ref != kNoBlock && index.at(ref).state == BlockState::kResident) {
      session.blocks = index.at(ref).position + 1;
      session.tokens =
          uint64_t{session.blocks} * cache_.catalog.layout(index.at(ref).layout).tokens_per_block;
      session.bytes = session.blocks * cache_.residency.RawBytes(ref);
    }
    found.push_back(std::move(session));
  }
  return found;
}

bool CacheReport::SessionKeys(std::string_view tenant, const std::string& session, size_t max,
                              std::optional<BlockName>* next, std::vector<Key>* keys) const {
  if (!*next) {
    const std::optional<uint16_t> number = cache_.catalog.FindTenant(tenant);
    const NamedSession* const known = number ? cache_.sessions.Find(*number, session) : nullptr;
    if (known == nullptr) return false;
    *next = known->head;
  }
  return cache_.walk.Up(max, &**next, [keys](BlockRef ref, const Key& key, uint32_t) {
    if (ref != kNoBlock) keys->push_back(key);
  });
}

}  // namespace aquifer
