// The durable tier's own class: what durable_tier.cc (batches, asking), durable_operations.cc
// (reading, looking, writing, erasing), durable_health.cc (leaving and coming back) and
// durable_chores.cc (notes, sweeping, erasing all) share. Nothing else includes it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tier/batch_ledger.h"
#include "tier/durable/durable_format.h"
#include "tier/durable/durable_tier.h"
#include "tier/durable/store_trips.h"
#include "tier/packing/scratch_pool.h"
#include "tier/packing/store_pace.h"
#include "tier/pending_batch.h"

namespace aquifer {

// What all operations have: PendingBatch's part, and the request that is at the store.
struct DurableState {
  size_t index = 0;
  bool settled = false;
  bool touched = false;  // The caller's memory, by the store or a worker.
  bool counted = false;  // In the bound on queued operations.
  SharedDataKey key;     // Null: nothing is sealed.
  std::shared_ptr<Trip> trip;
};

struct DurableRead : DurableState {
  PendingBatch<ReadOp, DurableRead>* batch = nullptr;
};

struct DurableLook : DurableState {
  PendingBatch<LookOp, DurableLook>* batch = nullptr;
};

struct DurableWrite : DurableState {
  PendingBatch<WriteOp, DurableWrite>* batch = nullptr;
  BlockMeta meta;
  bool replace = false;
  std::shared_ptr<PackedBlock> packed;
};

struct DurableErase : DurableState {
  PendingBatch<EraseOp, DurableErase>* batch = nullptr;
  BlockId id;
};

struct DurableCounters {
  uint64_t blocks_read = 0;
  uint64_t bytes_read = 0;
  uint64_t blocks_missed = 0;
  uint64_t blocks_expired = 0;  // Found when they were asked for.
  uint64_t blocks_written = 0;
  uint64_t bytes_written = 0;  // As they were stored.
  uint64_t raw_bytes_written = 0;
  uint64_t blocks_smaller = 0;      // By the codec.
  uint64_t blocks_there = 0;        // Already, by us or by another node.
  uint64_t blocks_overwritten = 0;  // Were there, and damaged or about to expire.
  uint64_t looks = 0;
  uint64_t corrupt_blobs = 0;
  uint64_t refused_names = 0;  // A header that names another block.
  uint64_t refused_seals = 0;  // Sealed by another key, changed, or not sealed at all.
  uint64_t corrupt_sources = 0;
  uint64_t without_key = 0;
  uint64_t late = 0;
  uint64_t busy = 0;
  uint64_t failed = 0;
  uint64_t times_left = 0;
  uint64_t probes = 0;
  uint64_t sweeps = 0;
  uint64_t swept_blobs = 0;
};

class DurableTierImpl final : public DurableTier {
 public:
  DurableTierImpl(const DurableTierOptions& options, BlobStore* store, Packer* packer,
                  TierListener* listener, WorkerPool* workers, Executor* executor, Clock* clock,
                  Random* random);
  ~DurableTierImpl() override;

  void Start();

  // ---- DurableTier ----

  const std::string& name() const override { return options_.name; }
  Status why() const override { return why_; }
  void Look(Batch<LookOp>* batch) override;
  void PutNote(const TenantId& tenant, std::string name, std::vector<std::byte> value,
               int64_t expiry_unix_seconds, std::function<void(Status)> on_done) override;
  void GetNote(const TenantId& tenant, std::string name,
               std::function<void(Result<std::vector<std::byte>>)> on_done) override;
  void EraseAll(const TenantId& tenant, std::function<void(Status)> on_done) override;
  size_t unswept_tenants() const override;

  // ---- Tier ----

  void Read(Batch<ReadOp>* batch) override;
  void Write(Batch<WriteOp>* batch) override;
  void Erase(Batch<EraseOp>* batch) override;
  Status Probe(const BlockId&) const override { return Status(Code::kBusy); }
  TierUsage Usage() const override;
  bool in_service() const override { return in_service_; }
  std::vector<std::pair<std::string, uint64_t>> Counters() const override;

