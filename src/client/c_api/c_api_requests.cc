// The C ABI's calls: what is asked, and what needs no answer.
#include <cmath>
#include <utility>

#include "client/c_api/c_api.h"

using aquifer::Cache;
using aquifer::CheckChain;
using aquifer::Code;
using aquifer::Guarded;
using aquifer::ReadStruct;
using aquifer::Status;

namespace {

constexpr size_t kMaxKeys = size_t{1} << 20;
constexpr size_t kMaxSessionBytes = 256;

Status CheckFree(const aquifer_cache* cache, const aquifer_request* request) {
  AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
  AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(request, "request"));
  if (request->cache == nullptr) return Status();
  return Status(Code::kBusy, "the request is still under way; wait for it, or use another");
}

// The keys are copied: the caller's may go.
aquifer::ChainSlice TakeChain(const aquifer_chain& chain, aquifer_request* request) {
  const std::span<const aquifer::Key> keys = aquifer::KeysOf(chain.keys, chain.key_count);
  request->keys.assign(keys.begin(), keys.end());
  return {.layout = chain.layout, .group = chain.group, .part = chain.part, .keys = request->keys};
}

Status ReadSession(const char* text, std::string* session) {
  *session = aquifer::TextOf(text);
  if (session->size() <= kMaxSessionBytes) return Status();
  return Status(Code::kInvalid, "args.session has more than 256 bytes");
}

// Calls leave no answer of an earlier use in the request, in case that this one is refused unread.
// The open list comes first: once the cache has a request, nothing here may fail.
template <class R>
Status Begin(aquifer_cache* cache, aquifer_request* request, void (Cache::*call)(R*)) {
  cache->open.push_back(request);
  request->cache = cache;
  (cache->client.get()->*call)(std::get_if<R>(&request->any));
  return Status();
}

}  // namespace

Status aquifer::CheckChain(const aquifer_chain& chain) {
  AQ_RETURN_IF_ERROR(CheckArray(chain.keys, chain.key_count, "args.chain.keys"));
  return CheckRange<size_t>(chain.key_count, 0, kMaxKeys, "args.chain.key_count");
}

// ---- Recall and store ----

aquifer_code aquifer_register_layout(aquifer_cache* cache, aquifer_request* request,
                                     const aquifer_layout* layout) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    aquifer::Layout read;
    AQ_RETURN_IF_ERROR(aquifer::ReadLayout(layout, &read));
    auto* const registered = request->Use<aquifer::RegisterLayoutRequest>();
    registered->layout = std::move(read);
    registered->handle = 0;
    return Begin(cache, request, &Cache::RegisterLayout);
  });
}

aquifer_code aquifer_match(aquifer_cache* cache, aquifer_request* request,
                           const aquifer_match_args* args) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    aquifer_match_args given;
    AQ_RETURN_IF_ERROR(ReadStruct(args, "args", &given));
    AQ_RETURN_IF_ERROR(CheckChain(given.chain));
    auto* const match = request->Use<aquifer::MatchRequest>();
    match->chain = TakeChain(given.chain, request);
    match->have = given.have;
    match->matched = match->pays = 0;
    match->load_ms = match->recompute_ms = 0;
    match->runs.clear();
    return Begin(cache, request, &Cache::Match);
  });
}

aquifer_code aquifer_fetch(aquifer_cache* cache, aquifer_request* request,
                           const aquifer_fetch_args* args) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    aquifer_fetch_args given;
    AQ_RETURN_IF_ERROR(ReadStruct(args, "args", &given));
    AQ_RETURN_IF_ERROR(CheckChain(given.chain));
    auto* const fetch = request->Use<aquifer::FetchRequest>();
    fetch->chain = TakeChain(given.chain, request);
    fetch->timeout_nanos =
        given.timeout_nanos != 0 ? given.timeout_nanos : aquifer::kDefaultTimeoutNanos;
    return Begin(cache, request, &Cache::Fetch);
  });
}

