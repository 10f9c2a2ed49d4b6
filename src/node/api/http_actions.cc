#include "node/api/http_actions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cache/running_core.h"
#include "node/api/json_body.h"
#include "node/local/insider.h"
#include "tenant/keys/key_service.h"

namespace aquifer {
namespace {

constexpr size_t kMaxTenantBytes = 64;
constexpr size_t kMaxSessionBytes = 256;
constexpr size_t kMaxPathBytes = 4096;
constexpr size_t kMaxSessionKeys = size_t{1} << 20;
constexpr size_t kWalkSlice = 512;
constexpr int64_t kNanosPerMs = 1'000'000;
constexpr int64_t kEvictTenantNanos = 20'000 * kNanosPerMs;
constexpr std::string_view kEnding = "the node is ending; nothing new is begun";

// Which blocks a call speaks of.
struct Blocks {
  std::string tenant;
  std::string session;  // Or:
  std::vector<Key> keys;
  uint16_t group = 0;
  uint16_t part = 0;
  bool everything = false;

  ChainSlice chain() const { return {.layout = 0, .group = group, .part = part, .keys = keys}; }
};

struct HttpCode {
  unsigned status;
  std::string_view name;
};

HttpCode CodeOf(Code code) {
  switch (code) {
    case Code::kOk:
      return {200, "ok"};
    case Code::kNotFound:
      return {404, "not_found"};
    case Code::kInvalid:
      return {400, "invalid"};
    case Code::kBusy:
      return {503, "busy"};
    case Code::kUnavailable:
      return {503, "unavailable"};
    case Code::kNoSpace:
      return {507, "no_space"};
    case Code::kLate:
      return {504, "late"};
    case Code::kCorrupt:
      return {500, "corrupt"};
  }
  return {500, "unknown"};
}

Result<std::string> ChooseTenant(const std::optional<std::string>& given,
                                 const HttpContext& context) {
  const std::vector<std::string> tenants = context.tenants();
  if (!given && tenants.size() == 1) return tenants.front();
  if (!given) {
    return Status(Code::kInvalid, "'tenant' is missing, and this node has several; name one");
  }
  if (std::find(tenants.begin(), tenants.end(), *given) != tenants.end()) return *given;
  return Status(Code::kNotFound,
                fmt::format("there is no tenant '{}'; `aquifer ctl tenants` lists all", *given));
}

Result<Blocks> ReadBlocks(JsonBody* body, const HttpContext& context, bool may_be_all) {
  Blocks blocks;
  const std::optional<std::string> tenant = body->Text("tenant", kMaxTenantBytes);
  blocks.session = body->Text("session", kMaxSessionBytes).value_or("");
  const std::vector<std::string> keys = body->Texts("keys");
  blocks.group = static_cast<uint16_t>(body->Whole("group", 0, UINT16_MAX).value_or(0));
  blocks.part = static_cast<uint16_t>(body->Whole("part", 0, UINT16_MAX).value_or(0));
  if (may_be_all) blocks.everything = body->Flag("everything");
  AQ_RETURN_IF_ERROR(body->Finish());
  const int ways =
      (blocks.session.empty() ? 0 : 1) + (keys.empty() ? 0 : 1) + (blocks.everything ? 1 : 0);
  if (ways != 1) {
    return Status(Code::kInvalid, may_be_all ? "give one of 'session', 'keys' and 'everything'"
                                             : "give either 'session' or 'keys'");
  }
  for (const std::string& text : keys) {
    const Result<Key> key = KeyFromHex(text);
    if (!key.ok()) {
      return Status(
          Code::kInvalid,
          fmt::format("'{}' is not a key; write its 64 hexadecimal digits", text.substr(0, 80)));
    }
    blocks.keys.push_back(*key);
  }
  AQ_ASSIGN_OR_RETURN(blocks.tenant, ChooseTenant(tenant, context));
  return blocks;
}

// A client of the tenant's that is told to stop when the node ends.
class Visit {
 public:
  static Result<std::unique_ptr<Visit>> Begin(const std::string& tenant, HttpContext* context) {
    AQ_ASSIGN_OR_RETURN(auto insider, Insider::New(context->node->running(), {.tenant = tenant}));
    auto visit = std::make_unique<Visit>(std::move(insider), context);
    const MutexLock lock(&context->mutex);
    if (context->stopping) return Status(Code::kUnavailable, std::string(kEnding));
    context->waiting.insert(visit->insider_.get());
    return visit;
  }

