#include "node/api/http_routes.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "cache/running_core.h"
#include "node/api/http_actions.h"
#include "node/api/http_stores.h"
#include "node/api/node_metrics.h"
#include "node/config/node_stores.h"
#include "tenant/keys/key_service.h"

namespace aquifer {
namespace {

using nlohmann::json;

constexpr size_t kPage = 100;

HttpResponse Json(const json& value) {
  HttpResponse response;
  response.body = value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  return response;
}

// On the owner: what it says there and then, a task for each slice of tenants.
NodeSnapshot Take(HttpContext* context) {
  NodeSnapshot snapshot;
  RunningCore* const running = context->node->running();
  const int64_t asked = SystemClock()->NowNanos();
  RunAndWait(running->owner(), [&](const std::function<void()>& done) {
    snapshot.owner_wait_seconds = static_cast<double>(SystemClock()->NowNanos() - asked) / 1e9;
    snapshot.core = running->core()->Snapshot();
    snapshot.server = context->node->server()->stats();
    done();
  });
  while (snapshot.tenants.size() < snapshot.core.tenants) {
    std::vector<TenantSnapshot> some;
    RunAndWait(running->owner(), [&](const std::function<void()>& done) {
      some = running->core()->Tenants(snapshot.tenants.size(), Core::kSnapshotSlice);
      done();
    });
    if (some.empty()) break;
    std::move(some.begin(), some.end(), std::back_inserter(snapshot.tenants));
  }
  if (context->stores != nullptr) context->stores->AddCounters(&snapshot.core.durable);
  if (context->keys != nullptr) snapshot.keys = context->keys->figures();
  snapshot.started_unix = context->started_unix;
  snapshot.version = context->version;
  return snapshot;
}

HttpResponse Metrics(const HttpRequest& request, HttpContext* context) {
  NodeSnapshot snapshot = Take(context);
  snapshot.process = OwnUsage();
  const MetricsFormat format = FormatFor(request.accept);
  HttpResponse response;
  response.content_type = ContentTypeOf(format);
  response.body = MetricsText(snapshot, format);
  return response;
}

std::string_view NameOf(TierKind tier) {
  constexpr std::string_view kNames[] = {"dram", "nvme", "peer", "durable"};
  return kNames[static_cast<size_t>(tier)];
}

json TierJson(const TierStats& tier) {
  json drives = json::array();
  for (const DriveStats& drive : tier.drives) {
    drives.push_back({{"directory", drive.directory},
                      {"in_service", drive.in_service},
                      {"writable", drive.writable},
                      {"why", drive.why}});
  }
  return {{"tier", NameOf(tier.tier)},
          {"in_service", tier.in_service},
          {"capacity_bytes", tier.capacity_bytes},
          {"used_bytes", tier.used_bytes},
          {"blocks", tier.blocks},
          {"read_bytes_per_second", tier.read_gbps * 1e9},
          {"drives", drives}};
}

json TiersJson(const CacheStats& stats) {
  json tiers = json::array();
  for (const TierStats& tier : stats.tiers) tiers.push_back(TierJson(tier));
  return tiers;
}

json TimesJson(const TimeHistogram& times) {
  return {{"count", times.count()},
          {"total_ms", times.sum_seconds() * 1e3},
          {"p50_ms", times.QuantileSeconds(0.5) * 1e3},
          {"p99_ms", times.QuantileSeconds(0.99) * 1e3}};
}

json RequestsJson(const CoreSnapshot& core) {
  json requests = json::object();
  for (size_t kind = 0; kind < kTimedRequests; ++kind) {
    requests[std::string(kTimedRequestNames[kind])] = TimesJson(core.requests[kind]);
  }
  return requests;
}

json CountersJson(const CacheStats& stats) {
  json counters = json::object();
  for (const auto& [name, value] : stats.counters) counters[name] = value;
  return counters;
}

json SavingsJson(const std::vector<TenantSnapshot>& tenants) {
  double saved = 0;
  double lost = 0;
  for (const TenantSnapshot& tenant : tenants) {
    saved += tenant.counters.saved_ms;
    lost += tenant.counters.lost_ms;
  }
  return {{"saved_ms", saved}, {"lost_ms", lost}};
}

HttpResponse StatusCall(const HttpRequest&, HttpContext* context) {
  const NodeSnapshot snapshot = Take(context);
  const CoreSnapshot& core = snapshot.core;
  const bool draining = core.draining || context->stopping;
  return Json({{"version", snapshot.version},
               {"pid", ::getpid()},
               {"started_unix", snapshot.started_unix},
               {"uptime_ms", (SystemClock()->NowNanos() - context->started_nanos) / 1'000'000},
               {"ready", !draining},
               {"draining", draining},
               {"socket", context->socket},
               {"http", context->address ? context->address->Text() : ""},
               {"connections",
                {{"open", snapshot.server.open},
                 {"lingering", snapshot.server.lingering},
                 {"accepted", snapshot.server.accepted},
                 {"goodbyes", snapshot.server.goodbyes},
                 {"cut_off", snapshot.server.cut_off}}},
               {"sessions", core.sessions},
               {"tiers", TiersJson(core.stats)},
               {"requests", RequestsJson(core)},
               {"queues",
                {{"requests", core.requests_under_way},
                 {"loads", core.loads_waiting},
                 {"nvme", core.nvme_queued}}},
               {"savings", SavingsJson(snapshot.tenants)},
               {"key_trouble", snapshot.keys ? snapshot.keys->trouble : ""},
               {"counters", CountersJson(core.stats)}});
}

json DurableJson(const DurableStats& tier, const HttpContext& context) {
  const BlobStore* const store =
      context.stores == nullptr ? nullptr : context.stores->Find(tier.name);
  json counters = json::object();
  for (const auto& [name, value] : tier.counters) counters[name] = value;
  return {{"name", tier.name},
          {"place", store == nullptr ? "" : store->Describe()},
          {"in_service", tier.in_service},
          {"why", tier.why},
          {"capacity_bytes", tier.usage.capacity_bytes},
          {"used_bytes", tier.usage.used_bytes},
          {"latency_ms", tier.latency_ms},
          {"read_bytes_per_second", tier.bytes_per_second},
          {"looks", tier.looks},
          {"looks_found", tier.looks_found},
          {"loaded_blocks", tier.loaded_blocks},
          {"loaded_bytes", tier.loaded_bytes},
          {"failed_loads", tier.failed_loads},
          {"written_blocks", tier.written_blocks},
          {"written_bytes", tier.written_bytes},
          {"failed_writes", tier.failed_writes},
          {"waiting_loads", tier.waiting_loads},
          {"waiting_writes", tier.waiting_writes},
          {"waiting_erasures", tier.waiting_erasures},
          {"unswept_tenants", tier.unswept_tenants},
          {"oldest_unprotected_seconds", tier.oldest_unprotected_seconds},
          {"counters", counters}};
}

HttpResponse TiersCall(const HttpRequest&, HttpContext* context) {
  const CoreSnapshot core = Take(context).core;
  json durable = json::array();
  for (const DurableStats& tier : core.durable) durable.push_back(DurableJson(tier, *context));
  return Json({{"tiers", TiersJson(core.stats)}, {"durable", durable}});
}

json TenantJson(const TenantSnapshot& tenant) {
  const TenantOptions& options = tenant.options;
  const TenantCounters& counters = tenant.counters;
  const auto ceiling = [](uint64_t bytes) { return bytes == UINT64_MAX ? json() : json(bytes); };
  return {{"name", options.name},
          {"dram_bytes", tenant.dram_bytes},
          {"nvme_bytes", tenant.nvme_bytes},
          {"dram_floor_bytes", options.dram_floor_bytes},
          {"dram_ceiling_bytes", ceiling(options.dram_ceiling_bytes)},
          {"nvme_floor_bytes", options.nvme_floor_bytes},
          {"nvme_ceiling_bytes", ceiling(options.nvme_ceiling_bytes)},
          {"ttl_seconds", options.ttl_seconds},
          {"priority", options.priority},
          {"hits_dram", counters.fetch_hits[0]},
          {"hits_nvme", counters.fetch_hits[1]},
          {"hits_durable", counters.fetch_hits[2]},
          {"hit_bytes_dram", counters.fetch_hit_bytes[0]},
          {"hit_bytes_nvme", counters.fetch_hit_bytes[1]},
          {"hit_bytes_durable", counters.fetch_hit_bytes[2]},
          {"misses", counters.fetch_misses},
          {"late", counters.fetch_late},
          {"failed", counters.fetch_failed},
          {"committed_blocks", counters.committed_blocks},
          {"committed_bytes", counters.committed_bytes},
          {"refused", counters.reserve_refused},
          {"lost_unwritten", tenant.lost_unwritten},
          {"saved_ms", counters.saved_ms},
          {"lost_ms", counters.lost_ms}};
}

// A parameter that nobody knows is a mistake of the caller's.
Status CheckQuery(const HttpRequest& request, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : request.query) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return Status(Code::kInvalid,
                    fmt::format("there is no parameter '{}'; /openapi.json lists all", name));
    }
  }
  return Status();
}

