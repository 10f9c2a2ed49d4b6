#include "cache/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/deadline.h"
#include "cache/request/commit_job.h"
#include "cache/request/drain_job.h"
#include "cache/request/evict_job.h"
#include "cache/request/fetch_job.h"
#include "cache/request/flush_job.h"
#include "cache/request/hint_job.h"
#include "cache/request/match_job.h"
#include "cache/request/pin_job.h"
#include "cache/request/prestage_job.h"
#include "cache/request/reserve_job.h"
#include "policy/eviction/leaf_recency.h"
#include "policy/eviction/learned_order.h"

namespace aquifer {
namespace {

constexpr size_t kExpirySlice = 2048;
constexpr size_t kPinExpirySlice = 256;
constexpr size_t kReturnSlice = 256;
constexpr size_t kMaxKeys = size_t{1} << 20;
constexpr int64_t kLoadToWriteNanos = 10'000'000'000;

Status TooManyKeys() {
  return Status(Code::kInvalid, "chain.keys holds more than " + std::to_string(kMaxKeys) + " keys");
}

}  // namespace

// --- Life

Result<std::unique_ptr<Core>> Core::New(const CoreOptions& options,
                                        const CacheEnvironment& environment) {
  AQ_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Core> core(new Core(options, environment));
  AQ_RETURN_IF_ERROR(core->Build());
  return core;
}

Core::Core(const CoreOptions& options, const CacheEnvironment& environment)
    : options_(options),
      environment_(environment),
      catalog_(options.max_layouts_per_tenant),
      costs_{.worth = WorthOf(options.cache)},
      tasks_(environment.owner) {}

Core::~Core() {
  tasks_.Close();
  CloseDisks();
}

Result<std::unique_ptr<EvictionOrder>> Core::NewOrder(uint32_t max_blocks, uint8_t tier) const {
  const bool used = tier == kTierDram || !options_.cache.nvme_directories.empty();
  if (options_.cache.eviction == EvictionPolicy::kLru || !used) {
    return NewLeafRecency({.max_blocks = max_blocks});
  }
  return NewLearnedOrder({.max_blocks = max_blocks,
                          .compare_with_lru = tier == kTierDram,
                          .run_elsewhere = [workers = environment_.workers](Task task) {
                            workers->Run(std::move(task));
                          }});
}

Status Core::Build() {
  AQ_RETURN_IF_ERROR(BuildDram());
  AQ_RETURN_IF_ERROR(BuildResidency());
  AQ_RETURN_IF_ERROR(SetTenants(options_.cache.tenants));
  BuildWriteDown();
  AQ_RETURN_IF_ERROR(BuildDurable());
  AQ_RETURN_IF_ERROR(BuildDrives());
  BuildRequests();
  return Status();
}

Status Core::BuildDram() {
  const CacheOptions& cache = options_.cache;
  AQ_ASSIGN_OR_RETURN(dram_,
                      NewDramPool({.capacity_bytes = cache.dram_bytes,
                                   .extent_bytes = options_.extent_bytes,
                                   .keep_available_bytes = cache.keep_available_bytes,
                                   .ready_extents = options_.ready_extents,
                                   .paced_by_cores = options_.paced_by_cores,
                                   .pace_clock = environment_.clock},
                                  environment_.extents, environment_.workers, environment_.owner));
  dram_->on_wanted_back = [this](uint32_t extent) {
    residency_->Withhold(extent);
    if (on_extent_wanted) on_extent_wanted(extent);
  };
  dram_->on_returned = [this](uint32_t extent) { residency_->EndWithholding(extent); };
  dram_->on_extent = [this](std::span<std::byte> bytes, bool added) {
    added ? drives_->Remember(bytes) : drives_->Forget(bytes);
  };
  return Status();
}

Status Core::BuildResidency() {
  const CacheOptions& cache = options_.cache;
  const uint64_t nvme_bytes = cache.nvme_directories.empty() ? 0 : cache.nvme_bytes;
  const uint32_t max_blocks = BlocksToIndex(options_);
  Result<std::unique_ptr<Index>> index = Index::Create({.max_blocks = max_blocks,
                                                        .hash_seed = environment_.random->Next64(),
                                                        .meter = environment_.meter});
  if (!index.ok()) {
    return Status(index.status().code(),
                  fmt::format("no memory to keep track of {} blocks: lower nvme_bytes ({}) or "
                              "dram_bytes ({})",
                              max_blocks, nvme_bytes, cache.dram_bytes));
  }
  AQ_ASSIGN_OR_RETURN(auto dram_order, NewOrder(max_blocks, kTierDram));
  AQ_ASSIGN_OR_RETURN(auto nvme_order, NewOrder(max_blocks, kTierNvme));
  Quota dram_quota({.capacity_bytes = cache.dram_bytes});
  // The tier itself keeps to its cap; only the tenants' shares of it are kept here.
  Quota nvme_quota({.capacity_bytes = std::max<uint64_t>(nvme_bytes, 1)});
  residency_ = std::make_unique<Residency>(
      ResidencyParts{.catalog = &catalog_,
                     .dram = dram_.get(),
                     .clock = environment_.clock,
                     .prefill = &costs_.prefill,
                     .index = *std::move(index),
                     .dram_order = std::move(dram_order),
                     .nvme_order = std::move(nvme_order),
                     .dram_quota = std::move(dram_quota),
                     .nvme_quota = std::move(nvme_quota),
                     .extent_bytes = options_.extent_bytes,
                     .name_seed = environment_.random->Next64(),
                     .lasting_tiers = DurableTiers::LastingBits(environment_.durable_tiers)});
  residency_->SetReload(costs_.nvme_speed.Cost(environment_.clock->NowNanos()));
  catalog_.on_forgotten = [this](uint16_t layout) { costs_.prefill.ForgetLayout(layout); };
  residency_->on_erase = [this](const BlockId& id, Leave why) {
    // An older record, on a drive that has not been read, may have been given more time.
    if (why == Leave::kExpired && !drives_->records().known()) {
      std::ignore = eraser_->AddForGood(id);
    } else {
      eraser_->Add(id);
    }
  };
  residency_->checksum_on_nvme = [this](const BlockId& id) {
    const NvmeTier* const nvme = drives_->tier();
    const auto meta = nvme == nullptr ? std::nullopt : nvme->MetaOf(id);
    return meta ? std::optional(meta->checksum) : std::nullopt;
  };
  fills_ = std::make_unique<FillTable>(residency_.get(), environment_.clock);
  fills_->on_ended = [this](const BlockName& name) { drives_->records().OnNotBusy(name); };
  fills_->on_overdue = [this](BlockRef ref) {
    meters_.Count(residency_->at(ref).tenant, &CacheCounters::overdue);
  };
  loans_ = std::make_unique<LoanBook>(
      LoanBookParts{.max_loans_per_client = options_.max_leases_per_client,
                    .residency = residency_.get(),
                    .fills = fills_.get(),
                    .meters = &meters_,
                    .clock = environment_.clock});
  loans_->on_overdue = [this](ClientNumber client) { clients_.TellOverdue(client); };
  sessions_ = std::make_unique<SessionTable>(options_.max_sessions, residency_.get());
  return Status();
}

void Core::BuildWriteDown() {
  const CacheOptions& cache = options_.cache;
  const bool nvme = !cache.nvme_directories.empty() && cache.nvme_bytes != 0;
  loader_ = std::make_unique<Loader>(residency_.get(), &costs_.nvme_speed, environment_.owner,
                                     environment_.clock, cache.dram_bytes / 4);
  eraser_ = std::make_unique<Eraser>(
      EraserOptions{.enabled = nvme,
                    .max_remembered = options_.max_deletions_remembered,
                    .max_remembered_per_tenant = options_.max_deletions_remembered_per_tenant},
      environment_.owner, environment_.clock);
  write_down_ = std::make_unique<WriteDown>(
      WriteDownSettings{.enabled = nvme,
                        .budget = BudgetOf(cache),
                        .admission = {.written_part = cache.nvme_written_part},
                        .max_held_bytes = cache.dram_bytes / 2},
      residency_.get(), eraser_.get(), environment_.owner, environment_.clock);
  write_down_->load = [this](BlockRef ref) { drives_->LoadToWrite(ref); };
  write_down_->on_older_left = [this](const BlockName& name) {
    drives_->records().OnOlderLeft(name);
  };
  eraser_->on_erased = [this] { write_down_->Pump(); };
}

Status Core::BuildDurable() {
  if (environment_.durable_tiers.empty()) return Status();
  DurableTiersParts parts;
  parts.sources = environment_.durable_tiers;
  parts.owner = environment_.owner;
  parts.workers = environment_.workers;
  parts.clock = environment_.clock;
  parts.random = environment_.random;
  parts.residency = residency_.get();
  parts.catalog = &catalog_;
  parts.dram_bytes = options_.cache.dram_bytes;
  parts.session_ends = options_.session_ends;
  parts.on_session_moved = [this](const std::string& session, const BlockName& head) {
    sessions_->Remember(session, head);
  };
  // Read by the next tick: nobody waits for it.
  parts.load_from_nvme = [this](BlockRef ref, const LoadTicket& ticket) {
    loader_->Load(ref, DeadlineAfter(environment_.clock->NowNanos(), kLoadToWriteNanos), ticket);
  };
  parts.want_on_nvme = [this](BlockRef ref) { write_down_->Want(ref); };
  parts.promote = [this](BlockRef ref) { write_down_->Promote(ref); };
  parts.walk = [this](size_t max, BlockName* next, std::vector<Key>* keys, bool* whole) {
    return context_->walk.Keys(max, next, keys, whole);
  };
  AQ_ASSIGN_OR_RETURN(durable_, DurableTiers::New(parts));
  residency_->on_erase_durable = [this](const BlockId& id) { std::ignore = durable_->Erase(id); };
  return Status();
}

Status Core::BuildDrives() {
  NvmeTierOptions tier = NvmeOptionsOf(options_);
  tier.meter = environment_.meter;
  tier.packer = environment_.packer;
  AQ_ASSIGN_OR_RETURN(drives_,
                      DriveSet::New({.directories = options_.cache.nvme_directories,
                                     .tier = tier,
                                     .open_wait_nanos = options_.open_wait_nanos,
                                     .reopen_nanos = options_.reopen_nanos,
                                     .open_disk = environment_.open_disk,
                                     .run_opening = environment_.run_opening,
                                     .owner = environment_.owner,
                                     .workers = environment_.workers,
                                     .clock = environment_.clock,
                                     .random = environment_.random,
                                     .catalog = &catalog_,
                                     .residency = residency_.get(),
                                     .loader = loader_.get(),
                                     .eraser = eraser_.get(),
                                     .write_down = write_down_.get(),
                                     .on_more_found =
                                         [this] {
                                           if (durable_ != nullptr) durable_->SweepSoon();
                                         },
                                     .on_dropped = [this] { context_->housekeeping.Run(); }}));
  return Status();
}

void Core::BuildRequests() {
  scheduler_ = std::make_unique<RequestScheduler>(RequestSchedulerParts{
      .job_kinds = kJobKinds,
      .timer_horizon_nanos = options_.tick_nanos,
      .executor = environment_.owner,
      .clock = environment_.clock,
      .meter = environment_.meter,
      .on_progress = [this](ClientNumber client, Request* request, size_t completed, bool done) {
        clients_.Progress(client, request, completed, done);
      }});
  context_.reset(new CacheContext{
      .clock = *environment_.clock,
      .scheduler = *scheduler_,
      .meters = meters_,
      .clients = clients_,
      .catalog = catalog_,
      .residency = *residency_,
      .loans = *loans_,
      .fills = *fills_,
      .sessions = *sessions_,
      .loader = *loader_,
      .write_down = *write_down_,
      .eraser = *eraser_,
      .drives = *drives_,
      .durable = durable_.get(),
      .nvme_speed = costs_.nvme_speed,
      .prefill = costs_.prefill,
      .worth = costs_.worth,
      .walk = ChainWalk(residency_.get()),
      .housekeeping = Housekeeping(scheduler_.get(), residency_.get(), loans_.get(), eraser_.get(),
                                   environment_.owner)});
  report_ =
      std::make_unique<CacheReport>(context_.get(), dram_.get(), options_.cache, environment_);
}

void Core::Start(std::function<void(Status)> on_ready) {
  dram_->Tick();
  TickIn(options_.tick_nanos);
  if (!drives_->any()) return on_ready(Status());
  drives_->Start([this, on_ready = std::move(on_ready)] {
    // What a crash kept from the durable tiers is written now.
    if (durable_ != nullptr) durable_->SweepSoon();
    if (on_ready) on_ready(Status());
  });
}

void Core::CloseDisks() {
  if (drives_ != nullptr) drives_->Close();
  if (durable_ != nullptr) durable_->Close();
}

bool Core::pool_complete() const {
  return extent_bytes() + options_.extent_bytes > options_.cache.dram_bytes;
}

Status Core::SetTenants(const std::vector<TenantOptions>& tenants) {
  AQ_RETURN_IF_ERROR(CheckTenants(tenants));
  AQ_RETURN_IF_ERROR(
      CheckQuotas(tenants, Quota({.capacity_bytes = residency_->dram_quota().capacity_bytes()}),
                  Quota({.capacity_bytes = residency_->nvme_quota().capacity_bytes()})));
  for (const TenantOptions& tenant : tenants) {  // There may be more of them than numbers.
    AQ_RETURN_IF_ERROR(catalog_.Tenant(TenantIdOf(tenant.name)).status());
  }
  // Nothing fails from here on. First those that are gone, so that the others' floors fit.
  for (const TenantOptions& old : tenants_) {
    AQ_ASSIGN_OR_RETURN(const uint16_t number, catalog_.Tenant(TenantIdOf(old.name)));
    AQ_RETURN_IF_ERROR(residency_->SetQuota(number, {.ceiling_bytes = 0}, {.ceiling_bytes = 0}));
  }
  tenants_ = tenants;
  for (const TenantOptions& tenant : tenants_) {
    AQ_ASSIGN_OR_RETURN(const uint16_t number, catalog_.Tenant(tenant.name, tenant));
    AQ_RETURN_IF_ERROR(residency_->SetQuota(number, DramQuotaOf(tenant), NvmeQuotaOf(tenant)));
  }
  if (durable_ != nullptr) durable_->SweepSoon();  // Some may be of another class now.
  return Status();
}

// --- Time

void Core::TickIn(int64_t nanos) {
  tasks_.PostAt(environment_.clock->NowNanos() + nanos, [this, number = ++tick_number_] {
    if (number == tick_number_) Tick();
  });
}

int64_t Core::NanosToTick(bool worked) {
  const uint64_t begun = scheduler_->begun();
  const bool asked = std::exchange(begun_at_tick_, begun) != begun;
  const bool waits = scheduler_->running() > 0 || loader_->pending() > 0 ||
                     eraser_->pending() > 0 || write_down_->waiting() > 0 ||
                     (durable_ != nullptr && !durable_->idle());
  const int64_t longest = std::min(options_.idle_tick_nanos, dram_->EaseNanos());
  resting_ = !worked && !asked && !waits && longest > options_.tick_nanos;
  return resting_ ? longest : options_.tick_nanos;
}

void Core::Tick() {
  const int64_t now = environment_.clock->NowNanos();
  if (dram_->Tick() > 0) residency_->ReclaimExtent(UINT16_MAX);
  // What is looked at seldom is looked at more of at a time.
  const bool expired = residency_->DropExpired(resting_ ? 4 * kExpirySlice : kExpirySlice);
  const bool unpinned = residency_->ExpirePins(kPinExpirySlice);
  const bool overdue = loans_->LookForOverdue(now - options_.cache.overdue_nanos);
  if (drives_->any()) residency_->SetReload(costs_.nvme_speed.Cost(now));
  eraser_->Pump();
  write_down_->Pump();
  PumpLoads();
  if (durable_ != nullptr) durable_->Tick();
  context_->housekeeping.Run();
  TickIn(NanosToTick(expired || unpinned || overdue));
}

// --- Clients

Result<ClientNumber> Core::Attach(const ClientOptions& options, ClientSink* sink, bool sees_all) {
  if (options.tenant.empty() || options.tenant.size() > 64) {
    return Status(Code::kInvalid, "tenant is not 1 to 64 bytes long");
  }
  AQ_ASSIGN_OR_RETURN(const uint16_t tenant,
                      catalog_.Tenant(options.tenant, OptionsOf(tenants_, options.tenant)));
  const ClientNumber client = clients_.Add(options, tenant, sink, sees_all);
  meters_.AddTenant(tenant);
  loans_->AddClient(client, tenant, static_cast<uint32_t>(environment_.random->Next64()));
  write_down_->AddClient(client, tenant);
  if (durable_ != nullptr) durable_->AddClient(client, tenant);
  return client;
}

Result<ClientNumber> Core::AttachAdministrator(const ClientOptions& options, ClientSink* sink) {
  AQ_ASSIGN_OR_RETURN(const ClientNumber client, Attach(options, sink));
  clients_.at(client).administrator = true;
  return client;
}

void Core::Disconnect(ClientNumber client) {
  scheduler_->GiveUp(client);
  clients_.Silence(client);
  loans_->BeginVoiding(client);
  PumpLoads();
  context_->housekeeping.Run();
}

void Core::Detach(ClientNumber client, std::function<void()> on_done) {
  scheduler_->GiveUp(client);
  if (const auto engine = clients_.Leave(client)) costs_.prefill.Forget(*engine);
  const Client& leaving = clients_.at(client);
  for (const uint16_t layout : leaving.layouts) catalog_.Release(leaving.tenant, layout);
  loans_->BeginReturning(client, [this, client, on_done = std::move(on_done)] {
    clients_.Free(client);
    if (on_done) on_done();
  });
  PumpLoads();
  context_->housekeeping.Run();
}

// --- Memory lent to other processes

SlotPlace Core::PlaceOf(ClientNumber client, uint64_t id, bool reservation) {
  const BlockLoan* const loan = loans_->Find(client, id, reservation);
  if (loan == nullptr || loan->ref == kNoBlock) return {};
  return dram_->PlaceOf(residency_->at(loan->ref).slot);
}

ExtentInfo Core::OfferExtent(uint32_t extent) {
  dram_->AddMapper(extent);
  return dram_->ExtentOf(extent);
}

size_t Core::Release(ClientNumber client, std::span<const ReleaseOp> leases) {
  const size_t count = std::min(leases.size(), kReturnSlice);
  for (const ReleaseOp& op : leases.first(count)) {
    BlockLoan* const loan = loans_->Find(client, op.lease, false);
    if (loan == nullptr) continue;
    if (op.corrupt && loan->ref != kNoBlock &&
        residency_->at(loan->ref).state == BlockState::kResident) {
      meters_.Count(clients_.at(client).tenant, &CacheCounters::reported_corrupt);
      // Where else it may lie as it was read: nobody is to read it again.
      if (durable_ != nullptr) std::ignore = durable_->Erase(residency_->IdOf(loan->ref));
      residency_->Drop(loan->ref, Leave::kCorrupt);
    }
    loans_->End(loan);
  }
  eraser_->Pump();
  PumpLoads();
  context_->housekeeping.Run();
  return count;
}

size_t Core::Abort(ClientNumber client, std::span<const ReservationId> reservations) {
  const size_t count = std::min(reservations.size(), kReturnSlice);
  for (const ReservationId id : reservations.first(count)) {
    if (BlockLoan* const loan = loans_->Find(client, id, true); loan != nullptr)
      loans_->Abort(loan);
  }
  PumpLoads();
  context_->housekeeping.Run();
  return count;
}

// --- Requests

template <class J>
J* Core::Take(ClientNumber client, Request* request) {
  J* const job = scheduler_->Take<J>(client, request, context_.get());
  if (std::exchange(resting_, false)) TickIn(options_.tick_nanos);
  return job;
}

template <class J, class R>
void Core::Begin(ClientNumber client, R* request, Status valid) {
  Client& caller = clients_.at(client);
  ++caller.requests;
  if (valid.ok() && caller.requests > options_.max_requests_per_client) {
    valid = Status(Code::kBusy, "too many requests under way; wait for some");
  }
  if (!valid.ok()) {
    request->status = std::move(valid);
    return scheduler_->Tell(client, request, 0, true);
  }
  J* const job = Take<J>(client, request);
  job->Reset();
  job->Run();
}

void Core::Cancel(ClientNumber client, Request* request) { scheduler_->Cancel(client, request); }

Status Core::CheckChain(ClientNumber client, const ChainSlice& chain) const {
  if (!clients_.HasLayout(client, chain.layout)) {
    return Status(Code::kInvalid, "chain.layout was not given to this client by RegisterLayout");
  }
  const LayoutRecord& layout = catalog_.layout(clients_.LayoutOf(client, chain.layout));
  if (chain.group >= layout.groups.size()) {
    return Status(Code::kInvalid, "chain.group is " + std::to_string(chain.group) +
                                      ", but the layout has " +
                                      std::to_string(layout.groups.size()) + " groups");
  }
  return chain.keys.size() <= kMaxKeys ? Status() : TooManyKeys();
}

Status Core::CheckNames(ClientNumber client, const ChainSlice& chain) const {
  if (!clients_.at(client).administrator || chain.layout != 0) return CheckChain(client, chain);
  return chain.keys.size() <= kMaxKeys ? Status() : TooManyKeys();
}

Status Core::CheckChainOrSession(ClientNumber client, const ChainSlice& chain,
                                 const std::string& session) const {
  if (!chain.keys.empty()) return CheckNames(client, chain);
  if (session.empty()) return Status(Code::kInvalid, "neither chain.keys nor session is given");
  if (sessions_->Find(clients_.at(client).tenant, session) == nullptr) {
    return Status(Code::kNotFound, "no such session; name it with Hint() first");
  }
  return Status();
}

void Core::Hint(ClientNumber client, const SessionForecast& forecast, const Key& head) {
  if (!CheckChain(client, forecast.chain).ok()) return;
  Client& caller = clients_.at(client);
  const BlockName name{.tenant = caller.tenant,
                       .group = forecast.chain.group,
                       .part = forecast.chain.part,
                       .key = head};
  sessions_->Remember(forecast.session, name);
  if (caller.hints == options_.max_hints_per_client) return CountDroppedNotes(client, 1);
  ++caller.hints;
  HintJob* const job = Take<HintJob>(client, nullptr);
  job->Begin(forecast, name);
  job->Run();
}

void Core::ReportPrefill(ClientNumber client, const PrefillReport& report) {
  if (!clients_.HasLayout(client, report.layout)) return;
  costs_.prefill.Add(clients_.PrefillNameOf(client, clients_.LayoutOf(client, report.layout)),
                     {.tokens = report.tokens,
                      .context = report.context_tokens,
                      .elapsed_ms = report.milliseconds});
}

void Core::Stats(ClientNumber client, StatsRequest* request) {
  Client& caller = clients_.at(client);
  ++caller.requests;
  request->stats =
      caller.sees_all ? report_->StatsOfAll(caller.tenant) : report_->StatsOf(caller.tenant);
  scheduler_->Tell(client, request, 1, true);
}

void Core::RegisterLayout(ClientNumber client, RegisterLayoutRequest* request) {
  Client& caller = clients_.at(client);
  ++caller.requests;
  const Result<uint16_t> number = catalog_.Register(caller.tenant, request->layout);
  request->status = number.status();
  request->handle = 0;
  if (number.ok()) {
    bool had = false;
    request->handle = clients_.HandleOf(client, *number, &had);
    if (had) catalog_.Release(caller.tenant, *number);  // It holds it once, however often it asks.
  }
  scheduler_->Tell(client, request, 1, true);
}

void Core::Match(ClientNumber client, MatchRequest* request) {
  Status valid = CheckChain(client, request->chain);
  if (valid.ok() && request->have > request->chain.keys.size()) {
    valid = Status(Code::kInvalid, "have is more than there are keys");
  }
  Begin<MatchJob>(client, request, std::move(valid));
}

void Core::Fetch(ClientNumber client, FetchRequest* request) {
  Status valid = CheckChain(client, request->chain);
  if (valid.ok() && request->timeout_nanos <= 0) {
    valid = Status(Code::kInvalid, "timeout_nanos is not positive");
  }
  Begin<FetchJob>(client, request, std::move(valid));
}

void Core::Reserve(ClientNumber client, ReserveRequest* request) {
  Status valid = CheckChain(client, request->chain);
  if (valid.ok() && !request->engine_hashes.empty() &&
      request->engine_hashes.size() != request->chain.keys.size()) {
    valid = Status(Code::kInvalid, "engine_hashes is neither empty nor one for each key");
  }
  if (valid.ok() && uint64_t{request->position} + request->chain.keys.size() > UINT32_MAX) {
    valid = Status(Code::kInvalid, "position is too large");
  }
  Begin<ReserveJob>(client, request, std::move(valid));
}

void Core::Commit(ClientNumber client, CommitRequest* request) {
  Begin<CommitJob>(client, request,
                   request->ops.size() <= kMaxKeys
                       ? Status()
                       : Status(Code::kInvalid, "ops holds too many operations"));
}

void Core::Flush(ClientNumber client, FlushRequest* request) {
  Begin<FlushJob>(client, request,
                  request->timeout_nanos > 0
                      ? Status()
                      : Status(Code::kInvalid, "timeout_nanos is not positive"));
}

void Core::Pin(ClientNumber client, PinRequest* request) {
  Status valid = CheckNames(client, request->chain);
  if (valid.ok() && request->seconds < 0) valid = Status(Code::kInvalid, "seconds is negative");
  Begin<PinJob>(client, request, std::move(valid));
}

void Core::Prestage(ClientNumber client, PrestageRequest* request) {
  Status valid = CheckChainOrSession(client, request->chain, request->session);
  // A durable tier may know the session.
  const bool may_be_there = valid.code() == Code::kNotFound && durable_ != nullptr;
  if (may_be_there && durable_->notes_usable()) valid = Status();
  if (valid.ok() && request->timeout_nanos <= 0) {
    valid = Status(Code::kInvalid, "timeout_nanos is not positive");
  }
  Begin<PrestageJob>(client, request, std::move(valid));
}

void Core::Evict(ClientNumber client, EvictRequest* request) {
  request->evicted = 0;
  Status valid;
  if (!request->everything) {
    valid = CheckChainOrSession(client, request->chain, request->session);
  } else if (drives_->records().sweeping(clients_.at(client).tenant)) {
    valid = Status(Code::kBusy, "everything is being deleted already; wait for that");
  }
  Begin<EvictJob>(client, request, std::move(valid));
}

void Core::Drain(ClientNumber client, DrainRequest* request) {
  Begin<DrainJob>(client, request,
                  request->timeout_nanos > 0
                      ? Status()
                      : Status(Code::kInvalid, "timeout_nanos is not positive"));
}

}  // namespace aquifer