  Visit(std::unique_ptr<Insider> insider, HttpContext* context)
      : context_(context), insider_(std::move(insider)) {}
  ~Visit() {
    const MutexLock lock(&context_->mutex);
    context_->waiting.erase(insider_.get());
  }

  Insider* operator->() { return insider_.get(); }

 private:
  HttpContext* const context_;
  const std::unique_ptr<Insider> insider_;
};

Status NoSession(const Blocks& blocks) {
  return Status(Code::kNotFound,
                fmt::format("there is no session '{}' of tenant '{}'; `aquifer ctl sessions` lists "
                            "those that its engines named",
                            blocks.session, blocks.tenant));
}

// The cache does not know who asks.
Status Explained(Status status, const Blocks& blocks) {
  const bool unknown = status.code() == Code::kNotFound && !blocks.session.empty();
  return unknown ? NoSession(blocks) : std::move(status);
}

// What the session's name stands for; from the root on, a task of the owner's for each slice.
Status FindBlocksOfSession(Blocks* blocks, HttpContext* context) {
  RunningCore* const running = context->node->running();
  std::optional<BlockName> next;
  std::vector<Key>& keys = blocks->keys;
  for (bool more = true; more && keys.size() < kMaxSessionKeys;) {
    RunAndWait(running->owner(), [&](const std::function<void()>& done) {
      more =
          running->core()->SessionKeys(blocks->tenant, blocks->session, kWalkSlice, &next, &keys);
      done();
    });
  }
  if (!next) return NoSession(*blocks);
  std::reverse(keys.begin(), keys.end());
  blocks->group = next->group;
  blocks->part = next->part;
  return Status();
}

int64_t TimeoutFrom(JsonBody* body, int64_t otherwise_nanos) {
  const std::optional<int64_t> given = body->Whole("timeout_ms", 1, kMaxTimeoutMs);
  return given ? *given * kNanosPerMs : otherwise_nanos;
}

// `seconds` 0 takes pins away.
HttpResponse PinOrUnpin(Blocks blocks, int64_t seconds, HttpContext* context) {
  if (!blocks.session.empty()) {
    const Status found = FindBlocksOfSession(&blocks, context);
    if (!found.ok()) return Refuse(found);
  }
  PinRequest request;
  request.chain = blocks.chain();
  request.seconds = seconds;
  Result<std::unique_ptr<Visit>> visit = Visit::Begin(blocks.tenant, context);
  if (!visit.ok()) return Refuse(visit.status());
  (**visit)->Pin(&request);
  return Tell(request.status, {{seconds == 0 ? "unpinned" : "pinned", request.pinned},
                               {"blocks", blocks.keys.size()}});
}

// All that a tenant has; for so long at most, since it may be much. What is under way goes on.
Status EvictEverything(const std::string& tenant, HttpContext* context, EvictRequest* evict) {
  evict->everything = true;
  AQ_ASSIGN_OR_RETURN(const std::unique_ptr<Visit> visit, Visit::Begin(tenant, context));
  (*visit)->EvictWithin(kEvictTenantNanos, evict);
  return Status();
}

// Returns true if the configuration, the cache or the key store has this tenant.
bool IsKnownTenant(const std::string& tenant, HttpContext* context) {
  const std::vector<std::string> configured = context->tenants();
  if (std::find(configured.begin(), configured.end(), tenant) != configured.end()) return true;
  bool known = false;
  RunningCore* const running = context->node->running();
  RunAndWait(running->owner(), [&](const std::function<void()>& done) {
    known = running->core()->HasTenant(tenant);
    done();
  });
  return known || (context->keys != nullptr && context->keys->MayHaveKey(TenantIdOf(tenant)));
}

Status NoRecorder() {
  return Status(Code::kUnavailable, "this node cannot record; start it with aquifer serve");
}

nlohmann::json RecordingJson(const Recorder& recorder) {
  const RecordingStatus status = recorder.status();
  return {{"running", status.running}, {"file", status.file},         {"requests", status.requests},
          {"bytes", status.bytes},     {"left_out", status.left_out}, {"failure", status.failure}};
}

}  // namespace

HttpResponse Refuse(const Status& status) {
  const HttpCode code = CodeOf(status.code());
  return HttpError(code.status, code.name, status.message());
}

HttpResponse Tell(const Status& status, nlohmann::json result) {
  if (status.code() == Code::kInvalid || status.code() == Code::kNotFound) return Refuse(status);
  const HttpCode code = CodeOf(status.code());
  if (!status.ok()) result["error"] = {{"code", code.name}, {"message", status.message()}};
  HttpResponse response;
  response.status = code.status;
  response.body = result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return response;
}

HttpResponse PinCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  const std::optional<int64_t> seconds = body.Whole("seconds", 1, kMaxPinSeconds);
  Result<Blocks> blocks = ReadBlocks(&body, *context, false);
  if (!blocks.ok()) return Refuse(blocks.status());
  if (!seconds) return Refuse(Status(Code::kInvalid, "'seconds' is missing; say for how long"));
  return PinOrUnpin(std::move(*blocks), *seconds, context);
}

