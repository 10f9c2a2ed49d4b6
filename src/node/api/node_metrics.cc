#include "node/api/node_metrics.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

#include "metrics/prometheus_text.h"
#include "node/api/durable_metrics.h"
#include "node/api/metric_rows.h"

namespace aquifer {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;
constexpr MetricKind kHistogram = MetricKind::kHistogram;

// A counter of CacheStats as a metric. Rows of one metric follow each other; the first one's help
// is the metric's.
struct Row {
  std::string_view counter;
  std::string_view metric;
  MetricKind kind;
  std::string_view label;  // Empty: none.
  std::string_view value;
  std::string_view help;
};

constexpr Row kRows[] = {
    {"match_requests", "aquifer_match_requests_total", kCounter, "", "", "Requests to match"},
    {"reserved", "aquifer_reservations_total", kCounter, "outcome", "slot",
     "Blocks that engines wanted to store, by what they were told"},
    {"reserve_have", "aquifer_reservations_total", kCounter, "outcome", "have", ""},
    {"reserve_being_filled", "aquifer_reservations_total", kCounter, "outcome", "being_filled", ""},
    {"reserve_refused", "aquifer_reservations_total", kCounter, "outcome", "refused", ""},
    {"aborted", "aquifer_reservations_aborted_total", kCounter, "", "",
     "Reservations that were given up"},
    {"overdue_reservations", "aquifer_overdue_total", kCounter, "what", "reservation",
     "Loans that were held for too long"},
    {"overdue_leases", "aquifer_overdue_total", kCounter, "what", "lease", ""},
    {"dropped_notes", "aquifer_dropped_notes_total", kCounter, "", "",
     "Hints and prefill reports of clients that sent too many at once"},
    {"prestaged_blocks", "aquifer_prestaged_blocks_total", kCounter, "", "",
     "Blocks brought to DRAM ahead of a fetch"},
    {"prestaged_unfetched_bytes", "aquifer_prestaged_unfetched_bytes", kGauge, "", "",
     "Bytes in DRAM that were brought there ahead of a fetch which has not come yet"},
    {"prestaged_in_vain_bytes", "aquifer_prestaged_in_vain_bytes_total", kCounter, "", "",
     "Bytes that were brought to DRAM ahead and left it before anybody fetched them"},
    {"corrupt_blocks", "aquifer_corrupt_blocks_total", kCounter, "", "",
     "Blocks dropped because a checksum failed"},
    {"corrupt_reported", "aquifer_corrupt_reported_total", kCounter, "", "",
     "Of the corrupt blocks, those that a reader found"},
    {"dropped_pressure", "aquifer_evicted_blocks_total", kCounter, "reason", "pressure",
     "Blocks that left every tier, by why"},
    {"dropped_quota", "aquifer_evicted_blocks_total", kCounter, "reason", "quota", ""},
    {"dropped_expired", "aquifer_evicted_blocks_total", kCounter, "reason", "expired", ""},
    {"corrupt_blocks", "aquifer_evicted_blocks_total", kCounter, "reason", "corrupt", ""},
    {"dropped_asked", "aquifer_evicted_blocks_total", kCounter, "reason", "asked", ""},
    {"dropped_orphaned", "aquifer_evicted_blocks_total", kCounter, "reason", "orphaned", ""},
    {"dropped_by_tier", "aquifer_evicted_blocks_total", kCounter, "reason", "lost_by_tier", ""},
    {"dropped_to_durable", "aquifer_evicted_blocks_total", kCounter, "reason", "to_durable", ""},
    {"demoted_blocks", "aquifer_demoted_blocks_total", kCounter, "", "",
     "Blocks that left DRAM and stayed in a lower tier"},
    {"nvme_loads", "aquifer_nvme_loads_total", kCounter, "outcome", "loaded",
     "Blocks read from NVMe to DRAM, by what became of it"},
    {"nvme_loads_failed", "aquifer_nvme_loads_total", kCounter, "outcome", "failed", ""},
    {"nvme_loads_late", "aquifer_nvme_loads_total", kCounter, "outcome", "late", ""},
    {"nvme_loads_shared", "aquifer_nvme_loads_shared_total", kCounter, "", "",
     "Requests that joined a read under way"},
    {"write_down_blocks", "aquifer_write_down_blocks_total", kCounter, "", "",
     "Blocks written to NVMe"},
    {"write_down_bytes", "aquifer_write_down_bytes_total", kCounter, "", "",
     "Bytes of blocks written to NVMe"},
    {"write_down_retries", "aquifer_write_down_retries_total", kCounter, "", "",
     "Writes to NVMe that failed and were tried again"},
    {"write_down_refused", "aquifer_write_down_refused_total", kCounter, "", "",
     "Blocks that were not let onto NVMe: too large, or over their tenant's ceiling"},
    {"write_down_admitted", "aquifer_write_down_offered_blocks_total", kCounter, "outcome",
     "admitted", "Blocks that NVMe could have, where it is not to have all: by what was decided"},
    {"write_down_set_aside", "aquifer_write_down_offered_blocks_total", kCounter, "outcome",
     "set_aside", ""},
    {"write_down_taken_back", "aquifer_write_down_taken_back_blocks_total", kCounter, "", "",
     "Of those set aside, the ones that were written after all"},
    {"write_down_aside", "aquifer_write_down_aside_blocks", kGauge, "", "",
     "Blocks that are in DRAM alone: others are likelier to be asked for again, or NVMe gave them "
     "up"},
    {"policy_asked", "aquifer_policy_asked_blocks_total", kCounter, "", "",
     "Blocks that were asked for, as the learned order in DRAM heard of it"},
    {"policy_hits", "aquifer_policy_hits_total", kCounter, "order", "learned",
     "Of those, the ones that were in DRAM, and those that LRU would have had there"},
    {"policy_lru_hits", "aquifer_policy_hits_total", kCounter, "order", "lru", ""},
    {"policy_weighed_hits", "aquifer_policy_weighed_hits_total", kCounter, "order", "learned",
     "The same by what each saves, in blocks of which each saves as much as the mean one"},
    {"policy_weighed_lru_hits", "aquifer_policy_weighed_hits_total", kCounter, "order", "lru", ""},
    {"policy_takeovers", "aquifer_policy_takeovers_total", kCounter, "", "",
     "Times that the learned order in DRAM had fallen behind LRU, which then decided"},
    {"policy_lru_decides", "aquifer_policy_lru_decides", kGauge, "", "",
     "1: LRU decides now what leaves DRAM"},
    {"session_notes", "aquifer_session_notes_total", kCounter, "outcome", "written",
     "Sessions noted in durable tiers, by what became of it"},
    {"session_notes_failed", "aquifer_session_notes_total", kCounter, "outcome", "failed", ""},
    {"session_notes_skipped", "aquifer_session_notes_total", kCounter, "outcome", "skipped", ""},
    {"engines", "aquifer_engines", kGauge, "", "", "Engines that have clients"},
    {"layouts", "aquifer_layouts", kGauge, "", "", "Layouts that have clients or blocks"},
    {"lent_slots", "aquifer_lent_slots", kGauge, "", "", "Leases and reservations that are held"},
    {"blocks", "aquifer_indexed_blocks", kGauge, "", "", "Blocks in the index, in any tier"},
    {"blocks_only_in_dram", "aquifer_blocks_only_in_dram", kGauge, "", "",
     "Blocks that no lower tier has"},
    {"quarantined_bytes", "aquifer_quarantined_bytes", kGauge, "", "",
     "DRAM of blocks that are gone, which a client or a drive may still touch"},
    {"withheld_bytes", "aquifer_withheld_bytes", kGauge, "", "",
     "Empty extents that clients were asked for and have not returned"},
    {"pool_bytes", "aquifer_pool_bytes", kGauge, "", "", "DRAM taken for blocks, used or not"},
    {"metadata_bytes", "aquifer_metadata_bytes", kGauge, "", "", "DRAM for index and policy"},
    {"dram_extents_made", "aquifer_dram_extents_total", kCounter, "event", "made",
     "What became of extents of the pool"},
    {"dram_extents_closed", "aquifer_dram_extents_total", kCounter, "event", "closed", ""},
    {"dram_extents_failed", "aquifer_dram_extents_total", kCounter, "event", "failed", ""},
    {"dram_extents_short", "aquifer_dram_extents_total", kCounter, "event", "short", ""},
    {"dram_slots_allocated", "aquifer_dram_slots_total", kCounter, "event", "allocated",
     "What became of slots of the pool"},
    {"dram_slots_freed", "aquifer_dram_slots_total", kCounter, "event", "freed", ""},
    {"dram_frees_deferred", "aquifer_dram_slots_total", kCounter, "event", "free_deferred", ""},
    {"dram_corrupt_blocks", "aquifer_dram_copy_problems_total", kCounter, "problem", "corrupt",
     "What went wrong where the node itself copies blocks in DRAM"},
    {"dram_bus_errors", "aquifer_dram_copy_problems_total", kCounter, "problem", "bus_error", ""},
    {"dram_late_ops", "aquifer_dram_copy_problems_total", kCounter, "problem", "late", ""},
    {"dram_refused_ops", "aquifer_dram_copy_problems_total", kCounter, "problem", "refused", ""},
    {"nvme_live_blocks", "aquifer_nvme_live_blocks", kGauge, "", "",
     "Blocks that the NVMe tier can read"},
    {"nvme_bytes_read", "aquifer_disk_bytes_total", kCounter, "direction", "read",
     "Payload read from and written to the drives"},
    {"nvme_bytes_written", "aquifer_disk_bytes_total", kCounter, "direction", "written", ""},
    {"nvme_blocks_read", "aquifer_disk_blocks_total", kCounter, "event", "read",
     "What the NVMe tier did with blocks"},
    {"nvme_blocks_written", "aquifer_disk_blocks_total", kCounter, "event", "written", ""},
    {"nvme_blocks_erased", "aquifer_disk_blocks_total", kCounter, "event", "erased", ""},
    {"nvme_blocks_expired", "aquifer_disk_blocks_total", kCounter, "event", "expired", ""},
    {"nvme_corrupt_blocks", "aquifer_disk_corruptions_total", kCounter, "found", "when_read",
     "Damage that checksums found on the way to or from the drives"},
    {"nvme_corrupt_sources", "aquifer_disk_corruptions_total", kCounter, "found", "before_write",
     ""},
    {"nvme_corrupt_records", "aquifer_disk_corruptions_total", kCounter, "found", "at_start", ""},
    {"nvme_refused_seals", "aquifer_disk_seal_problems_total", kCounter, "problem", "refused",
     "Blocks on the drives whose seal did not hold, or whose tenant's key was not known"},
    {"nvme_without_key", "aquifer_disk_seal_problems_total", kCounter, "problem", "no_key", ""},
    {"nvme_torn_segments", "aquifer_disk_segments_at_start_total", kCounter, "state", "torn",
     "Segments that were not whole when the drive was opened"},
    {"nvme_skipped_segments", "aquifer_disk_segments_at_start_total", kCounter, "state", "skipped",
     ""},
    {"nvme_read_errors", "aquifer_disk_errors_total", kCounter, "operation", "read",
     "What the drives reported"},
    {"nvme_write_errors", "aquifer_disk_errors_total", kCounter, "operation", "write", ""},
    {"nvme_create_errors", "aquifer_disk_errors_total", kCounter, "operation", "create", ""},
    {"nvme_map_writes", "aquifer_disk_map_writes_total", kCounter, "", "",
     "Writes of segments' deletion maps"},
    {"nvme_segments_opened", "aquifer_disk_segments_total", kCounter, "event", "opened",
     "What became of segments of the log"},
    {"nvme_segments_sealed", "aquifer_disk_segments_total", kCounter, "event", "sealed", ""},
    {"nvme_segments_reclaimed", "aquifer_disk_segments_total", kCounter, "event", "reclaimed", ""},
    {"nvme_reclaim_moved_blocks", "aquifer_disk_reclaim_blocks_total", kCounter, "outcome", "moved",
     "Blocks of segments that were reclaimed"},
    {"nvme_reclaim_dropped_blocks", "aquifer_disk_reclaim_blocks_total", kCounter, "outcome",
     "dropped", ""},
    {"nvme_reclaim_moved_bytes", "aquifer_disk_reclaim_moved_bytes_total", kCounter, "", "",
     "Bytes written again to keep blocks of reclaimed segments"},
    {"nvme_probes", "aquifer_disk_probes_total", kCounter, "", "",
     "Tries to bring a drive back into service"},
    {"nvme_times_out_of_service", "aquifer_disk_outages_total", kCounter, "", "",
     "Times that a drive went out of service"},
    {"nvme_drives_in_service", "aquifer_disk_drives", kGauge, "state", "in_service",
     "Drives that can be read, and written"},
    {"nvme_drives_writable", "aquifer_disk_drives", kGauge, "state", "writable", ""},
    {"nvme_disk_requests", "aquifer_disk_requests_total", kCounter, "", "",
     "Requests to the drives"},
    {"nvme_submit_calls", "aquifer_disk_submit_calls_total", kCounter, "", "",
     "System calls that these took"},
    {"nvme_file_bytes", "aquifer_disk_file_bytes", kGauge, "", "", "Bytes of files on the drives"},
    {"nvme_index_bytes", "aquifer_disk_index_bytes", kGauge, "", "",
     "DRAM that the NVMe tier needs to find its blocks"},
    {"owner_largest_task_entries", "aquifer_owner_largest_task_entries", kGauge, "", "",
     "The most index entries that one task of the owner looked at"},
    {"owner_longest_task_us", "aquifer_owner_longest_task_microseconds", kGauge, "", "",
     "The longest that the owner was busy with one task"},
};

// These are in metrics that have more labels, or are one of several uses.
constexpr std::string_view kElsewhere[] = {
    "match_keys", "match_hits", "fetch_hits_dram", "fetch_hits_nvme", "fetch_hits_durable",
    "fetch_misses", "fetch_late", "fetch_failed", "committed", "write_down_waiting",
    "pending_erasures", "dram_copied_bytes",
    // Of each durable tier: durable_metrics.cc.
    "durable_looks", "durable_loads", "durable_loads_failed", "durable_writes",
    "durable_writes_failed", "durable_writes_waiting", "durable_erasures_waiting"};

std::string_view TierName(TierKind tier) {
  constexpr std::string_view kNames[] = {"dram", "nvme", "peer", "durable"};
  return kNames[static_cast<size_t>(tier)];
}

// A durable tier has one drive, with the tier's name. Several tiers are durable, so that the kind
// does not tell them apart.
std::string_view NameOf(const TierStats& tier) {
  const bool named = tier.tier == TierKind::kDurable && !tier.drives.empty();
  return named ? std::string_view(tier.drives.front().directory) : TierName(tier.tier);
}

void WriteRows(const CacheStats& stats, PrometheusText* text) {
  std::map<std::string_view, uint64_t> values;
  for (const auto& [name, value] : stats.counters) values.emplace(name, value);
  std::string_view family;
  for (const Row& row : kRows) {
    if (row.metric != family) text->Family(row.metric, row.kind, row.help);
    family = row.metric;
    // Without NVMe some are not there: then there is nothing to count.
    const auto found = values.find(row.counter);
    const uint64_t value = found == values.end() ? 0 : found->second;
    if (row.label.empty()) {
      text->Sample({}, value);
    } else {
      text->Sample({{row.label, row.value}}, value);
    }
  }
}

void Add(const TenantSnapshot& from, TenantSnapshot* to) {
  to->dram_bytes += from.dram_bytes;
  to->nvme_bytes += from.nvme_bytes;
  to->lost_unwritten += from.lost_unwritten;
  const TenantCounters& a = from.counters;
  TenantCounters* const b = &to->counters;
  b->match_keys += a.match_keys;
  b->match_hits += a.match_hits;
  for (size_t tier = 0; tier < kCountedTierKinds; ++tier) {
    b->fetch_hits[tier] += a.fetch_hits[tier];
    b->fetch_hit_bytes[tier] += a.fetch_hit_bytes[tier];
  }
  b->fetch_misses += a.fetch_misses;
  b->fetch_late += a.fetch_late;
  b->fetch_failed += a.fetch_failed;
  b->committed_blocks += a.committed_blocks;
  b->committed_bytes += a.committed_bytes;
  b->reserve_refused += a.reserve_refused;
  b->saved_ms += a.saved_ms;
  b->lost_ms += a.lost_ms;
}

// Tenants with the names that their lines have. No tenant can have a name with parentheses.
std::vector<TenantSnapshot> Labelled(const std::vector<TenantSnapshot>& tenants) {
  std::vector<TenantSnapshot> labelled;
  std::optional<TenantSnapshot> unknown;
  std::optional<TenantSnapshot> others;
  for (const TenantSnapshot& tenant : tenants) {
    if (!tenant.options.name.empty() && labelled.size() < kMaxTenantLabels) {
      labelled.push_back(tenant);
      continue;
    }
    auto& shared = tenant.options.name.empty() ? unknown : others;
    if (!shared) shared.emplace();
    Add(tenant, &*shared);
  }
  if (unknown) labelled.push_back(*unknown), labelled.back().options.name = "(unknown)";
  if (others) labelled.push_back(*others), labelled.back().options.name = "(others)";
  return labelled;
}

using S = TenantSnapshot;
template <size_t kTier>
double Hits(const S& tenant) {
  return static_cast<double>(tenant.counters.fetch_hits[kTier]);
}
template <size_t kTier>
double HitBytes(const S& tenant) {
  return static_cast<double>(tenant.counters.fetch_hit_bytes[kTier]);
}
template <auto kMember>
double Own(const S& tenant) {
  return static_cast<double>(tenant.*kMember);
}
template <auto kMember>
double Counted(const S& tenant) {
  return static_cast<double>(tenant.counters.*kMember);
}
template <auto kMember>
double Seconds(const S& tenant) {
  return tenant.counters.*kMember / 1e3;
}
using T = TenantCounters;
constexpr MetricRow<S> kTenantRows[] = {
    {"aquifer_fetch_hits_total", kCounter, "tier", "dram", &Hits<0>,
     "Blocks that engines fetched, by the tier where they were"},
    {"aquifer_fetch_hits_total", kCounter, "tier", "nvme", &Hits<1>, ""},
    {"aquifer_fetch_hits_total", kCounter, "tier", "durable", &Hits<2>, ""},
    {"aquifer_fetch_hit_bytes_total", kCounter, "tier", "dram", &HitBytes<0>,
     "Bytes of those blocks"},
    {"aquifer_fetch_hit_bytes_total", kCounter, "tier", "nvme", &HitBytes<1>, ""},
    {"aquifer_fetch_hit_bytes_total", kCounter, "tier", "durable", &HitBytes<2>, ""},
    {"aquifer_fetch_misses_total", kCounter, "reason", "not_found", &Counted<&T::fetch_misses>,
     "Blocks that engines asked for and did not get, by why"},
    {"aquifer_fetch_misses_total", kCounter, "reason", "late", &Counted<&T::fetch_late>, ""},
    {"aquifer_fetch_misses_total", kCounter, "reason", "failed", &Counted<&T::fetch_failed>, ""},
    {"aquifer_match_keys_total", kCounter, "", "", &Counted<&T::match_keys>,
     "Keys that engines asked about"},
    {"aquifer_match_hits_total", kCounter, "", "", &Counted<&T::match_hits>,
     "Of those, the ones that were there"},
    {"aquifer_committed_blocks_total", kCounter, "", "", &Counted<&T::committed_blocks>,
     "Blocks that engines stored"},
    {"aquifer_committed_bytes_total", kCounter, "", "", &Counted<&T::committed_bytes>,
     "Bytes of those blocks"},
    {"aquifer_tenant_reservations_refused_total", kCounter, "", "", &Counted<&T::reserve_refused>,
     "Blocks that a tenant's engines could not store"},
    {"aquifer_lost_unwritten_total", kCounter, "", "", &Own<&S::lost_unwritten>,
     "Blocks dropped from DRAM before any other tier had them"},
    {"aquifer_tenant_bytes", kGauge, "tier", "dram", &Own<&S::dram_bytes>,
     "What a tenant has in a tier"},
    {"aquifer_tenant_bytes", kGauge, "tier", "nvme", &Own<&S::nvme_bytes>, ""},
    {"aquifer_saved_seconds_total", kCounter, "", "", &Seconds<&T::saved_ms>,
     "Prefill that fetches replaced, less the time they took"},
    {"aquifer_lost_seconds_total", kCounter, "", "", &Seconds<&T::lost_ms>,
     "What fetches took longer than the prefill that they replaced"},
};

double ReadSpeed(const TierStats& tier) { return tier.read_gbps * 1e9; }
template <auto kMember>
double Of(const TierStats& tier) {
  return static_cast<double>(tier.*kMember);
}
using R = TierStats;
constexpr MetricRow<R> kTierRows[] = {
    {"aquifer_tier_in_service", kGauge, "", "", &Of<&R::in_service>, "1: the tier can be used"},
    {"aquifer_tier_capacity_bytes", kGauge, "", "", &Of<&R::capacity_bytes>, "The hard cap"},
    {"aquifer_tier_used_bytes", kGauge, "", "", &Of<&R::used_bytes>, "Of the cap, what is taken"},
    {"aquifer_tier_blocks", kGauge, "", "", &Of<&R::blocks>, "Blocks in the tier"},
    {"aquifer_tier_read_bytes_per_second", kGauge, "", "", &ReadSpeed,
     "How fast it can be read, as was seen; assumed until something was"},
};

void WriteQueues(const NodeSnapshot& snapshot, PrometheusText* text) {
  const CacheStats& stats = snapshot.core.stats;
  text->Family("aquifer_queue_depth", kGauge, "What waits or is under way");
  text->Sample({{"queue", "requests"}}, snapshot.core.requests_under_way);
  text->Sample({{"queue", "loads"}}, snapshot.core.loads_waiting);
  text->Sample({{"queue", "write_down"}}, stats.Counter("write_down_waiting"));
  text->Sample({{"queue", "erasures"}}, stats.Counter("pending_erasures"));
  text->Sample({{"queue", "nvme"}}, snapshot.core.nvme_queued);
  text->Family("aquifer_queue_wait_seconds", kHistogram,
               "How long blocks waited before they were handed to NVMe");
  text->Histogram({{"queue", "loads"}}, snapshot.core.load_wait);
  text->Histogram({{"queue", "write_down"}}, snapshot.core.write_wait);
  text->Family("aquifer_owner_wait_seconds", kGauge,
               "How long this very scrape waited for the owner");
  text->Sample({}, snapshot.owner_wait_seconds);
}

void WriteTimes(const CoreSnapshot& core, PrometheusText* text) {
  text->Family("aquifer_request_seconds", kHistogram,
               "From a request's arrival at the owner to its last answer");
  for (size_t kind = 0; kind < kTimedRequests; ++kind) {
    text->Histogram({{"request", kTimedRequestNames[kind]}}, core.requests[kind]);
  }
  text->Family("aquifer_nvme_load_seconds", kHistogram,
               "From asking for a block on NVMe to having it in DRAM");
  text->Histogram({}, core.load);
  text->Family("aquifer_nvme_write_seconds", kHistogram, "A batch of blocks, written to NVMe");
  text->Histogram({}, core.write);
}

// Each is one pass over so much memory.
void WriteMemoryTraffic(const NodeSnapshot& snapshot, PrometheusText* text) {
  uint64_t lent = 0;
  uint64_t filled = 0;
  for (const TenantSnapshot& tenant : snapshot.tenants) {
    for (const uint64_t bytes : tenant.counters.fetch_hit_bytes) lent += bytes;
    filled += tenant.counters.committed_bytes;
  }
  const CacheStats& stats = snapshot.core.stats;
  text->Family("aquifer_memory_traffic_bytes_total", kCounter,
               "Bytes of blocks that were read or written in DRAM, by for what");
  text->Sample({{"use", "lent"}}, lent);
  text->Sample({{"use", "filled"}}, filled);
  text->Sample({{"use", "loaded"}}, snapshot.core.loaded_bytes);
  text->Sample({{"use", "written_down"}}, stats.Counter("write_down_bytes"));
  text->Sample({{"use", "copied"}}, stats.Counter("dram_copied_bytes"));
}

void WriteNode(const NodeSnapshot& snapshot, PrometheusText* text) {
  text->Family("aquifer_build_info", kGauge, "Which Aquifer this is; always 1");
  text->Sample({{"version", snapshot.version}}, uint64_t{1});
  text->Family("aquifer_start_time_seconds", kGauge, "When the node started, in Unix time");
  text->Sample({}, static_cast<uint64_t>(std::max<int64_t>(snapshot.started_unix, 0)));
  text->Family("aquifer_draining", kGauge, "1: nothing is stored any more");
  text->Sample({}, uint64_t{snapshot.core.draining});
  text->Family("aquifer_sessions", kGauge, "Sessions that engines named");
  text->Sample({}, snapshot.core.sessions);
  text->Family("aquifer_clients", kGauge, "Clients attached to the cache");
  text->Sample({}, snapshot.core.clients);
  text->Family("aquifer_connections", kGauge, "Connections of engines");
  text->Sample({{"state", "open"}}, snapshot.server.open);
  text->Sample({{"state", "lingering"}}, snapshot.server.lingering);
  text->Family("aquifer_connection_events_total", kCounter,
               "What became of connections of engines");
  text->Sample({{"event", "accepted"}}, snapshot.server.accepted);
  text->Sample({{"event", "turned_away"}}, snapshot.server.turned_away);
  text->Sample({{"event", "goodbye"}}, snapshot.server.goodbyes);
  text->Sample({{"event", "cut_off"}}, snapshot.server.cut_off);
  text->Family("aquifer_reservations_refused_total", kCounter,
               "Blocks that could not be stored, by why");
  constexpr std::array<std::string_view, kRefusals> kNames = {"",        "full",     "quota",
                                                              "warming", "draining", "too_many"};
  for (size_t i = 1; i < kRefusals; ++i) {
    text->Sample({{"reason", kNames[i]}}, snapshot.core.refused[i]);
  }
}

void WriteProcess(const ProcessUsage& process, PrometheusText* text) {
  text->Family("aquifer_thread_cpu_seconds_total", kCounter,
               "CPU time of the threads there are, by name");
  for (const auto& [name, seconds] : process.cpu_seconds) {
    text->Sample({{"thread", name}}, seconds);
  }
  text->Family("process_cpu_seconds_total", kCounter, "CPU time of the process");
  text->Sample({}, process.all_cpu_seconds);
  text->Family("process_resident_memory_bytes", kGauge, "Memory that the process has resident");
  text->Sample({}, process.resident_bytes);
  text->Family("process_open_fds", kGauge, "Descriptors that are open");
  text->Sample({}, process.open_files);
}

}  // namespace

