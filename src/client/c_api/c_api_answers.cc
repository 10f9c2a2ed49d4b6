// The C ABI's answers, copied out of requests.
#include "client/c_api/c_api.h"

using aquifer::Code;
using aquifer::Guarded;
using aquifer::Status;

namespace {

// The request as one of this kind; null: it is of another.
template <class R>
Status Answered(const aquifer_request* request, const R** answered) {
  AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(request, "request"));
  *answered = std::get_if<R>(&request->any);
  if (*answered != nullptr) return Status();
  return Status(Code::kInvalid, "the request was for something else");
}

// The same for what is there only when all of it is.
template <class R>
Status Done(const aquifer_request* request, const R** answered) {
  AQ_RETURN_IF_ERROR(Answered(request, answered));
  if ((*answered)->done()) return Status();
  return Status(Code::kInvalid, "the request is not done yet; wait for it");
}

Status CheckItems(size_t first, size_t count, size_t there) {
  if (first <= there && count <= there - first) return Status();
  return Status(Code::kInvalid, "there are " + std::to_string(there) + " answers, and " +
                                    std::to_string(first) + " + " + std::to_string(count) +
                                    " were asked for");
}

// Copies answers [first, first + count) out, one by one.
template <class From, class To, class Copy>
Status CopyOut(const std::vector<From>& answers, size_t there, size_t first, To* to, size_t count,
               Copy copy) {
  AQ_RETURN_IF_ERROR(aquifer::CheckArray(to, count, "the array to fill"));
  AQ_RETURN_IF_ERROR(CheckItems(first, count, there));
  for (size_t i = 0; i < count; ++i) to[i] = copy(answers[first + i]);
  return Status();
}

aquifer_run RunOf(const aquifer::MatchRun& run) {
  return {.first = run.first,
          .count = run.count,
          .tier = static_cast<int32_t>(run.tier),
          .state = static_cast<int32_t>(run.state),
          .estimated_ms = run.estimated_ms};
}

aquifer_fetched FetchedOf(const aquifer::FetchOp& op) {
  return {.code = static_cast<aquifer_code>(op.status.code()),
          .tier = static_cast<int32_t>(op.tier),
          .data = reinterpret_cast<const uint8_t*>(op.bytes.data()),
          .data_bytes = op.bytes.size(),
          .lease = op.lease,
          .checksum = {.low = op.checksum.low, .high = op.checksum.high}};
}

aquifer_reserved ReservedOf(const aquifer::ReserveOp& op) {
  return {.outcome = static_cast<int32_t>(op.outcome),
          .refusal = static_cast<int32_t>(op.refusal),
          .wait_ms = op.wait_ms,
          .reservation = op.reservation,
          .slot = reinterpret_cast<uint8_t*>(op.slot.data()),
          .slot_bytes = op.slot.size()};
}

aquifer_committed CommittedOf(const aquifer::CommitOp& op) {
  return {.code = static_cast<aquifer_code>(op.status.code()), .published = op.published ? 1 : 0};
}

aquifer_tier_stats TierOf(const aquifer::TierStats& tier) {
  return {.tier = static_cast<int32_t>(tier.tier),
          .in_service = tier.in_service ? 1 : 0,
          .capacity_bytes = tier.capacity_bytes,
          .used_bytes = tier.used_bytes,
          .blocks = tier.blocks,
          .tenant_bytes = tier.tenant_bytes,
          .read_gbps = tier.read_gbps,
          .drive_count = tier.drives.size()};
}

aquifer_drive_stats DriveOf(const aquifer::DriveStats& drive) {
  return {.directory = drive.directory.c_str(),
          .why = drive.why.c_str(),
          .in_service = drive.in_service ? 1 : 0,
          .writable = drive.writable ? 1 : 0};
}

aquifer_counter CounterOf(const std::pair<std::string, uint64_t>& counter) {
  return {.name = counter.first.c_str(), .value = counter.second};
}

}  // namespace

// ---- Of every request ----

int32_t aquifer_request_done(const aquifer_request* request) {
  return request == nullptr || request->cache == nullptr ? 1 : 0;
}

size_t aquifer_request_completed(const aquifer_request* request) {
  const aquifer::Request* const base = request == nullptr ? nullptr : request->base();
  return base == nullptr ? 0 : base->completed();
}

aquifer_code aquifer_request_status(const aquifer_request* request) {
  if (request == nullptr) return aquifer::Fail(Code::kInvalid, "request is null");
  const aquifer::Request* const base = request->base();
  if (base == nullptr || base->status.ok()) return AQUIFER_OK;
  return aquifer::Fail(base->status.code(), base->status.message().c_str());
}

const char* aquifer_request_message(const aquifer_request* request) {
  const aquifer::Request* const base = request == nullptr ? nullptr : request->base();
  return base == nullptr ? "" : base->status.message().c_str();
}

const char* aquifer_request_block_message(const aquifer_request* request, size_t block) {
  if (block >= aquifer_request_completed(request)) return "";
  if (const auto* const fetch = std::get_if<aquifer::FetchRequest>(&request->any)) {
    return fetch->ops[block].status.message().c_str();
  }
  if (const auto* const commit = std::get_if<aquifer::CommitRequest>(&request->any)) {
    return commit->ops[block].status.message().c_str();
  }
  return "";
}

// ---- Of each kind ----