 private:
  using ReadBatch = PendingBatch<ReadOp, DurableRead>;
  using LookBatch = PendingBatch<LookOp, DurableLook>;
  using WriteBatch = PendingBatch<WriteOp, DurableWrite>;
  using EraseBatch = PendingBatch<EraseOp, DurableErase>;
  using Ledger = BatchLedger<ReadBatch, LookBatch, WriteBatch, EraseBatch>;
  // What changes a block at the store: one at a time, in the order in which they came.
  using Change = std::variant<DurableWrite*, DurableErase*>;
  struct Entered {
    Change change;
    uint64_t number = 0;  // Rises.
  };

  struct Note;
  struct Erasure;

  // ---- Batches (durable_tier.cc) ----

  // A task on the executor that does nothing when the tier is gone.
  void Post(Task task);
  void PostAt(int64_t at_nanos, Task task);
  // `work` on a worker, where it may outlive the tier; then `then` on the executor.
  void RunOnWorker(Task work, Task then);
  template <class State>
  void Settle(State* state, Status status);
  template <class State>
  void Retire(State* state) {
    ledger_.Retire(state);
  }
  // Whether the operation can begin at all; takes its key and its place in the queue.
  template <class State>
  Status Admit(const BlockId& id, State* state);
  // Only who writes makes a key where there is none.
  Status TakeKey(const BlockId& id, DurableState* state);
  Status TakeKey(const BlockId& id, DurableWrite* write);
  Status WithoutKey(const TenantId& tenant);
  // The tenant is known to have no key: so it has no block that can be named.
  bool IsKeyless(const TenantId& tenant) const;
  // Settles what is not yet, and cancels it at the store.
  void SettleRest(const Ledger::AnyBatch& batch, const Status& status);

  // ---- At the store ----

  std::shared_ptr<Trip> NewTrip(BlobKind kind, std::string blob, int64_t deadline_nanos);
  std::shared_ptr<Trip> NewWriteTrip(const std::shared_ptr<PackedBlock>& packed, std::string blob,
                                     int64_t deadline_nanos);
  void Submit(const std::shared_ptr<Trip>& trip, StoreTrips::Done then);
  // The header of what came back, if it is what `id` says, sealed by `key`, whole and not expired.
  Result<BlockMeta> CheckHead(const Trip& trip, const BlockId& id, const DataKey* key);
  void Suspect(const BlockId& id);
  bool IsSuspect(const BlockId& id) const;

  // ---- Operations (durable_operations.cc) ----

  void StartRead(DurableRead* read);
  void OnRead(DurableRead* read, const Trip& trip);
  void OnMisfit(DurableRead* read, const Trip& trip);
  void OnUnpacked(DurableRead* read, const UnpackJob& job);
  void FinishRead(DurableRead* read, Status status);

  void OnLooked(DurableLook* look, const Trip& trip);

  Status CheckWrite(const WriteOp& op) const;
  void BeginWrite(DurableWrite* write);
  void RunPack(DurableWrite* write);
  void OnPacked(DurableWrite* write);
  void SubmitWrite(DurableWrite* write, bool if_absent);
  void OnWritten(DurableWrite* write, const Trip& trip);
  void OnDamaged(DurableWrite* write, const BlobRequest& request);
  void OnExisting(DurableWrite* write, const Trip& trip);
  void FinishWrite(DurableWrite* write, Status status);
  void SchedulePump();
  void Pump();

  void BeginErase(DurableErase* erase);
  void FinishErase(DurableErase* erase, Status status);

  void Enter(const BlockId& id, Change change);
  void Begin(Change change);
  // The front one of the block's changes is done.
  void Leave(const BlockId& id);

  // ---- Health (durable_health.cc) ----

  void OnAnswer(const Trip& trip);
  void ArmStall();
  void CheckStall();
  int64_t Allowance(const Trip& trip) const;
  void LeaveService(const Status& why);
  void AskStore(StoreTrips::Done then);
  // Something failed that may fail at a store that is well: it is asked for something else.
  void DoubtStore();
  void ProbeStore();
  void OnProbed(const Trip& trip);
  int64_t Jittered(int64_t nanos);

  // ---- Chores (durable_chores.cc) ----