HttpResponse UnpinCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  Result<Blocks> blocks = ReadBlocks(&body, *context, false);
  return blocks.ok() ? PinOrUnpin(std::move(*blocks), 0, context) : Refuse(blocks.status());
}

HttpResponse PrestageCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  PrestageRequest prestage;
  prestage.timeout_nanos = TimeoutFrom(&body, prestage.timeout_nanos);
  const Result<Blocks> blocks = ReadBlocks(&body, *context, false);
  if (!blocks.ok()) return Refuse(blocks.status());
  prestage.chain = blocks->chain();
  prestage.session = blocks->session;
  Result<std::unique_ptr<Visit>> visit = Visit::Begin(blocks->tenant, context);
  if (!visit.ok()) return Refuse(visit.status());
  (**visit)->Prestage(&prestage);
  return Tell(Explained(prestage.status, *blocks),
              {{"found", prestage.found}, {"staged", prestage.staged}});
}

HttpResponse EvictCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  const Result<Blocks> blocks = ReadBlocks(&body, *context, true);
  if (!blocks.ok()) return Refuse(blocks.status());
  EvictRequest evict;
  evict.chain = blocks->chain();
  evict.session = blocks->session;
  evict.everything = blocks->everything;
  Result<std::unique_ptr<Visit>> visit = Visit::Begin(blocks->tenant, context);
  if (!visit.ok()) return Refuse(visit.status());
  (**visit)->Evict(&evict);
  return Tell(Explained(evict.status, *blocks), {{"evicted", evict.evicted}});
}