Result<size_t> PageOf(const HttpRequest& request) {
  const auto found = request.query.find("limit");
  if (found == request.query.end()) return kPage;
  const std::string& text = found->second;
  size_t limit = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (error == std::errc() && end == text.data() + text.size() && limit > 0 &&
      limit <= kMaxHttpPage) {
    return limit;
  }
  return Status(Code::kInvalid,
                fmt::format("'limit' is not a whole number from 1 to {}", kMaxHttpPage));
}

std::string Parameter(const HttpRequest& request, const std::string& name) {
  const auto found = request.query.find(name);
  return found == request.query.end() ? "" : found->second;
}

HttpResponse Invalid(const Status& status) { return HttpError(400, "invalid", status.message()); }

// In the order of their names; those who are configured and have not come yet are shown, too.
HttpResponse TenantsCall(const HttpRequest& request, HttpContext* context) {
  if (const Status known = CheckQuery(request, {"after", "limit"}); !known.ok()) {
    return Invalid(known);
  }
  const Result<size_t> limit = PageOf(request);
  if (!limit.ok()) return Invalid(limit.status());
  std::map<std::string, TenantSnapshot> by_name;
  for (TenantOptions& tenant : context->tenant_options()) {
    TenantSnapshot& configured = by_name[tenant.name];
    configured.options = std::move(tenant);
  }
  for (TenantSnapshot& tenant : Take(context).tenants) {
    if (!tenant.options.name.empty()) by_name[tenant.options.name] = std::move(tenant);
  }
  json tenants = json::array();
  std::string next;
  for (auto it = by_name.upper_bound(Parameter(request, "after")); it != by_name.end(); ++it) {
    if (tenants.size() == *limit) {
      next = tenants.back()["name"];
      break;
    }
    tenants.push_back(TenantJson(it->second));
  }
  return Json({{"tenants", tenants}, {"next", next}});
}

