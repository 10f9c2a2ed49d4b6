#include "client/c_api/c_api.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/request_progress.h"

using aquifer::Code;
using aquifer::Guarded;
using aquifer::Status;

// The numbers of the C header are those of the C++ ones.
static_assert(AQUIFER_OK == int(Code::kOk) && AQUIFER_NOT_FOUND == int(Code::kNotFound) &&
              AQUIFER_BUSY == int(Code::kBusy) && AQUIFER_NO_SPACE == int(Code::kNoSpace) &&
              AQUIFER_UNAVAILABLE == int(Code::kUnavailable) &&
              AQUIFER_CORRUPT == int(Code::kCorrupt) && AQUIFER_LATE == int(Code::kLate) &&
              AQUIFER_INVALID == int(Code::kInvalid));
static_assert(AQUIFER_DRAM == int(aquifer::TierKind::kDram) &&
              AQUIFER_NVME == int(aquifer::TierKind::kNvme) &&
              AQUIFER_PEER == int(aquifer::TierKind::kPeer) &&
              AQUIFER_DURABLE == int(aquifer::TierKind::kDurable));
static_assert(AQUIFER_FLOAT32 == int(aquifer::DType::kFloat32) &&
              AQUIFER_FLOAT16 == int(aquifer::DType::kFloat16) &&
              AQUIFER_BFLOAT16 == int(aquifer::DType::kBFloat16) &&
              AQUIFER_FLOAT8_E4M3 == int(aquifer::DType::kFloat8E4M3) &&
              AQUIFER_FLOAT8_E5M2 == int(aquifer::DType::kFloat8E5M2) &&
              AQUIFER_INT8 == int(aquifer::DType::kInt8) &&
              AQUIFER_UINT8 == int(aquifer::DType::kUInt8));
static_assert(AQUIFER_KV_FULL == int(aquifer::KvKind::kFull) &&
              AQUIFER_KV_WINDOW == int(aquifer::KvKind::kWindow) &&
              AQUIFER_KV_LATENT == int(aquifer::KvKind::kLatent) &&
              AQUIFER_KV_STATE == int(aquifer::KvKind::kState));
static_assert(AQUIFER_RUN_READY == int(aquifer::RunState::kReady) &&
              AQUIFER_RUN_BEING_FILLED == int(aquifer::RunState::kBeingFilled) &&
              AQUIFER_RUN_PENDING == int(aquifer::RunState::kPending));
static_assert(AQUIFER_REFUSED == int(aquifer::ReserveOutcome::kRefused) &&
              AQUIFER_HAVE == int(aquifer::ReserveOutcome::kHave) &&
              AQUIFER_BEING_FILLED == int(aquifer::ReserveOutcome::kBeingFilled) &&
              AQUIFER_SLOT == int(aquifer::ReserveOutcome::kSlot));
static_assert(AQUIFER_REFUSAL_NONE == int(aquifer::Refusal::kNone) &&
              AQUIFER_REFUSAL_FULL == int(aquifer::Refusal::kFull) &&
              AQUIFER_REFUSAL_QUOTA == int(aquifer::Refusal::kQuota) &&
              AQUIFER_REFUSAL_WARMING == int(aquifer::Refusal::kWarming) &&
              AQUIFER_REFUSAL_DRAINING == int(aquifer::Refusal::kDraining) &&
              AQUIFER_REFUSAL_TOO_MANY == int(aquifer::Refusal::kTooMany));
static_assert(AQUIFER_SESSION_UNKNOWN == int(aquifer::SessionState::kUnknown) &&
              AQUIFER_SESSION_WILL_CONTINUE == int(aquifer::SessionState::kWillContinue) &&
              AQUIFER_SESSION_FINISHED == int(aquifer::SessionState::kFinished));
static_assert(AQUIFER_NVME_AUTO == int(aquifer::NvmeEngine::kAuto) &&
              AQUIFER_NVME_URING == int(aquifer::NvmeEngine::kUring) &&
              AQUIFER_NVME_THREADS == int(aquifer::NvmeEngine::kThreads));

// ---- Errors ----

namespace {

constexpr uint32_t kMaxStructBytes = 4096;  // More is no size.

// Not a buffer: a library that is loaded at run time has room for few bytes of a thread's own.
thread_local std::string last_error;
thread_local const char* last_text = "";

}  // namespace

aquifer_code aquifer::Fail(Code code, const char* text) noexcept {
  try {
    last_error = *text == '\0' ? CodeName(code) : text;
    last_text = last_error.c_str();
  } catch (const std::bad_alloc&) {
    last_text = "this process is out of memory";
  }
  return static_cast<aquifer_code>(code);
}

