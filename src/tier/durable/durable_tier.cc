#include "tier/durable/durable_tier.h"

#include <algorithm>
#include <utility>

#include "tier/durable/durable_tier_impl.h"

namespace aquifer {
DurableTierImpl::DurableTierImpl(const DurableTierOptions& options, BlobStore* store,
                                 Packer* packer, TierListener* listener, WorkerPool* workers,
                                 Executor* executor, Clock* clock, Random* random)
    : options_(options),
      store_(store),
      packer_(packer),
      listener_(listener),
      workers_(workers),
      executor_(executor),
      clock_(clock),
      random_(random),
      trips_(std::make_shared<StoreTrips>(store, executor)),
      scratch_(options.scratch_bytes) {}

DurableTierImpl::~DurableTierImpl() {
  alive_.reset();
  trips_->Close();
}

// A store that is not as it was configured shows at once, not with the first block.
void DurableTierImpl::Start() {
  Post([this] { ProbeStore(); });
  if (options_.sweep_interval_nanos > 0) ScheduleSweep(Jittered(options_.sweep_interval_nanos) / 2);
  if (packer_->seals()) Post([this] { SweepDeleted(); });
}

void DurableTierImpl::Post(Task task) {
  executor_->Post([alive = std::weak_ptr<bool>(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

void DurableTierImpl::PostAt(int64_t at_nanos, Task task) {
  executor_->PostAt(at_nanos, [alive = std::weak_ptr<bool>(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

void DurableTierImpl::RunOnWorker(Task work, Task then) {
  workers_->Run([work = std::move(work), then = std::move(then), executor = executor_,
                 alive = std::weak_ptr<bool>(alive_)] {
    work();
    executor->Post([then, alive] {
      if (!alive.expired()) then();
    });
  });
}

// ---- Batches ----

void DurableTierImpl::SettleRest(const Ledger::AnyBatch& batch, const Status& status) {
  std::visit(
      [&](const auto& one) {
        for (auto& state : one->states) {
          if (state.settled) continue;
          Settle(&state, status);
          // A completion comes later, as a task: the states stay.
          if (state.trip != nullptr) trips_->Cancel(*state.trip);
        }
      },
      batch);
  SchedulePump();
}

// A key that is being looked for is there soon. For one that could not be had nobody waits.
Status DurableTierImpl::WithoutKey(const TenantId& tenant) {
  ++counters_.without_key;
  return packer_->keys()->Missing(tenant)
             ? Status(Code::kUnavailable, "the tenant's data key cannot be had")
             : Status(Code::kBusy, "the tenant's data key is not known");
}

Status DurableTierImpl::TakeKey(const BlockId& id, DurableState* state) {
  if (!packer_->seals()) return Status();
  state->key = packer_->keys()->Known(id.tenant);
  return state->key != nullptr ? Status() : WithoutKey(id.tenant);
}

Status DurableTierImpl::TakeKey(const BlockId& id, DurableWrite* write) {
  if (!packer_->seals()) return Status();
  write->key = packer_->KeyOf(id.tenant);
  return write->key != nullptr ? Status() : WithoutKey(id.tenant);
}

bool DurableTierImpl::IsKeyless(const TenantId& tenant) const {
  return packer_->seals() && packer_->keys()->Known(tenant) == nullptr &&
         packer_->keys()->Generations(tenant).has_value();
}

// ---- At the store ----

std::shared_ptr<Trip> DurableTierImpl::NewTrip(BlobKind kind, std::string blob,
                                               int64_t deadline_nanos) {
  auto trip = std::make_shared<Trip>();
  trip->request.kind = kind;
  trip->request.name = std::move(blob);
  trip->request.deadline_nanos = deadline_nanos;
  if (kind == BlobKind::kRemove) return trip;
  trip->head = pages_.Take(kBlobHeadBytes);
  trip->request.head = trip->head.bytes().first(kBlobHeadBytes);
  return trip;
}

std::shared_ptr<Trip> DurableTierImpl::NewWriteTrip(const std::shared_ptr<PackedBlock>& packed,
                                                    std::string blob, int64_t deadline_nanos) {
  std::shared_ptr<Trip> trip = NewTrip(BlobKind::kWrite, std::move(blob), deadline_nanos);
  const PackJob& job = packed->job;
  BlobRequest& request = trip->request;
  trip->packed = packed;
  EncodeHead(job.meta, static_cast<uint64_t>(clock_->UnixMicros()),
             request.head.first<kBlobHeadBytes>());
  // A store only reads what it writes out.
  request.body = {const_cast<std::byte*>(job.stored.data()), job.stored.size()};
  request.body_bytes = job.meta.stored_bytes;
  request.expiry_unix_seconds = job.meta.expiry_unix_seconds;
  return trip;
}

void DurableTierImpl::Submit(const std::shared_ptr<Trip>& trip, StoreTrips::Done then) {
  trip->submitted_nanos = clock_->NowNanos();
  pace_.Begin(trip->submitted_nanos);
  silent_since_ = std::min(silent_since_, trip->submitted_nanos);
  trips_->Submit(trip, [this, then = std::move(then)](Trip& done) {
    OnAnswer(done);
    then(done);
  });
  outstanding_[trip->number] = trip.get();
  ArmStall();
}

Result<BlockMeta> DurableTierImpl::CheckHead(const Trip& trip, const BlockId& id,
                                             const DataKey* key) {
  Result<BlockMeta> meta = DecodeHead(trip.request.head.first<kBlobHeadBytes>());
  if (!meta.ok()) {
    ++counters_.corrupt_blobs;
    return meta;
  }
  if (meta->id != id) {
    ++counters_.refused_names;
    return Status(Code::kCorrupt, "its header names another block");
  }
  const DataKeyId expected = key != nullptr ? key->id : DataKeyId{};
  if (meta->data_key_id != expected) {
    ++counters_.refused_seals;
    return Status(Code::kCorrupt, "it is not sealed with the tenant's key");
  }
  if (trip.request.blob_bytes != kBlobHeadBytes + meta->stored_bytes) {
    ++counters_.corrupt_blobs;
    return Status(Code::kCorrupt, "it is not as long as its header says");
  }
  if (meta->expiry_unix_seconds != 0 && meta->expiry_unix_seconds <= clock_->UnixSeconds()) {
    ++counters_.blocks_expired;
    return Status(Code::kNotFound);
  }
  return meta;
}

void DurableTierImpl::Suspect(const BlockId& id) {
  constexpr size_t kMostSuspects = 4096;
  constexpr int64_t kFirstPauseNanos = 2'000'000'000;
  constexpr int64_t kMostPauseNanos = 600'000'000'000;
  if (suspects_.size() >= kMostSuspects) suspects_.erase(suspects_.begin());
  Suspicion& suspicion = suspects_[id];
  suspicion.pause_nanos = std::clamp(2 * suspicion.pause_nanos, kFirstPauseNanos, kMostPauseNanos);
  suspicion.until_nanos = clock_->NowNanos() + suspicion.pause_nanos;
}

bool DurableTierImpl::IsSuspect(const BlockId& id) const {
  const auto found = suspects_.find(id);
  return found != suspects_.end() && clock_->NowNanos() < found->second.until_nanos;
}

// ---- Asking ----

TierUsage DurableTierImpl::Usage() const {
  const BlobUsage usage = store_->Usage();
  return {.capacity_bytes = usage.capacity_bytes,
          .used_bytes = usage.used_bytes,
          .live_bytes = usage.used_bytes,
          .block_count = 0,  // Nobody knows.
          .queued_ops = ledger_.places_taken()};
}

std::vector<std::pair<std::string, uint64_t>> DurableTierImpl::Counters() const {
  const DurableCounters& c = counters_;
  return {{"blocks_read", c.blocks_read},
          {"bytes_read", c.bytes_read},
          {"blocks_missed", c.blocks_missed},
          {"blocks_expired", c.blocks_expired},
          {"blocks_written", c.blocks_written},
          {"bytes_written", c.bytes_written},
          {"raw_bytes_written", c.raw_bytes_written},
          {"blocks_smaller", c.blocks_smaller},
          {"blocks_there", c.blocks_there},
          {"blocks_overwritten", c.blocks_overwritten},
          {"looks", c.looks},
          {"corrupt_blobs", c.corrupt_blobs},
          {"refused_names", c.refused_names},
          {"refused_seals", c.refused_seals},
          {"corrupt_sources", c.corrupt_sources},
          {"without_key", c.without_key},
          {"late", c.late},
          {"busy", c.busy},
          {"failed", c.failed},
          {"times_left", c.times_left},
          {"probes", c.probes},
          {"sweeps", c.sweeps},
          {"swept_blobs", c.swept_blobs}};
}

Result<std::unique_ptr<DurableTier>> NewDurableTier(const DurableTierOptions& options,
                                                    BlobStore* store, Packer* packer,
                                                    TierListener* listener, WorkerPool* workers,
                                                    Executor* executor, Clock* clock,
                                                    Random* random) {
  if (options.max_queued_ops == 0) return Status(Code::kInvalid, "max_queued_ops is zero");
  if (options.failures_to_leave == 0) return Status(Code::kInvalid, "failures_to_leave is zero");
  if (options.probe_interval_nanos <= 0 || options.stall_nanos <= 0) {
    return Status(Code::kInvalid, "probe_interval_nanos and stall_nanos must be positive");
  }
  auto tier = std::make_unique<DurableTierImpl>(options, store, packer, listener, workers, executor,
                                                clock, random);
  tier->Start();
  return std::unique_ptr<DurableTier>(std::move(tier));
}

}  // namespace aquifer