json SessionJson(const SessionSnapshot& session) {
  return {{"session", session.name}, {"head", session.head.ToHex()}, {"group", session.group},
          {"part", session.part},    {"blocks", session.blocks},     {"tokens", session.tokens},
          {"bytes", session.bytes}};
}

HttpResponse SessionsCall(const HttpRequest& request, HttpContext* context) {
  if (const Status known = CheckQuery(request, {"tenant", "after", "limit"}); !known.ok()) {
    return Invalid(known);
  }
  const Result<size_t> limit = PageOf(request);
  if (!limit.ok()) return Invalid(limit.status());
  const std::vector<std::string> tenants = context->tenants();
  std::string tenant = Parameter(request, "tenant");
  if (tenant.empty() && tenants.size() > 1) {
    return HttpError(400, "invalid", "'tenant' is missing, and this node has several; name one");
  }
  if (tenant.empty()) tenant = tenants.front();
  if (std::find(tenants.begin(), tenants.end(), tenant) == tenants.end()) {
    return HttpError(
        404, "not_found",
        fmt::format("there is no tenant '{}'; `aquifer ctl tenants` lists all", tenant));
  }
  std::vector<SessionSnapshot> found;
  std::string after = Parameter(request, "after");
  RunningCore* const running = context->node->running();
  while (found.size() <= *limit) {  // One more tells whether there is a next page.
    std::vector<SessionSnapshot> some;
    RunAndWait(running->owner(), [&](const std::function<void()>& done) {
      some = running->core()->Sessions(tenant, after,
                                       std::min(Core::kSnapshotSlice, *limit + 1 - found.size()));
      done();
    });
    if (some.empty()) break;
    after = some.back().name;
    std::move(some.begin(), some.end(), std::back_inserter(found));
  }
  const bool more = found.size() > *limit;
  if (more) found.pop_back();
  json sessions = json::array();
  for (const SessionSnapshot& session : found) sessions.push_back(SessionJson(session));
  return Json({{"tenant", tenant},
               {"sessions", sessions},
               {"next", more ? found.back().name : std::string()}});
}

