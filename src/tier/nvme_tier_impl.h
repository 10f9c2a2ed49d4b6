// The NVMe tier's own class: what nvme_tier.cc (batches, starting, asking) and nvme_operations.cc
// (reading, writing, erasing) share. Nothing else includes it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "aquifer/checksum.h"
#include "tier/nvme_batch.h"
#include "tier/nvme_drive.h"
#include "tier/nvme_tier.h"

namespace aquifer {

// Checksums of several blocks, made on a worker.
struct Verification {
  struct Item {
    std::span<const std::byte> bytes;
    Checksum expected;
    bool good = false;
    Status touch;  // Whether the memory could be touched at all.
  };

  void Run();

  std::vector<Item> items;
  uint64_t bytes = 0;
};

// Owns the callers' batches and hands the work to the drives. Everything runs on the executor.
class NvmeTierImpl final : public NvmeTier, public NvmeDrive::Owner {
 public:
  NvmeTierImpl(NvmeShared shared, std::vector<Disk*> disks, TierListener* listener)
      : shared_(std::move(shared)), listener_(listener) {
    const uint64_t capacity = shared_.options.capacity_bytes / disks.size();
    for (uint32_t i = 0; i < disks.size(); ++i) {
      drives_.push_back(std::make_unique<NvmeDrive>(i, capacity, disks[i], &shared_, this));
    }
  }

  ~NvmeTierImpl() override { shared_.alive.reset(); }

  // ---- NvmeTier ----

  void Recover(std::function<void(Status)> on_done) override;
  const NvmeRecovery& recovery() const override { return shared_.recovery; }
  std::vector<NvmeDriveState> Drives() const override;
  bool AllRead() const override {
    return announcing_ == 0 && std::all_of(drives_.begin(), drives_.end(),
                                           [](const auto& drive) { return drive->announced(); });
  }
  void EnumerateInSlices(std::function<void(const BlockMeta&)> visit,
                         std::function<void()> on_done) override;

  // ---- Tier ----

  void Read(Batch<ReadOp>* batch) override;
  void Write(Batch<WriteOp>* batch) override;
  void Erase(Batch<EraseOp>* batch) override;
  void Cancel(Batch<ReadOp>* batch) override { CancelBatch(batch); }
  void Cancel(Batch<WriteOp>* batch) override { CancelBatch(batch); }

  // A write is acknowledged only when it survives what it should; nothing is left to do.
  void Flush(std::function<void(Status)> on_done) override {
    shared_.executor->Post([on_done = std::move(on_done)] { on_done(Status()); });
  }

  void Enumerate(const std::function<void(const BlockMeta&)>& visit) const override;
  Status Probe(const BlockId& id) const override;
  uint32_t DeviceOf(const BlockId& id) const override;
  TierUsage Usage() const override;
  bool in_service() const override {
    return std::any_of(drives_.begin(), drives_.end(),
                       [](const auto& drive) { return drive->in_service(); });
  }
  std::vector<std::pair<std::string, uint64_t>> Counters() const override;

  // ---- NvmeDrive::Owner ----

  void OnDriveChanged(NvmeDrive*) override { SchedulePump(); }
  void OnDriveOut(NvmeDrive* drive) override;
  void OnLost(std::vector<BlockId> ids, Code why) override;
  void OnFound(NvmeDrive*) override {
    if (listener_ == nullptr) return;
    ++announcing_;
    shared_.Post([this] {
      --announcing_;
      listener_->OnFound();
    });
  }
  std::unique_ptr<ReclaimChoice> ChooseForReclaim() override {
    return listener_ == nullptr ? nullptr : listener_->OnReclaim();
  }
  bool MayDrop(const BlockId& id) override {
    return listener_ == nullptr || listener_->MayDrop(id);
  }
  void OnMoveBegins(const BlockId& id) override { ++pending_[id].moves; }
  void OnMoveEnds(const BlockId& id) override;
  void OnRewritten(uint64_t bytes) override {
    if (listener_ != nullptr) listener_->OnRewritten(bytes);
  }
  NvmeDrive* Drive(uint32_t number) override { return drives_[number].get(); }

  // ---- PendingWrite ----

  void OnWriteTaken(PendingWrite* write);
  void OnWriteUntouched(PendingWrite* write) { write->batch->Untouch(write, shared_.executor); }
  void OnWriteAppended(PendingWrite* write, const Status& status);
  void ResolveWrite(PendingWrite* write, const Status& status);

 private:
  // What is under way for one block.
  struct Pending {
    PendingWrite* leader = nullptr;  // Writes it.
    // Hang at a drive that was given up: the next leader writes it elsewhere. Their sequences are
    // lower, so that the next one's record counts also after a restart.
    std::vector<PendingWrite*> given_up;
    uint32_t moves = 0;     // Reclaims that rewrite it: its drive's, and the last one's.
    bool replaced = false;  // The leader is written, and waits for the moves to end.
    std::vector<PendingWrite*> followers;  // Want it written too, and wait for the leader.
    std::vector<PendingErase*> erases;     // Wait until nothing writes it any more.
  };

  using AnyBatch = std::variant<std::unique_ptr<ReadBatch>, std::unique_ptr<WriteBatch>,
                                std::unique_ptr<EraseBatch>>;

  // An enumeration under way.
  struct Enumeration {
    std::function<void(const BlockMeta&)> visit;
    std::function<void()> on_done;
    std::vector<NvmeIndex::OrderKey> order;
    size_t cursor = 0;
  };