std::string MetricsText(const NodeSnapshot& snapshot, MetricsFormat format) {
  PrometheusText text(format);
  WriteNode(snapshot, &text);
  const std::vector<TenantSnapshot> tenants = Labelled(snapshot.tenants);
  const auto name = [](const TenantSnapshot& tenant) {
    return std::string_view(tenant.options.name);
  };
  WriteMetricRows<TenantSnapshot>(kTenantRows, tenants, "tenant", name, &text);
  WriteMetricRows<TierStats>(kTierRows, snapshot.core.stats.tiers, "tier", NameOf, &text);
  WriteDurableMetrics(snapshot.core.durable, &text);
  WriteKeyMetrics(snapshot.keys, &text);
  WriteTimes(snapshot.core, &text);
  WriteQueues(snapshot, &text);
  WriteMemoryTraffic(snapshot, &text);
  WriteRows(snapshot.core.stats, &text);
  WriteProcess(snapshot.process, &text);
  return text.Take();
}

std::vector<std::string> CountersWithoutMetric(const CacheStats& stats) {
  std::vector<std::string> missing;
  for (const auto& [name, value] : stats.counters) {
    const bool row = std::any_of(std::begin(kRows), std::end(kRows),
                                 [&name = name](const Row& each) { return each.counter == name; });
    const bool elsewhere =
        std::find(std::begin(kElsewhere), std::end(kElsewhere), name) != std::end(kElsewhere);
    if (!row && !elsewhere) missing.push_back(name);
  }
  return missing;
}

}  // namespace aquifer