// First its blocks, so that hardly anything is left to be sealed by another key; then, whatever
// became of them, the key: without it what is left anywhere is noise. And then what was stored
// meanwhile.
HttpResponse TenantDeleteCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  const std::string tenant = body.Text("tenant", kMaxTenantBytes).value_or("");
  const bool force = body.Flag("force");
  if (const Status status = body.Finish(); !status.ok()) return Refuse(status);
  if (tenant.empty()) return Refuse(Status(Code::kInvalid, "'tenant' is missing; name one"));
  if (!force && !IsKnownTenant(tenant, context)) {
    return Refuse(Status(
        Code::kNotFound,
        fmt::format("there is no tenant '{}': the tenants file, this node and its key store do not "
                    "have it; where a durable tier may still have blocks of it, ask with force",
                    tenant)));
  }
  EvictRequest first;
  EvictRequest rest;
  const Status begun = EvictEverything(tenant, context, &first);
  if (!begun.ok()) return Refuse(begun);
  Status destroyed;
  Status status = first.status;
  if (context->keys != nullptr) {
    destroyed = context->keys->Destroy(TenantIdOf(tenant), [&] {
      const Status again = EvictEverything(tenant, context, &rest);
      status = again.ok() ? rest.status : again;
    });
  }
  const std::vector<std::string> tenants = context->tenants();
  nlohmann::json unswept = nlohmann::json::array();
  RunningCore* const running = context->node->running();
  RunAndWait(running->owner(), [&](const std::function<void()>& done) {
    for (const DurableStats& tier : running->core()->DurableTierStats()) {
      if (tier.unswept_tenants > 0) unswept.push_back(tier.name);
    }
    done();
  });
  nlohmann::json answer = {
      {"key_destroyed", context->keys != nullptr && destroyed.ok()},
      {"evicted", first.evicted + rest.evicted},
      {"still_configured", std::find(tenants.begin(), tenants.end(), tenant) != tenants.end()},
      {"unswept", std::move(unswept)},
      {"trouble", status.ok() ? "" : status.message()}};
  return Tell(context->keys != nullptr ? destroyed : status, std::move(answer));
}

HttpResponse RecordCall(const HttpRequest&, HttpContext* context) {
  return context->recorder == nullptr ? Refuse(NoRecorder())
                                      : Tell(Status(), RecordingJson(*context->recorder));
}

HttpResponse RecordStartCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  const std::string file = body.Text("file", kMaxPathBytes).value_or("");
  if (const Status status = body.Finish(); !status.ok()) return Refuse(status);
  if (!file.starts_with('/')) {
    return Refuse(Status(Code::kInvalid, "'file' is not an absolute path; begin it with '/'"));
  }
  if (context->recorder == nullptr) return Refuse(NoRecorder());
  const Result<std::string> started = context->recorder->Start(file);
  return started.ok() ? Tell(Status(), RecordingJson(*context->recorder))
                      : Refuse(started.status());
}

HttpResponse RecordStopCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  if (const Status status = body.Finish(); !status.ok()) return Refuse(status);
  if (context->recorder == nullptr) return Refuse(NoRecorder());
  const Status stopped = context->recorder->Stop();
  return Tell(stopped, RecordingJson(*context->recorder));
}

HttpResponse DrainCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  DrainRequest drain;
  drain.timeout_nanos = TimeoutFrom(&body, drain.timeout_nanos);
  if (const Status status = body.Finish(); !status.ok()) return Refuse(status);
  // Of the whole node, whoever's client asks for it.
  Result<std::unique_ptr<Visit>> visit = Visit::Begin(context->tenants().front(), context);
  if (!visit.ok()) return Refuse(visit.status());
  (**visit)->Drain(&drain);
  return Tell(drain.status, {{"left", drain.left}});
}

HttpResponse UndrainCall(const HttpRequest& request, HttpContext* context) {
  JsonBody body(request.body);
  if (const Status status = body.Finish(); !status.ok()) return Refuse(status);
  if (context->stopping) return Refuse(Status(Code::kUnavailable, std::string(kEnding)));
  bool was_draining = false;
  RunningCore* const running = context->node->running();
  RunAndWait(running->owner(), [&](const std::function<void()>& done) {
    was_draining = running->core()->draining();
    running->core()->Undrain();
    done();
  });
  return Tell(Status(), {{"was_draining", was_draining}});
}

}  // namespace aquifer
