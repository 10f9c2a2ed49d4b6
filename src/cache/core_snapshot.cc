#include "cache/core_snapshot.h"

#include <algorithm>

#include "cache/core.h"
#include "cache/jobs.h"

namespace aquifer {
namespace {

TenantCounters Summarise(const CoreCounters& counters) {
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
          .saved_ms = counters.saved_ms,
          .lost_ms = counters.lost_ms};
}

}  // namespace

static_assert(kTimedRequests + 1 == kJobKinds);  // Nobody waits for a hint.

CoreSnapshot Core::Snapshot() const {
  CoreSnapshot snapshot;
  snapshot.stats = StatsOfAll(UINT16_MAX);
  std::copy_n(request_times_.begin(), kTimedRequests, snapshot.requests.begin());
  snapshot.refused = counters_.refused_for;
  snapshot.load_wait = loader_->stats().wait;
  snapshot.load = loader_->stats().load;
  snapshot.write_wait = write_down_->stats().wait;
  snapshot.write = write_down_->stats().write;
  snapshot.requests_under_way = running_jobs_;
  snapshot.loads_waiting = loader_->pending();
  if (nvme_ready_) snapshot.nvme_queued = nvme_->Usage().queued_ops;
  snapshot.loaded_bytes = loader_->stats().loaded_bytes;
  snapshot.sessions = session_count_;
  snapshot.clients = static_cast<uint64_t>(
      std::count_if(clients_.begin(), clients_.end(),
                    [](const Client& client) { return client.attached && !client.administrator; }));
  snapshot.tenants = catalog_.tenants();
  snapshot.durable = DurableTierStats();
  snapshot.draining = draining_;
  return snapshot;
}

std::vector<TenantSnapshot> Core::Tenants(size_t first, size_t max) const {
  std::vector<TenantSnapshot> tenants;
  const size_t end = std::min(first + max, catalog_.tenants());
  for (size_t i = first; i < end; ++i) {
    const auto number = static_cast<uint16_t>(i);
    tenants.push_back(
        {.options = catalog_.tenant(number).options,
         .counters = i < counters_of_.size() ? Summarise(counters_of_[i]) : TenantCounters{},
         .dram_bytes = residency_->dram_bytes(number),
         .nvme_bytes = residency_->nvme_bytes(number),
         .lost_unwritten = residency_->lost_unwritten(number),
         .lost_undurable = residency_->lost_undurable(number),
         .orphaned = residency_->blocks_of(number).left[static_cast<size_t>(Leave::kOrphaned)]});
  }
  return tenants;
}

std::vector<SessionSnapshot> Core::Sessions(std::string_view tenant, const std::string& after,
                                            size_t max) const {
  std::vector<SessionSnapshot> found;
  const std::optional<uint16_t> number = catalog_.FindTenant(tenant);
  const auto own = number ? sessions_.find(*number) : sessions_.end();
  if (own == sessions_.end()) return found;
  const auto& by_name = own->second.by_name;
  const Index& index = residency_->index();
  for (auto next = by_name.upper_bound(after); next != by_name.end() && found.size() < max;
       ++next) {
    const BlockName& head = next->second.head;
    SessionSnapshot session{
        .name = next->first, .head = head.key, .group = head.group, .part = head.part};
    const BlockRef ref = index.Find(head);
    if (ref != kNoBlock && index.at(ref).state == BlockState::kResident) {
      session.blocks = index.at(ref).position + 1;
      session.tokens =
          uint64_t{session.blocks} * catalog_.layout(index.at(ref).layout).tokens_per_block;
      session.bytes = session.blocks * residency_->RawBytes(ref);
    }
    found.push_back(std::move(session));
  }
  return found;
}

bool Core::SessionKeys(std::string_view tenant, const std::string& session, size_t max,
                       std::optional<BlockName>* next, std::vector<Key>* keys) const {
  if (!*next) {
    const std::optional<uint16_t> number = catalog_.FindTenant(tenant);
    const Session* const known = number ? FindSession(*number, session) : nullptr;
    if (known == nullptr) return false;
    *next = known->head;
  }
  return WalkUp(max, &**next, [keys](BlockRef ref, const Key& key, uint32_t) {
    if (ref != kNoBlock) keys->push_back(key);
  });
}

}  // namespace aquifer
