#include "cache/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/planted_bug.h"
#include "cache/jobs.h"
#include "policy/eviction/leaf_recency.h"
#include "policy/eviction/learned_order.h"

namespace aquifer {
namespace {

constexpr size_t kExpirySlice = 2048;
constexpr size_t kDropSlice = 64;
constexpr size_t kPinExpirySlice = 256;
constexpr size_t kReturnSlice = 256;
constexpr size_t kJobSlice = 64;
constexpr int64_t kRenewNanos = 10'000'000'000;
constexpr uint64_t kMinDriveBytes = uint64_t{1} << 20;
// Entries of the index and of the two eviction orders are committed as they are used, their table
// of 7 bytes a block at the start. Room for blocks of 32 KiB there is always, for smaller ones as
// long as what might be committed is an eighth of the pool; past that the coldest blocks go.
constexpr uint64_t kBytesPerIndexedBlock = uint64_t{32} << 10;
constexpr uint64_t kIndexBytesPerBlock = 184;
constexpr uint64_t kIndexShareOfPool = 8;

TenantOptions OptionsOf(const std::vector<TenantOptions>& tenants, std::string_view name) {
  for (const TenantOptions& tenant : tenants) {
    if (tenant.name == name) return tenant;
  }
  return TenantOptions{};
}

Status CheckTenants(const std::vector<TenantOptions>& tenants) {
  std::set<std::string_view> names;
  for (const TenantOptions& tenant : tenants) {
    if (!names.insert(tenant.name).second) {
      return Status(Code::kInvalid,
                    fmt::format("tenant {} is there twice: give each once", tenant.name));
    }
    if (tenant.name.empty() || tenant.name.size() > 64) {
      return Status(Code::kInvalid, "a tenant's name is not 1 to 64 bytes long");
    }
    if (tenant.priority < kLeastPriority || tenant.priority > kMostPriority) {
      return Status(Code::kInvalid, "priority of tenant " + tenant.name + " is not -8 to 7");
    }
    if (tenant.ttl_seconds < 0) {
      return Status(Code::kInvalid, "ttl_seconds of tenant " + tenant.name +
                                        " is negative: give 0 for blocks that do not expire");
    }
  }
  return Status();
}

TenantQuota DramQuotaOf(const TenantOptions& tenant) {
  return {.floor_bytes = tenant.dram_floor_bytes, .ceiling_bytes = tenant.dram_ceiling_bytes};
}

TenantQuota NvmeQuotaOf(const TenantOptions& tenant) {
  return {.floor_bytes = tenant.nvme_floor_bytes, .ceiling_bytes = tenant.nvme_ceiling_bytes};
}

// Whether they fit beside each other.
Status CheckQuotas(const std::vector<TenantOptions>& tenants, Quota dram, Quota nvme) {
  uint16_t number = 0;
  for (const TenantOptions& tenant : tenants) {
    AQ_RETURN_IF_ERROR(dram.SetTenant(number, DramQuotaOf(tenant)));
    AQ_RETURN_IF_ERROR(nvme.SetTenant(number, NvmeQuotaOf(tenant)));
    ++number;
  }
  return Status();
}

Status CheckOptions(const CoreOptions& options) {
  const CacheOptions& cache = options.cache;
  if (cache.dram_bytes < options.extent_bytes) {
    return Status(Code::kInvalid, fmt::format("dram_bytes is {}: give at least one extent, {}",
                                              cache.dram_bytes, options.extent_bytes));
  }
  if (cache.worker_threads == 0 || cache.worker_threads > kMaxWorkerThreads) {
    return Status(Code::kInvalid, fmt::format("worker_threads is {}: give 1 to {}",
                                              cache.worker_threads, kMaxWorkerThreads));
  }
  if (cache.overdue_nanos <= 0) {
    return Status(Code::kInvalid, "overdue_nanos is not positive: give a time, such as 60 s");
  }
  if (cache.assumed_prefill_ms_per_token < 0) {
    return Status(Code::kInvalid, "assumed_prefill_ms_per_token is negative: give 0 for none");
  }
  if (!cache.nvme_directories.empty() &&
      cache.nvme_bytes < cache.nvme_directories.size() * kMinDriveBytes) {
    return Status(Code::kInvalid,
                  fmt::format("nvme_bytes is {}: give at least {} for each of {} directories",
                              cache.nvme_bytes, kMinDriveBytes, cache.nvme_directories.size()));
  }
  // Two names of one directory are found by its lock.
  std::set<std::string_view> directories;
  for (std::string_view directory : cache.nvme_directories) {
    while (directory.size() > 1 && directory.ends_with('/')) directory.remove_suffix(1);
    if (!directories.insert(directory).second) {
      return Status(Code::kInvalid,
                    fmt::format("nvme_directories has {} twice: give each once", directory));
    }
  }
  if (cache.nvme_segment_bytes % kPageBytes != 0) {
    return Status(Code::kInvalid,
                  "nvme_segment_bytes is not a multiple of 4096: round it, or give 0");
  }
  if (!(cache.nvme_written_part > 0) || cache.nvme_written_part > 1) {
    return Status(Code::kInvalid,
                  "nvme_written_part is not above 0 and at most 1: give 1 for all blocks");
  }
  if (cache.nvme_written_part < 1 && cache.eviction == EvictionPolicy::kLru) {
    return Status(Code::kInvalid,
                  "nvme_written_part needs eviction kLearned: LRU does not know which blocks are "
                  "likely to be asked for again; give 1, or write_bytes_per_second");
  }
  return CheckTenants(cache.tenants);
}

uint32_t BlocksToIndex(const CoreOptions& options) {
  if (options.max_blocks != 0) return options.max_blocks;
  const CacheOptions& cache = options.cache;
  const uint64_t bytes = cache.dram_bytes + (cache.nvme_directories.empty() ? 0 : cache.nvme_bytes);
  const uint64_t affordable = cache.dram_bytes / kIndexShareOfPool / kIndexBytesPerBlock;
  const uint64_t wanted =
      std::max(bytes / kBytesPerIndexedBlock, std::min(bytes / kPageBytes, affordable));
  return static_cast<uint32_t>(std::min<uint64_t>(wanted + 65'536, 1u << 30));
}

// A second's worth at once, so that it is a cap over any time that matters to a drive.
WriteBudgetOptions BudgetOf(const CacheOptions& options) {
  WriteBudgetOptions budget;
  budget.bytes_per_second = options.write_bytes_per_second;
  budget.burst_bytes = std::min(budget.burst_bytes, std::max<uint64_t>(budget.bytes_per_second, 1));
  return budget;
}

WorthOptions WorthOf(const CacheOptions& options) {
  WorthOptions worth;
  if (options.assumed_prefill_ms_per_token > 0) {
    worth.default_prefill_tokens_per_second = 1e3 / options.assumed_prefill_ms_per_token;
  }
  return worth;
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
      nvme_speed_(TierSpeedOptions{}),
      prefill_(PrefillModelsOptions{}),
      worth_(WorthOf(options.cache)),
      spare_jobs_(kJobKinds) {}

Core::~Core() {
  *alive_ = false;
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
  const CacheOptions& cache = options_.cache;
  AQ_ASSIGN_OR_RETURN(dram_, NewDramTier({.capacity_bytes = cache.dram_bytes,
                                          .extent_bytes = options_.extent_bytes,
                                          .keep_available_bytes = cache.keep_available_bytes,
                                          .ready_extents = options_.ready_extents,
                                          .hash_seed = environment_.random->Next64()},
                                         environment_.extents, environment_.workers,
                                         environment_.owner, environment_.clock));
  dram_->on_wanted_back = [this](uint32_t extent) {
    residency_->Withhold(extent);
    if (on_extent_wanted) on_extent_wanted(extent);
  };
  dram_->on_returned = [this](uint32_t extent) { residency_->EndWithholding(extent); };
  dram_->on_extent = [this](std::span<std::byte> bytes, bool added) {
    if (added) {
      extents_.push_back(bytes);
    } else {
      std::erase_if(extents_, [bytes](auto known) { return known.data() == bytes.data(); });
    }
    for (const auto& disk : disks_) added ? disk->Remember(bytes) : disk->Forget(bytes);
  };

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
                     .prefill = &prefill_,
                     .index = *std::move(index),
                     .dram_order = std::move(dram_order),
                     .nvme_order = std::move(nvme_order),
                     .dram_quota = std::move(dram_quota),
                     .nvme_quota = std::move(nvme_quota),
                     .extent_bytes = options_.extent_bytes,
                     .name_seed = environment_.random->Next64(),
                     .lasting_tiers = DurableTiers::LastingBits(environment_.durable_tiers)});
  residency_->SetReload(nvme_speed_.Cost(environment_.clock->NowNanos()));
  AQ_RETURN_IF_ERROR(SetTenants(cache.tenants));
  loader_ = std::make_unique<Loader>(residency_.get(), &nvme_speed_, environment_.owner,
                                     environment_.clock, cache.dram_bytes / 4);
  eraser_ = std::make_unique<Eraser>(
      EraserOptions{.enabled = nvme_bytes != 0,
                    .max_remembered = options_.max_deletions_remembered,
                    .max_remembered_per_tenant = options_.max_deletions_remembered_per_tenant},
      environment_.owner, environment_.clock);
  residency_->on_erase = [this](const BlockId& id, Leave why) {
    // An older record, on a drive that has not been read, may have been given more time.
    if (why == Leave::kExpired && !nvme_known()) {
      std::ignore = eraser_->AddForGood(id);
    } else {
      eraser_->Add(id);
    }
  };
  residency_->checksum_on_nvme = [this](const BlockId& id) {
    const auto meta = nvme_ == nullptr ? std::nullopt : nvme_->MetaOf(id);
    return meta ? std::optional(meta->checksum) : std::nullopt;
  };
  write_down_ = std::make_unique<WriteDown>(
      WriteDownSettings{.enabled = nvme_bytes != 0,
                        .budget = BudgetOf(cache),
                        .admission = {.written_part = cache.nvme_written_part},
                        .max_held_bytes = cache.dram_bytes / 2},
      residency_.get(), eraser_.get(), environment_.owner, environment_.clock);
  catalog_.on_forgotten = [this](uint16_t layout) { prefill_.ForgetLayout(layout); };
  // Read by the next tick.
  write_down_->load = [this](BlockRef ref) {
    loader_->Load(ref, DeadlineIn(kRenewNanos, environment_.clock->NowNanos()), {.waiter = this});
  };
  write_down_->on_older_left = [this](const BlockName& name) {
    found_busy_.insert(name);
    TakeOverBusy(name);
  };
  eraser_->on_erased = [this] { write_down_->Pump(); };
  AQ_RETURN_IF_ERROR(BuildDurable());
  return nvme_bytes == 0 ? Status() : BuildNvme();
}

void Core::Start(std::function<void(Status)> on_ready) {
  on_ready_ = std::move(on_ready);
  dram_->Tick();
  TickIn(options_.tick_nanos);
  if (options_.cache.nvme_directories.empty()) {
    std::exchange(on_ready_, nullptr)(Status());
    return;
  }
  {
    const MutexLock lock(&openings_->mutex);
    openings_->owner = environment_.owner;
  }
  for (size_t drive = 0; drive < disks_.size(); ++drive) {
    unanswered_.insert(drive);
    OpenDrive(drive);
  }
  environment_.owner->PostAt(environment_.clock->NowNanos() + options_.open_wait_nanos,
                             [this, alive = alive_] {
                               if (*alive) RecoverNvme();
                             });
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
  environment_.owner->PostAt(environment_.clock->NowNanos() + nanos,
                             [this, number = ++tick_number_, alive = alive_] {
                               if (*alive && number == tick_number_) Tick();
                             });
}

int64_t Core::NanosToTick(bool worked) {
  const bool asked = std::exchange(run_at_tick_, next_run_) != next_run_;
  const bool waits = running_jobs_ > 0 || loader_->pending() > 0 || eraser_->pending() > 0 ||
                     write_down_->waiting() > 0 || (durable_ != nullptr && !durable_->idle());
  const int64_t longest = std::min(options_.idle_tick_nanos, dram_->EaseNanos());
  resting_ = !worked && !asked && !waits && longest > options_.tick_nanos;
  return resting_ ? longest : options_.tick_nanos;
}

void Core::Tick() {
  if (dram_->Tick() > 0) residency_->ReclaimExtent(UINT16_MAX);
  // What is looked at seldom is looked at more of at a time.
  const bool expired = residency_->DropExpired(resting_ ? 4 * kExpirySlice : kExpirySlice);
  const bool unpinned = residency_->ExpirePins(kPinExpirySlice);
  const bool overdue = LookForOverdue();
  if (nvme_ != nullptr) residency_->SetReload(nvme_speed_.Cost(environment_.clock->NowNanos()));
  eraser_->Pump();
  write_down_->Pump();
  if (loader_->pending() > 0) loader_->Pump();
  if (durable_ != nullptr) durable_->Tick();
  Housekeep();
  TickIn(NanosToTick(expired || unpinned || overdue));
}

// What was begun and is too long for one task.
void Core::Housekeep() {
  if (housekeeping_) return;
  const bool more_orphans = residency_->DropOrphans(kDropSlice);
  const bool more_reclaim = residency_->ContinueReclaim(kDropSlice);
  const bool more_jobs = DropJobs(kJobSlice);
  // With its loans a client's number is free for another; its jobs still count by it.
  const bool more_loans = more_jobs || ReturnLoans(kReturnSlice);
  const bool more_void = VoidReservations(kReturnSlice);
  eraser_->Pump();
  if (!more_orphans && !more_reclaim && !more_loans && !more_void) return;
  housekeeping_ = true;
  environment_.owner->Post([this, alive = alive_] {
    if (!*alive) return;
    housekeeping_ = false;
    Housekeep();
  });
}

// --- Clients

Result<ClientNumber> Core::Attach(const ClientOptions& options, ClientSink* sink, bool sees_all) {
  if (options.tenant.empty() || options.tenant.size() > 64) {
    return Status(Code::kInvalid, "tenant is not 1 to 64 bytes long");
  }
  AQ_ASSIGN_OR_RETURN(const uint16_t tenant,
                      catalog_.Tenant(options.tenant, OptionsOf(tenants_, options.tenant)));
  std::string engine = options.engine;
  if (engine.empty()) engine = fmt::format("{}#{}", '\0', next_nameless_++);  // Nobody's name.
  // Engines of two tenants are different engines, whatever they call themselves.
  engine = options.tenant + '\0' + engine;
  Engine& known = engines_[engine];
  if (known.clients++ == 0) known.number = next_engine_++;
  auto free = std::find_if(clients_.begin(), clients_.end(), [](const Client& client) {
    return !client.attached && !client.leaving;
  });
  if (free == clients_.end()) free = clients_.emplace(clients_.end());
  *free = Client{};
  free->attached = true;
  free->sees_all = sees_all;
  free->tenant = tenant;
  if (counters_of_.size() <= tenant) counters_of_.resize(size_t{tenant} + 1);
  free->engine = known.number;
  free->engine_name = std::move(engine);
  free->sink = sink;
  free->first_generation = static_cast<uint32_t>(environment_.random->Next64());
  const auto number = static_cast<ClientNumber>(free - clients_.begin());
  write_down_->AddClient(number, tenant);
  if (durable_ != nullptr) durable_->AddClient(number, tenant);
  return number;
}

Result<ClientNumber> Core::AttachAdministrator(const ClientOptions& options, ClientSink* sink) {
  AQ_ASSIGN_OR_RETURN(const ClientNumber client, Attach(options, sink));
  clients_[client].administrator = true;
  return client;
}

void Core::Disconnect(ClientNumber client) {
  GiveUpJobs(client);
  clients_[client].sink = &nobody_;
  clients_[client].void_next = clients_[client].first_loan;
  disconnected_.push_back(client);
  if (loader_->pending() > 0) loader_->Pump();
  Housekeep();
}

void Core::Detach(ClientNumber client, std::function<void()> on_done) {
  GiveUpJobs(client);
  std::erase(disconnected_, client);
  if (const auto engine = engines_.find(clients_[client].engine_name);
      --engine->second.clients == 0) {
    prefill_.Forget(engine->second.number);
    engines_.erase(engine);
  }
  for (const uint16_t layout : clients_[client].layouts) {
    catalog_.Release(clients_[client].tenant, layout);
  }
  clients_[client].attached = false;
  clients_[client].leaving = true;
  leaving_.push_back({client, std::move(on_done)});
  if (loader_->pending() > 0) loader_->Pump();
  Housekeep();
}

// --- Memory lent to other processes

SlotPlace Core::PlaceOf(ClientNumber client, uint64_t id, bool reservation) {
  const Loan* const loan = FindLoan(client, id, reservation);
  if (loan == nullptr || (loan->ref == kNoBlock && loan->refill == 0)) return {};
  return dram_->PlaceOf(SlotOf(*loan));
}

ExtentInfo Core::OfferExtent(uint32_t extent) {
  dram_->AddMapper(extent);
  return dram_->ExtentOf(extent);
}

}  // namespace aquifer