  Result<std::shared_ptr<Note>> NewNote(const TenantId& tenant, const std::string& name,
                                        SharedDataKey key);
  void WriteNote(const std::shared_ptr<Note>& note);
  void OpenNote(const std::shared_ptr<Note>& note, const Trip& trip);
  void ScheduleSweep(int64_t after_nanos);
  void SweepSome();
  void ListForSweep();
  bool IsOrphan(const std::string& blob) const;
  void LookForSweep(const std::string& blob);
  void RemoveForSweep(const std::string& blob, const std::string& version);
  void EndSweep();
  bool IsChanging(const TenantId& tenant, uint64_t before) const;
  // How the names of a tenant's blobs begin; none: it is not known yet.
  std::optional<std::vector<std::string>> GenerationsOf(const TenantId& tenant) const;
  void AwaitChanges(const std::shared_ptr<Erasure>& erasure);
  void ListToErase(const std::shared_ptr<Erasure>& erasure);
  void OnListedToErase(const std::shared_ptr<Erasure>& erasure,
                       const Result<BlobStore::Names>& names);
  void EraseListed(const std::shared_ptr<Erasure>& erasure);
  void EndListed(const std::shared_ptr<Erasure>& erasure);
  void SweepDeleted();
  void OnSwept(const std::string& generation);
  void SweepLater(const std::string& generation);
  void SweepAllSoon();

  const DurableTierOptions options_;
  BlobStore* const store_;
  Packer* const packer_;
  TierListener* const listener_;
  WorkerPool* const workers_;
  Executor* const executor_;
  Clock* const clock_;
  Random* const random_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  const std::shared_ptr<StoreTrips> trips_;
  // Heads and notes: bounded by the queue, and by the sweep's and erasures' own limits.
  ScratchPool pages_{UINT64_MAX};
  ScratchPool scratch_;
  DurableCounters counters_;
  StorePace pace_;

  static constexpr int64_t kArmAheadNanos = 1'000'000'000;
  Ledger ledger_{executor_, clock_, kArmAheadNanos,
                 [this](const Ledger::AnyBatch& batch) { SettleRest(batch, Status(Code::kLate)); }};

  std::map<BlockId, std::deque<Entered>> changes_;
  uint64_t next_change_ = 1;
  std::deque<DurableWrite*> waiting_;  // For scratch memory.
  bool pump_scheduled_ = false;
  // Read and found damaged: the next write replaces them, and for a while they are not there for
  // Look(). Not for ever, since it may have been the way and not the store.
  struct Suspicion {
    int64_t pause_nanos = 0;
    int64_t until_nanos = 0;
  };
  std::map<BlockId, Suspicion> suspects_;

  bool in_service_ = true;
  Status why_;
  std::map<uint64_t, const Trip*> outstanding_;  // By number: the oldest first.
  uint32_t failures_ = 0;                        // In a row; removals do not count.
  uint32_t lates_ = 0;                           // Since the last answer.
  int64_t silent_since_ = INT64_MAX;             // When the first one after that was asked.
  bool stall_armed_ = false;
  int64_t probe_after_nanos_ = 0;
  bool doubted_ = false;  // DoubtStore() has asked.

  // What a destroyed key has sealed, by the generation in its names. One for each tenant that was
  // ever deleted, some hundred bytes each, as marks of destroyed keys stay (docs/formats/keys.md).
  struct Remains {
    int times_swept = 0;      // When all that there was went.
    int64_t due_nanos = 0;    // The next one.
    int64_t pause_nanos = 0;  // The last one's, where something could not be removed.
  };
  std::map<std::string, Remains> remains_;
  bool sweeping_deleted_ = false;

  std::deque<std::string> to_sweep_;
  std::string swept_to_;
  bool listing_ = false;
  bool listed_all_ = false;
  uint32_t sweep_requests_ = 0;
};

template <class State>
void DurableTierImpl::Settle(State* state, Status status) {
  if (!state->settled && status.code() == Code::kLate) ++counters_.late;
  ledger_.Settle(state, std::move(status));
}

template <class State>
Status DurableTierImpl::Admit(const BlockId& id, State* state) {
  if (state->batch->batch->deadline_nanos <= clock_->NowNanos()) return Status(Code::kLate);
  if (!in_service_) return why_;
  AQ_RETURN_IF_ERROR(TakeKey(id, state));
  if (ledger_.TakePlace(state, options_.max_queued_ops)) return Status();
  ++counters_.busy;
  return Status(Code::kBusy);
}

}  // namespace aquifer