Status aquifer::CheckSize(const void* given, uint32_t size, size_t known, const char* name) {
  if (size < known || size > kMaxStructBytes) {
    return Status(Code::kInvalid, std::string(name) + ".size is " + std::to_string(size) +
                                      "; set it to sizeof the struct, at least " +
                                      std::to_string(known));
  }
  const auto* const bytes = static_cast<const unsigned char*>(given);
  if (std::any_of(bytes + known, bytes + size, [](unsigned char byte) { return byte != 0; })) {
    return Status(Code::kInvalid, std::string(name) +
                                      " uses fields that this version of libaquifer does not "
                                      "know; update it");
  }
  return Status();
}

uint32_t aquifer_abi_version(void) { return 2; }
const char* aquifer_version(void) { return AQUIFER_VERSION; }
const char* aquifer_error(void) { return last_text; }

const char* aquifer_code_name(aquifer_code code) {
  if (code < AQUIFER_OK || code > AQUIFER_INVALID) return "unknown";
  return aquifer::CodeName(static_cast<Code>(code)).data();
}

const char* aquifer_refusal_name(int32_t refusal) {
  if (refusal < AQUIFER_REFUSAL_NONE || refusal > AQUIFER_REFUSAL_TOO_MANY) return "unknown";
  return aquifer::RefusalName(static_cast<aquifer::Refusal>(refusal)).data();
}

// ---- Caches ----

namespace {

aquifer::ClientOptions ClientOf(const char* tenant, const char* engine) {
  aquifer::ClientOptions client;
  if (tenant != nullptr) client.tenant = tenant;
  client.engine = aquifer::TextOf(engine);
  return client;
}

Status Return(aquifer::Result<std::unique_ptr<aquifer::Cache>> made, aquifer_cache** cache) {
  if (!made.ok()) return made.status();
  *cache = new aquifer_cache(*std::move(made));
  return Status();
}

template <class T>
void SetUnlessZero(T given, T* value) {
  if (given != 0) *value = given;
}

Status ReadTenants(const aquifer_open_options& given, aquifer::CacheOptions* options) {
  AQ_RETURN_IF_ERROR(aquifer::CheckArray(given.tenants, given.tenant_count, "options.tenants"));
  for (const aquifer_tenant_options& tenant : std::span(given.tenants, given.tenant_count)) {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(tenant.name, "options.tenants[].name"));
    aquifer::TenantOptions& to = options->tenants.emplace_back();
    to.name = tenant.name;
    to.dram_floor_bytes = tenant.dram_floor_bytes;
    to.nvme_floor_bytes = tenant.nvme_floor_bytes;
    to.ttl_seconds = tenant.ttl_seconds;
    SetUnlessZero(tenant.dram_ceiling_bytes, &to.dram_ceiling_bytes);
    SetUnlessZero(tenant.nvme_ceiling_bytes, &to.nvme_ceiling_bytes);
  }
  return Status();
}

Status ReadDrives(const aquifer_open_options& given, aquifer::CacheOptions* options) {
  const size_t count = given.nvme_directory_count;
  AQ_RETURN_IF_ERROR(
      aquifer::CheckArray(given.nvme_directories, count, "options.nvme_directories"));
  for (const char* const directory : std::span(given.nvme_directories, count)) {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(directory, "options.nvme_directories[]"));
    options->nvme_directories.emplace_back(directory);
  }
  AQ_RETURN_IF_ERROR(aquifer::CheckRange<int32_t>(given.nvme_engine, AQUIFER_NVME_AUTO,
                                                  AQUIFER_NVME_THREADS, "options.nvme_engine"));
  options->nvme_engine = static_cast<aquifer::NvmeEngine>(given.nvme_engine);
  options->nvme_sync = given.nvme_sync != 0;
  options->nvme_segment_bytes = given.nvme_segment_bytes;
  options->write_bytes_per_second = given.write_bytes_per_second;
  SetUnlessZero(given.nvme_bytes, &options->nvme_bytes);
  return Status();
}

Status ReadOptions(const aquifer_open_options& given, aquifer::CacheOptions* options) {
  AQ_RETURN_IF_ERROR(ReadDrives(given, options));
  AQ_RETURN_IF_ERROR(ReadTenants(given, options));
  SetUnlessZero(given.dram_bytes, &options->dram_bytes);
  SetUnlessZero(given.keep_available_bytes, &options->keep_available_bytes);
  SetUnlessZero(given.worker_threads, &options->worker_threads);
  SetUnlessZero(given.overdue_nanos, &options->overdue_nanos);
  options->assumed_prefill_ms_per_token = given.assumed_prefill_ms_per_token;
  return Status();
}

}  // namespace

aquifer_code aquifer_connect(const aquifer_connect_options* options, aquifer_cache** cache) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
    *cache = nullptr;
    aquifer_connect_options given{};
    if (options != nullptr) {
      AQ_RETURN_IF_ERROR(aquifer::ReadStruct(options, "options", &given));
    }
    aquifer::ConnectOptions to;
    to.socket = aquifer::TextOf(given.socket);
    to.token = aquifer::TextOf(given.token);
    to.observe = given.observe != 0;
    SetUnlessZero(given.timeout_nanos, &to.timeout_nanos);
    return Return(aquifer::Connect(to, ClientOf(given.tenant, given.engine)), cache);
  });
}

