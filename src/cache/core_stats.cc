#include <algorithm>
#include <iterator>
#include <utility>

#include "cache/core.h"

namespace aquifer {
namespace {

// An operator should know also of what is wrong with a drive that is in service.
std::string WhyOf(const NvmeDriveState& state) {
  if (!state.why.ok()) return state.why.message();
  if (state.skipped.empty()) return "";
  std::string why = "at the start some of it could not be read: " + state.skipped.front();
  if (state.skipped.size() > 1) {
    why += "; and " + std::to_string(state.skipped.size() - 1) + " more of that kind";
  }
  return why;
}

void AddRequests(const CoreCounters& counters, CacheStats* stats) {
  const std::pair<std::string, uint64_t> all[] = {
      {"match_requests", counters.match_requests},
      {"match_keys", counters.match_keys},
      {"match_hits", counters.match_hits},
      {"fetch_hits_dram", counters.fetch_hits_dram},
      {"fetch_hits_nvme", counters.fetch_hits_nvme},
      {"fetch_hits_durable", counters.fetch_hits_durable},
      {"fetch_misses", counters.fetch_misses},
      {"fetch_late", counters.fetch_late},
      {"fetch_failed", counters.fetch_failed},
      {"reserved", counters.reserved},
      {"reserve_have", counters.reserve_have},
      {"reserve_being_filled", counters.reserve_being_filled},
      {"reserve_refused", counters.reserve_refused},
      {"committed", counters.committed},
      {"aborted", counters.aborted},
      {"overdue_reservations", counters.overdue},
      {"overdue_leases", counters.overdue_leases},
      {"dropped_notes", counters.dropped_notes},
      {"prestaged_blocks", counters.prestaged},
      {"corrupt_reported", counters.reported_corrupt},
  };
  stats->counters.insert(stats->counters.end(), std::begin(all), std::end(all));
}

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

}  // namespace

std::vector<DriveStats> Core::Drives() const {
  std::vector<DriveStats> drives;
  if (nvme_ == nullptr) return drives;
  for (const NvmeDriveState& state : nvme_->Drives()) {
    drives.push_back({.directory = options_.cache.nvme_directories[drives.size()],
                      .in_service = state.in_service,
                      .writable = state.writable,
                      .why = WhyOf(state)});
  }
  return drives;
}

uint64_t CacheStats::Counter(std::string_view name) const {
  const auto found = std::find_if(counters.begin(), counters.end(),
                                  [name](const auto& counter) { return counter.first == name; });
  return found == counters.end() ? 0 : found->second;
}

// A tenant may know whether they work, and not where they are or what is wrong with them.
void Core::AddDurable(bool sees_all, CacheStats* stats) const {
  for (const DurableStats& durable : DurableTierStats()) {
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
void Core::AddDurableCounters(CacheStats* stats) const {
  if (durable_ == nullptr) return;
  DurableStats sum;
  for (const DurableStats& durable : DurableTierStats()) {
    sum.looks += durable.looks;
    sum.loaded_blocks += durable.loaded_blocks;
    sum.failed_loads += durable.failed_loads;
    sum.written_blocks += durable.written_blocks;
    sum.failed_writes += durable.failed_writes;
    sum.waiting_writes += durable.waiting_writes;
    sum.waiting_erasures += durable.waiting_erasures;
  }
  const SessionNotesStats& notes = durable_->notes().stats();
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

void Core::Stats(ClientNumber client, StatsRequest* request) {
  Client& caller = clients_[client];
  ++caller.requests;
  request->stats = caller.sees_all ? StatsOfAll(caller.tenant) : StatsOf(caller.tenant);
  Progress(client, request, 1, true);
}

// What a tenant may know: of itself, and whether a tier works.
CacheStats Core::StatsOf(uint16_t tenant) const {
  CacheStats stats;
  const Residency::TenantBlocks blocks = residency_->blocks_of(tenant);
  stats.tiers.push_back({.tier = TierKind::kDram,
                         .in_service = true,
                         .capacity_bytes = residency_->DramCeiling(tenant),
                         .used_bytes = residency_->dram_bytes(tenant),
                         .blocks = blocks.in_dram,
                         .tenant_bytes = residency_->dram_bytes(tenant),
                         .read_gbps = 0,
                         .drives = {}});
  if (!options_.cache.nvme_directories.empty()) {
    stats.tiers.push_back(
        {.tier = TierKind::kNvme,
         .in_service = nvme_usable(),
         .capacity_bytes = residency_->NvmeCeiling(tenant),
         .used_bytes = residency_->nvme_bytes(tenant),
         .blocks = blocks.on_nvme,
         .tenant_bytes = residency_->nvme_bytes(tenant),
         .read_gbps = nvme_speed_.BytesPerSecond(environment_.clock->NowNanos()) / 1e9,
         .drives = Drives()});
    for (DriveStats& drive : stats.tiers.back().drives) drive.directory = drive.why = "";
  }
  AddDurable(false, &stats);
  AddRequests(counters_of_[tenant], &stats);
  AddLeft([&](Leave why) { return blocks.left[static_cast<size_t>(why)]; }, &stats);
  uint64_t lent = 0;
  for (const Client& client : clients_) lent += client.tenant == tenant ? client.leases : 0;
  stats.counters.emplace_back("lent_slots", lent);
  return stats;
}

CacheStats Core::StatsOfAll(uint16_t tenant) const {
  CacheStats stats;
  const DramUsage dram = dram_->usage();
  stats.tiers.push_back({.tier = TierKind::kDram,
                         .in_service = true,
                         .capacity_bytes = options_.cache.dram_bytes,
                         .used_bytes = dram.slot_bytes,
                         .blocks = residency_->dram_blocks(),
                         .tenant_bytes = residency_->dram_bytes(tenant),
                         .read_gbps = 0,
                         .drives = {}});
  if (!options_.cache.nvme_directories.empty()) {
    const TierUsage usage = nvme_ready_ ? nvme_->Usage() : TierUsage{};
    stats.tiers.push_back(
        {.tier = TierKind::kNvme,
         .in_service = nvme_usable(),
         .capacity_bytes = options_.cache.nvme_bytes,
         .used_bytes = usage.used_bytes,
         .blocks = residency_->nvme_blocks(),
         .tenant_bytes = residency_->nvme_bytes(tenant),
         .read_gbps = nvme_speed_.BytesPerSecond(environment_.clock->NowNanos()) / 1e9,
         .drives = Drives()});
  }
  AddDurable(true, &stats);
  const WriteDownStats& written = write_down_->stats();
  const LoaderStats& loads = loader_->stats();
  const EvictionStats policy = residency_->dram_stats();
  AddRequests(counters_, &stats);
  AddLeft([this](Leave why) { return residency_->left(why); }, &stats);
  const std::pair<std::string, uint64_t> others[] = {
      {"demoted_blocks", residency_->demoted()},
      {"prestaged_unfetched_bytes", residency_->unfetched_bytes()},
      {"prestaged_in_vain_bytes", residency_->prestaged_in_vain_bytes()},
      {"nvme_loads", loads.loads},
      {"nvme_loads_shared", loads.shared_loads},
      {"nvme_loads_failed", loads.failed_loads},
      {"nvme_loads_late", loads.late_loads},
      {"write_down_blocks", written.written_blocks},
      {"write_down_bytes", written.written_bytes},
      {"write_down_retries", written.failed_blocks},
      {"write_down_refused", written.refused_blocks},
      {"write_down_admitted", write_down_->aside().stats().admitted_blocks},
      {"write_down_set_aside", write_down_->aside().stats().set_aside_blocks},
      {"write_down_taken_back", write_down_->aside().stats().taken_back_blocks},
      {"write_down_waiting", write_down_->waiting()},
      {"write_down_aside", write_down_->aside().size()},
      {"policy_asked", policy.asked_blocks},
      {"policy_hits", policy.hits},
      {"policy_lru_hits", policy.lru_hits},
      {"policy_weighed_hits", static_cast<uint64_t>(policy.weighed_hits)},
      {"policy_weighed_lru_hits", static_cast<uint64_t>(policy.weighed_lru_hits)},
      {"policy_takeovers", policy.takeovers},
      {"policy_lru_decides", policy.lru_decides ? 1u : 0u},
      {"engines", engines_.size()},
      {"layouts", catalog_.layouts()},
      {"lent_slots", lent_},
      {"blocks", residency_->index().size()},
      {"blocks_only_in_dram", residency_->only_in_dram()},
      {"quarantined_bytes", dram.quarantined_bytes},
      {"withheld_bytes", residency_->withheld_bytes()},
      {"pool_bytes", dram.extent_bytes},
      {"metadata_bytes", residency_->metadata_bytes()},
      {"pending_erasures", eraser_->pending()},
  };
  stats.counters.insert(stats.counters.end(), std::begin(others), std::end(others));
  for (auto& counter : dram_->Counters()) {
    stats.counters.emplace_back("dram_" + counter.first, counter.second);
  }
  if (nvme_ready_) {
    for (auto& counter : nvme_->Counters()) {
      stats.counters.emplace_back("nvme_" + counter.first, counter.second);
    }
    DiskStats disks;
    for (const auto& disk : disks_) {
      disks.requests += disk->stats().requests;
      disks.submit_calls += disk->stats().submit_calls;
    }
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

}  // namespace aquifer