HttpResponse OpenApiCall(const HttpRequest&, HttpContext*) {
  HttpResponse response;
  response.body = OpenApiText();
  return response;
}

constexpr HttpRoute kRoutes[] = {
    {"GET", "/metrics", HttpNeed::kReading, HttpPlace::kReading, &Metrics},
    {"GET", "/openapi.json", HttpNeed::kReading, HttpPlace::kReading, &OpenApiCall},
    {"GET", "/v1/status", HttpNeed::kReading, HttpPlace::kReading, &StatusCall},
    {"GET", "/v1/tiers", HttpNeed::kReading, HttpPlace::kReading, &TiersCall},
    {"GET", "/v1/tenants", HttpNeed::kReading, HttpPlace::kReading, &TenantsCall},
    // Who talks about what is not for every user of the host.
    {"GET", "/v1/sessions", HttpNeed::kAdministration, HttpPlace::kReading, &SessionsCall},
    {"POST", "/v1/pin", HttpNeed::kAdministration, HttpPlace::kActing, &PinCall},
    {"POST", "/v1/unpin", HttpNeed::kAdministration, HttpPlace::kActing, &UnpinCall},
    {"POST", "/v1/prestage", HttpNeed::kAdministration, HttpPlace::kActing, &PrestageCall},
    {"POST", "/v1/evict", HttpNeed::kAdministration, HttpPlace::kActing, &EvictCall},
    {"GET", "/v1/record", HttpNeed::kAdministration, HttpPlace::kReading, &RecordCall},
    {"POST", "/v1/record/start", HttpNeed::kAdministration, HttpPlace::kActing, &RecordStartCall},
    {"POST", "/v1/record/stop", HttpNeed::kAdministration, HttpPlace::kActing, &RecordStopCall},
    {"POST", "/v1/tiers/test", HttpNeed::kAdministration, HttpPlace::kActing, &TierTestCall},
    {"POST", "/v1/tenants/delete", HttpNeed::kAdministration, HttpPlace::kActing,
     &TenantDeleteCall},
    {"GET", "/v1/keys", HttpNeed::kAdministration, HttpPlace::kReading, &KeysCall},
    {"POST", "/v1/keys/rewrap", HttpNeed::kAdministration, HttpPlace::kActing, &KeysRewrapCall},
    {"POST", "/v1/drain", HttpNeed::kAdministration, HttpPlace::kActing, &DrainCall},
    {"POST", "/v1/undrain", HttpNeed::kAdministration, HttpPlace::kReading, &UndrainCall},
};

}  // namespace

std::span<const HttpRoute> HttpRoutes() { return kRoutes; }

}  // namespace aquifer