aquifer_code aquifer_open(const aquifer_open_options* options, aquifer_cache** cache) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
    *cache = nullptr;
    aquifer_open_options given{};
    if (options != nullptr) {
      AQ_RETURN_IF_ERROR(aquifer::ReadStruct(options, "options", &given));
    }
    aquifer::CacheOptions to;
    AQ_RETURN_IF_ERROR(ReadOptions(given, &to));
    return Return(aquifer::Open(to, ClientOf(given.tenant, given.engine)), cache);
  });
}

aquifer_code aquifer_join(aquifer_cache* cache, const char* tenant, const char* engine,
                          aquifer_cache** joined) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(joined, "joined"));
    *joined = nullptr;
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
    return Return(cache->client->Join(ClientOf(tenant, engine)), joined);
  });
}

void aquifer_close(aquifer_cache* cache) { delete cache; }

aquifer_cache::~aquifer_cache() {
  client.reset();  // From here on nobody touches a request but its owner.
  for (aquifer_request* const request : open) {
    aquifer::Request* const base = request->base();
    base->status = Status(Code::kUnavailable, "the cache was closed");
    aquifer::RequestProgress::Advance(base, base->completed(), true);
    request->cache = nullptr;
  }
}

// ---- Requests ----

namespace {

// What a request was lent that nobody will ever ask for.
void GiveBack(const aquifer_request& request, aquifer::Cache* client) {
  if (const auto* const fetch = std::get_if<aquifer::FetchRequest>(&request.any)) {
    for (size_t i = 0; i < fetch->completed(); ++i) {
      const aquifer::ReleaseOp release{.lease = fetch->ops[i].lease};
      if (release.lease != 0) client->Release(std::span(&release, 1));
    }
  }
  if (const auto* const reserve = std::get_if<aquifer::ReserveRequest>(&request.any)) {
    for (size_t i = 0; i < reserve->completed(); ++i) {
      const aquifer::ReservationId reservation = reserve->ops[i].reservation;
      if (reservation != 0) client->Abort(std::span(&reservation, 1));
    }
  }
}

Status CheckOpenHere(const aquifer_cache* cache, const aquifer_request* request) {
  AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
  AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(request, "request"));
  if (request->cache == nullptr || request->cache == cache) return Status();
  return Status(Code::kInvalid, "the request was begun on another cache");
}

}  // namespace

aquifer::Request* aquifer_request::base() {
  return std::visit(
      [](auto& request) -> aquifer::Request* {
        if constexpr (std::is_same_v<decltype(request), std::monostate&>) {
          return nullptr;
        } else {
          return &request;
        }
      },
      any);
}

void aquifer_cache::Sweep() {
  std::erase_if(open, [](aquifer_request* request) {
    if (!request->base()->done()) return false;
    request->cache = nullptr;
    return true;
  });
  std::erase_if(orphans, [this](const std::unique_ptr<aquifer_request>& orphan) {
    if (orphan->cache != nullptr) return false;
    GiveBack(*orphan, client.get());
    return true;
  });
}

void aquifer_cache::Adopt(aquifer_request* request) {
  orphans.emplace_back(request);
  client->Cancel(request->base());
}

aquifer_request* aquifer_request_new(void) { return new (std::nothrow) aquifer_request; }

void aquifer_request_free(aquifer_request* request) {
  if (request == nullptr) return;
  if (request->cache == nullptr) {
    delete request;
    return;
  }
  // Without memory for one pointer it stays the cache's for ever, which is better than a crash.
  Guarded([&]() -> Status {
    request->cache->Adopt(request);
    return Status();
  });
}

aquifer_code aquifer_poll(aquifer_cache* cache, size_t* moved) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(aquifer::CheckNotNull(cache, "cache"));
    const size_t count = cache->client->Poll();
    if (count > 0) cache->Sweep();
    if (moved != nullptr) *moved = count;
    return Status();
  });
}

aquifer_code aquifer_wait(aquifer_cache* cache, aquifer_request* request, int64_t timeout_nanos) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckOpenHere(cache, request));
    if (request->cache == nullptr) return Status();  // It is done.
    const bool done =
        cache->client->Wait(*request->base(), timeout_nanos < 0 ? INT64_MAX : timeout_nanos);
    cache->Sweep();
    return done ? Status() : Status(Code::kLate, "the request is not done yet");
  });
}

int aquifer_event_fd(const aquifer_cache* cache) {
  return cache == nullptr ? -1 : cache->client->event_fd();
}

aquifer_code aquifer_cancel(aquifer_cache* cache, aquifer_request* request) {
  return Guarded([&]() -> Status {
    AQ_RETURN_IF_ERROR(CheckOpenHere(cache, request));
    if (request->cache != nullptr) cache->client->Cancel(request->base());
    return Status();
  });
}