aquifer_code aquifer_reserve(aquifer_cache* cache, aquifer_request* request,
                             const aquifer_reserve_args* args) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    aquifer_reserve_args given;
    AQ_RETURN_IF_ERROR(ReadStruct(args, "args", &given));
    AQ_RETURN_IF_ERROR(CheckChain(given.chain));
    auto* const reserve = request->Use<aquifer::ReserveRequest>();
    reserve->chain = TakeChain(given.chain, request);
    std::memcpy(reserve->parent.bytes.data(), given.parent.bytes, sizeof(given.parent.bytes));
    reserve->position = given.position;
    const size_t names = given.engine_hashes == nullptr ? 0 : given.chain.key_count;
    request->hashes.assign(given.engine_hashes, given.engine_hashes + names);
    reserve->engine_hashes = request->hashes;
    return Begin(cache, request, &Cache::Reserve);
  });
}

aquifer_code aquifer_commit(aquifer_cache* cache, aquifer_request* request,
                            const aquifer_commit_op* ops, size_t op_count) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    AQ_RETURN_IF_ERROR(aquifer::CheckArray(ops, op_count, "ops"));
    AQ_RETURN_IF_ERROR(aquifer::CheckRange<size_t>(op_count, 0, kMaxKeys, "op_count"));
    auto* const commit = request->Use<aquifer::CommitRequest>();
    commit->ops.clear();
    for (const aquifer_commit_op& op : std::span(ops, op_count)) {
      aquifer::CommitOp& to = commit->ops.emplace_back();
      to.reservation = op.reservation;
      to.head_begin = op.head_begin;
      to.head_end = op.head_end;
      to.sums = {.a = op.sums.a, .b = op.sums.b};
    }
    return Begin(cache, request, &Cache::Commit);
  });
}

// ---- Care ----

aquifer_code aquifer_flush(aquifer_cache* cache, aquifer_request* request, int32_t tier,
                           int64_t timeout_nanos) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    AQ_RETURN_IF_ERROR(aquifer::CheckRange<int32_t>(tier, AQUIFER_DRAM, AQUIFER_DURABLE, "tier"));
    auto* const flush = request->Use<aquifer::FlushRequest>();
    flush->tier = static_cast<aquifer::TierKind>(tier);
    flush->timeout_nanos =
        timeout_nanos != 0 ? timeout_nanos : aquifer::FlushRequest().timeout_nanos;
    return Begin(cache, request, &Cache::Flush);
  });
}

aquifer_code aquifer_pin(aquifer_cache* cache, aquifer_request* request,
                         const aquifer_pin_args* args) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    aquifer_pin_args given;
    AQ_RETURN_IF_ERROR(ReadStruct(args, "args", &given));
    AQ_RETURN_IF_ERROR(CheckChain(given.chain));
    auto* const pin = request->Use<aquifer::PinRequest>();
    pin->chain = TakeChain(given.chain, request);
    pin->seconds = given.seconds;
    pin->pinned = 0;
    return Begin(cache, request, &Cache::Pin);
  });
}

aquifer_code aquifer_prestage(aquifer_cache* cache, aquifer_request* request,
                              const aquifer_prestage_args* args) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    aquifer_prestage_args given;
    AQ_RETURN_IF_ERROR(ReadStruct(args, "args", &given));
    AQ_RETURN_IF_ERROR(CheckChain(given.chain));
    std::string session;
    AQ_RETURN_IF_ERROR(ReadSession(given.session, &session));
    auto* const prestage = request->Use<aquifer::PrestageRequest>();
    prestage->chain = TakeChain(given.chain, request);
    prestage->session = std::move(session);
    prestage->found = prestage->staged = 0;
    prestage->timeout_nanos =
        given.timeout_nanos != 0 ? given.timeout_nanos : aquifer::PrestageRequest().timeout_nanos;
    return Begin(cache, request, &Cache::Prestage);
  });
}

aquifer_code aquifer_evict(aquifer_cache* cache, aquifer_request* request,
                           const aquifer_evict_args* args) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    aquifer_evict_args given;
    AQ_RETURN_IF_ERROR(ReadStruct(args, "args", &given));
    AQ_RETURN_IF_ERROR(CheckChain(given.chain));
    std::string session;
    AQ_RETURN_IF_ERROR(ReadSession(given.session, &session));
    auto* const evict = request->Use<aquifer::EvictRequest>();
    evict->chain = TakeChain(given.chain, request);
    evict->session = std::move(session);
    evict->everything = given.everything != 0;
    evict->evicted = 0;
    return Begin(cache, request, &Cache::Evict);
  });
}