aquifer_code aquifer_request_layout(const aquifer_request* request, uint32_t* layout) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(layout, "layout"));
    const aquifer::RegisterLayoutRequest* registered = nullptr;
    AQ_RETURN_IF_ERROR(Done(request, &registered));
    *layout = registered->handle;
    return Status();
  });
}

aquifer_code aquifer_request_matched(const aquifer_request* request, aquifer_matched* matched) {
  return Guarded([&]() -> Status {
    const aquifer::MatchRequest* match = nullptr;
    AQ_RETURN_IF_ERROR(Done(request, &match));
    return aquifer::WriteStruct({.size = 0,
                                 .reserved = 0,
                                 .matched = match->matched,
                                 .run_count = match->runs.size(),
                                 .pays = match->pays,
                                 .load_ms = match->load_ms,
                                 .recompute_ms = match->recompute_ms},
                                "matched", matched);
  });
}

aquifer_code aquifer_request_runs(const aquifer_request* request, size_t first, aquifer_run* runs,
                                  size_t count) {
  return Guarded([&]() -> Status {
    const aquifer::MatchRequest* match = nullptr;
    AQ_RETURN_IF_ERROR(Done(request, &match));
    return CopyOut(match->runs, match->runs.size(), first, runs, count, RunOf);
  });
}

aquifer_code aquifer_request_fetched(const aquifer_request* request, size_t first,
                                     aquifer_fetched* blocks, size_t count) {
  return Guarded([&]() -> Status {
    const aquifer::FetchRequest* fetch = nullptr;
    AQ_RETURN_IF_ERROR(Answered(request, &fetch));
    return CopyOut(fetch->ops, fetch->completed(), first, blocks, count, FetchedOf);
  });
}

aquifer_code aquifer_request_reserved(const aquifer_request* request, size_t first,
                                      aquifer_reserved* blocks, size_t count) {
  return Guarded([&]() -> Status {
    const aquifer::ReserveRequest* reserve = nullptr;
    AQ_RETURN_IF_ERROR(Answered(request, &reserve));
    return CopyOut(reserve->ops, reserve->completed(), first, blocks, count, ReservedOf);
  });
}

aquifer_code aquifer_request_committed(const aquifer_request* request, size_t first,
                                       aquifer_committed* blocks, size_t count) {
  return Guarded([&]() -> Status {
    const aquifer::CommitRequest* commit = nullptr;
    AQ_RETURN_IF_ERROR(Answered(request, &commit));
    return CopyOut(commit->ops, commit->completed(), first, blocks, count, CommittedOf);
  });
}

aquifer_code aquifer_request_counts(const aquifer_request* request, aquifer_counts* counts) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(request, "request"));
    if (request->cache != nullptr) {
      return Status(Code::kInvalid, "the request is not done yet; wait for it");
    }
    aquifer_counts found{};
    if (const auto* const pin = std::get_if<aquifer::PinRequest>(&request->any)) {
      found.pinned = pin->pinned;
    } else if (const auto* const stage = std::get_if<aquifer::PrestageRequest>(&request->any)) {
      found.found = stage->found;
      found.staged = stage->staged;
    } else if (const auto* const evict = std::get_if<aquifer::EvictRequest>(&request->any)) {
      found.evicted = evict->evicted;
    } else if (const auto* const drain = std::get_if<aquifer::DrainRequest>(&request->any)) {
      found.left = drain->left;
    } else {
      return Status(Code::kInvalid, "the request was for something else");
    }
    return aquifer::WriteStruct(found, "counts", counts);
  });
}

// ---- Stats ----

aquifer_code aquifer_request_stats(const aquifer_request* request, size_t* tier_count,
                                   size_t* counter_count) {
  return Guarded([&]() -> Status {
    const aquifer::StatsRequest* stats = nullptr;
    AQ_RETURN_IF_ERROR(Done(request, &stats));
    if (tier_count != nullptr) *tier_count = stats->stats.tiers.size();
    if (counter_count != nullptr) *counter_count = stats->stats.counters.size();
    return Status();
  });
}

aquifer_code aquifer_request_tiers(const aquifer_request* request, size_t first,
                                   aquifer_tier_stats* tiers, size_t count) {
  return Guarded([&]() -> Status {
    const aquifer::StatsRequest* stats = nullptr;
    AQ_RETURN_IF_ERROR(Done(request, &stats));
    return CopyOut(stats->stats.tiers, stats->stats.tiers.size(), first, tiers, count, TierOf);
  });
}

aquifer_code aquifer_request_drives(const aquifer_request* request, size_t tier, size_t first,
                                    aquifer_drive_stats* drives, size_t count) {
  return Guarded([&]() -> Status {
    const aquifer::StatsRequest* stats = nullptr;
    AQ_RETURN_IF_ERROR(Done(request, &stats));
    AQ_RETURN_IF_ERROR(CheckItems(tier, 1, stats->stats.tiers.size()));
    const std::vector<aquifer::DriveStats>& all = stats->stats.tiers[tier].drives;
    return CopyOut(all, all.size(), first, drives, count, DriveOf);
  });
}

aquifer_code aquifer_request_counters(const aquifer_request* request, size_t first,
                                      aquifer_counter* counters, size_t count) {
  return Guarded([&]() -> Status {
    const aquifer::StatsRequest* stats = nullptr;
    AQ_RETURN_IF_ERROR(Done(request, &stats));
    const auto& all = stats->stats.counters;
    return CopyOut(all, all.size(), first, counters, count, CounterOf);
  });
}