  void CollectSlice(const std::shared_ptr<Enumeration>& enumeration);
  void VisitSlice(const std::shared_ptr<Enumeration>& enumeration);
  bool Visible(NvmeIndex::EntryId entry) const;

  template <class PendingBatchType>
  PendingBatchType* NewBatch(Batch<typename PendingBatchType::OpType>* batch);
  template <class State>
  void Settle(State* state, Status status);
  template <class State>
  void Retire(State* state);
  template <class State>
  void Reject(State* state, Status status) {
    Settle(state, std::move(status));
    Retire(state);
  }
  template <class State>
  bool Admit(State* state);

  template <class Op>
  void CancelBatch(Batch<Op>* batch);
  void SettleLate(uint64_t id);
  void ArmDeadline();

  // Reads.
  bool PrepareRead(PendingRead* read, ReadOp* op);
  void SubmitReads(uint32_t drive, std::vector<PendingRead*> reads);
  void OnReadsDone(const std::vector<PendingRead*>& reads,
                   const std::vector<NvmeDrive::ReadRequest>& requests);
  void OnReadsVerified(const std::vector<PendingRead*>& reads, const Verification& verification);
  void DropCorrupt(const PendingRead& read);

  // Writes.
  bool PrepareWrite(PendingWrite* write, const WriteOp& op);
  void MarkReplaced(PendingWrite* write);
  void GiveUp(PendingWrite* write);
  void OnGivenUpAppended(PendingWrite* write);
  // The first of them writes it now; the others wait for that one.
  void LeadNext(Pending* pending, std::vector<PendingWrite*> followers);
  // Where nothing writes the block any more, those who erase it go on.
  void EndPending(const BlockId& id);
  bool MayYetAppear(const BlockId& erased) const;
  size_t DrivesRead() const;
  Status CheckWrite(const WriteOp& op) const;
  void Verify(const std::vector<PendingWrite*>& writes);
  void VerifySome(std::vector<PendingWrite*> writes);
  void OnWritesVerified(const std::vector<PendingWrite*>& writes, const Verification& verification);
  void DropLateWrites();
  void SchedulePump();
  void Pump();
  void ReportHealth();
  // Of the drives that are out of service, each with its reason.
  std::string WhyOut() const;

  // Erases.
  void StartErase(PendingErase* erase, std::map<uint32_t, std::vector<PendingErase*>>* by_drive);
  void FlushErases(std::map<uint32_t, std::vector<PendingErase*>> by_drive);
  void FinishErases(std::vector<PendingErase*> erases, const Status& status, uint32_t next_drive);
  bool WaitsFor(const PendingErase& erase, const NvmeDrive& drive) const;
  const NvmeDrive* HeldUpBy(const BlockId& id, const Pending& pending) const;

  void RunVerification(const std::shared_ptr<Verification>& verification, Task done);

  NvmeShared shared_;
  TierListener* const listener_;
  std::vector<std::unique_ptr<NvmeDrive>> drives_;
  uint32_t next_drive_ = 0;
  uint32_t taking_drive_ = 0;

  uint64_t next_batch_ = 1;
  std::map<uint64_t, AnyBatch> batches_;  // By age.
  // Of batches that are not done.
  std::map<const void*, uint64_t> batch_ids_;  // lookup only: never walked
  std::set<std::pair<int64_t, uint64_t>> deadlines_;
  int64_t armed_nanos_ = INT64_MAX;
  uint64_t queued_ops_ = 0;

  std::map<BlockId, Pending> pending_;
  std::deque<AppendItem*> ready_;  // Verified PendingWrites that wait for a drive.
  bool pump_scheduled_ = false;
  size_t announcing_ = 0;    // Found blocks that the listener is about to hear of.
  bool started_ = false;     // Recover() was answered.
  bool reported_in_ = true;  // What the listener believes.
};

template <class PendingBatchType>
PendingBatchType* NvmeTierImpl::NewBatch(Batch<typename PendingBatchType::OpType>* batch) {
  const uint64_t id = next_batch_++;
  auto owned = std::make_unique<PendingBatchType>(id, batch);
  PendingBatchType* const pending = owned.get();
  if (batch->ops.empty()) {
    pending->PostDone(shared_.executor);
    return nullptr;
  }
  batches_.emplace(id, std::move(owned));
  batch_ids_[batch] = id;
  if (batch->deadline_nanos != INT64_MAX) {
    deadlines_.emplace(batch->deadline_nanos, id);
    ArmDeadline();
  }
  return pending;
}

template <class State>
void NvmeTierImpl::Settle(State* state, Status status) {
  auto* const batch = state->batch;
  if (!batch->Settle(state, std::move(status), shared_.executor)) return;
  batch_ids_.erase(batch->batch);
  deadlines_.erase({batch->batch->deadline_nanos, batch->id});
}

// Nothing refers to the operation any more. May free its batch.
template <class State>
void NvmeTierImpl::Retire(State* state) {
  if (state->counted) --queued_ops_;
  auto* const batch = state->batch;
  if (--batch->unretired == 0) batches_.erase(batch->id);
}

template <class State>
bool NvmeTierImpl::Admit(State* state) {
  if (queued_ops_ >= shared_.options.max_queued_ops) {
    Reject(state, Status(Code::kBusy));
    return false;
  }
  ++queued_ops_;
  state->counted = true;
  return true;
}

}  // namespace aquifer