aquifer_code aquifer_drain(aquifer_cache* cache, aquifer_request* request, int64_t timeout_nanos) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    auto* const drain = request->Use<aquifer::DrainRequest>();
    drain->timeout_nanos =
        timeout_nanos != 0 ? timeout_nanos : aquifer::DrainRequest().timeout_nanos;
    drain->left = 0;
    return Begin(cache, request, &Cache::Drain);
  });
}

aquifer_code aquifer_stats(aquifer_cache* cache, aquifer_request* request) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckFree(cache, request));
    request->Use<aquifer::StatsRequest>()->stats = {};
    return Begin(cache, request, &Cache::Stats);
  });
}

// ---- Without an answer ----

aquifer_code aquifer_release(aquifer_cache* cache, const aquifer_release_op* leases,
                             size_t lease_count) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
    AQ_RETURN_IF_ERROR(aquifer::CheckArray(leases, lease_count, "leases"));
    std::vector<aquifer::ReleaseOp> ops;
    ops.reserve(lease_count);
    for (const aquifer_release_op& op : std::span(leases, lease_count)) {
      ops.push_back({.lease = op.lease, .corrupt = op.corrupt != 0});
    }
    cache->client->Release(ops);
    return Status();
  });
}

aquifer_code aquifer_abort(aquifer_cache* cache, const uint64_t* reservations,
                           size_t reservation_count) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
    AQ_RETURN_IF_ERROR(aquifer::CheckArray(reservations, reservation_count, "reservations"));
    cache->client->Abort(std::span(reservations, reservation_count));
    return Status();
  });
}

aquifer_code aquifer_hint(aquifer_cache* cache, const aquifer_hint_args* args) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
    aquifer_hint_args given;
    AQ_RETURN_IF_ERROR(
        ReadStruct(args, "args", &given, offsetof(aquifer_hint_args, return_seconds)));
    AQ_RETURN_IF_ERROR(CheckChain(given.chain));
    AQ_RETURN_IF_ERROR(aquifer::CheckRange<int32_t>(given.state, AQUIFER_SESSION_UNKNOWN,
                                                    AQUIFER_SESSION_FINISHED, "args.state"));
    AQ_RETURN_IF_ERROR(aquifer::CheckRange<int32_t>(given.priority, -8, 7, "args.priority"));
    AQ_RETURN_IF_ERROR(aquifer::CheckRange<int32_t>(given.durability, AQUIFER_DURABILITY_TENANTS,
                                                    AQUIFER_DURABILITY_DURABLE, "args.durability"));
    AQ_RETURN_IF_ERROR(
        aquifer::CheckRange<int64_t>(given.return_seconds, 0, INT64_MAX, "args.return_seconds"));
    aquifer::SessionForecast forecast;
    AQ_RETURN_IF_ERROR(ReadSession(given.session, &forecast.session));
    forecast.chain = {.layout = given.chain.layout,
                      .group = given.chain.group,
                      .part = given.chain.part,
                      .keys = aquifer::KeysOf(given.chain.keys, given.chain.key_count)};
    forecast.state = static_cast<aquifer::SessionState>(given.state);
    forecast.priority = static_cast<int8_t>(given.priority);
    forecast.ttl_seconds = given.ttl_seconds;
    forecast.durability = static_cast<aquifer::Durability>(given.durability);
    forecast.return_seconds = given.return_seconds;
    cache->client->Hint(forecast);
    return Status();
  });
}

aquifer_code aquifer_report_prefill(aquifer_cache* cache, uint32_t layout, uint32_t tokens,
                                    uint32_t context_tokens, double milliseconds) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
    if (!std::isfinite(milliseconds) || milliseconds < 0) {
      return Status(Code::kInvalid, "milliseconds is not a time");
    }
    cache->client->ReportPrefill({.layout = layout,
                                  .tokens = tokens,
                                  .context_tokens = context_tokens,
                                  .milliseconds = milliseconds});
    return Status();
  });
}
