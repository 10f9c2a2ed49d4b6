// The NVMe tier's own class: what nvme_tier.cc (batches, starting, asking), nvme_operations.cc
// (reading, writing, erasing) and nvme_packing.cc (what workers do) share. Nothing else includes
// it.
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
#include "tier/batch_ledger.h"
#include "tier/nvme/nvme_batch.h"
#include "tier/nvme/nvme_drive.h"
#include "tier/nvme/nvme_tier.h"
#include "tier/packing/scratch_pool.h"
#include "tier/packing/store_pace.h"

namespace aquifer {

// Checksums of several blocks, made on a worker; those that are packed are unpacked first.
struct Verification {
  struct Item {
    std::span<const std::byte> bytes;
    Checksum expected;
    bool good = false;
    Status touch;  // Whether the memory could be touched at all.
    std::shared_ptr<UnpackJob> unpack{};
  };

  void Run();

  Packer* packer = nullptr;  // Where some are packed.
  std::vector<Item> items;
};

// Owns the callers' batches and hands the work to the drives. Everything runs on the executor.
class NvmeTierImpl final : public NvmeTier, public NvmeDrive::Owner {
 public:
  NvmeTierImpl(NvmeShared shared, std::vector<Disk*> disks, TierListener* listener)
      : shared_(std::move(shared)), listener_(listener), scratch_(shared_.options.scratch_bytes) {
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
  bool AllInService() const override {
    return std::all_of(drives_.begin(), drives_.end(),
                       [](const auto& drive) { return drive->in_service(); });
  }
  bool Detached(const BlockId& id) const override;
  std::optional<BlockMeta> MetaOf(const BlockId& id) const override;
  void EnumerateInSlices(std::function<void(const BlockMeta&)> visit,
                         std::function<void()> on_done) override;

  // ---- Tier ----

  void Read(Batch<ReadOp>* batch) override;
  void Write(Batch<WriteOp>* batch) override;
  void Erase(Batch<EraseOp>* batch) override;
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
  void OnDriveDetached() override {
    if (listener_ == nullptr) return;
    shared_.Post([this] { listener_->OnDetached(); });
  }
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
  void OnWriteUntouched(PendingWrite* write);
  void OnWriteAppended(PendingWrite* write, const Status& status);
  void ResolveWrite(PendingWrite* write, const Status& status);

 private:
  // What one worker task sums, and one group of reads holds: enough to make handing it over cheap.
  static constexpr uint64_t kVerifyBytes = uint64_t{1} << 20;

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

  using Ledger = BatchLedger<ReadBatch, WriteBatch, EraseBatch>;

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

  // What is late may hang at its drive for long, in that drive's own queue: here it takes nothing
  // from the other drives.
  template <class State>
  void Settle(State* state, Status status) {
    ledger_.Settle(state, std::move(status));
    ledger_.GivePlaceBack(state);
  }
  template <class State>
  void Retire(State* state) {
    ledger_.Retire(state);
  }
  template <class State>
  void Reject(State* state, Status status) {
    Settle(state, std::move(status));
    Retire(state);
  }
  template <class State>
  bool Admit(State* state);

  void SettleLate(Ledger::AnyBatch* batch);

  // Reads.
  bool PrepareRead(PendingRead* read, ReadOp* op);
  Status WithoutKey(const TenantId& tenant);
  Status PrepareUnpack(PendingRead* read, NvmeIndex::EntryId entry);
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
  std::vector<PendingWrite*> TakeFollowers(Pending* pending);
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

  // Packing (nvme_packing.cc): what takes the place of verifying where the tier has a packer.
  bool seals() const { return packer() != nullptr && packer()->seals(); }
  Packer* packer() const { return shared_.options.packer; }
  void StartPack(PendingWrite* write);
  void RunPack(PendingWrite* write);
  void OnPacked(PendingWrite* write);
  // The drive needs it no more, or never will.
  void ReleasePacked(PendingWrite* write);
  void PumpPacks();
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

  // Whether the drive, as long as it hangs, keeps the write from its end.
  static bool WaitsFor(const PendingWrite& write, uint32_t drive) {
    return write.drive == drive || write.replaced_on == drive;
  }
  // It is recorded, and waits for what it replaced to be marked; so does who comes behind it.
  static bool LacksOnlyMark(const PendingWrite& write) {
    return write.replaced_on != AppendItem::kNoDrive;
  }
  // Null: it is in service, or there is no such drive.
  const NvmeDrive* OutOfService(uint32_t drive) const;
  // The drive out of service that the write waits for; null: none.
  const NvmeDrive* HeldUpBy(const PendingWrite& write) const;
  // The same of what is under way for the block.
  const NvmeDrive* HeldUpBy(const BlockId& id, const Pending& pending) const;

  void RunVerification(const std::shared_ptr<Verification>& verification, Task done);

  NvmeShared shared_;
  TierListener* const listener_;
  std::vector<std::unique_ptr<NvmeDrive>> drives_;
  uint32_t next_drive_ = 0;
  uint32_t taking_drive_ = 0;

  static constexpr int64_t kArmAheadNanos = 50'000'000;
  Ledger ledger_{shared_.executor, shared_.clock, kArmAheadNanos,
                 [this](Ledger::AnyBatch& batch) { SettleLate(&batch); }};

  std::map<BlockId, Pending> pending_;
  std::deque<AppendItem*> ready_;  // Verified PendingWrites that wait for a drive.
  bool pump_scheduled_ = false;
  ScratchPool scratch_;
  StorePace pace_;                          // Of writing, over all drives.
  std::deque<PendingWrite*> waiting_pack_;  // For scratch memory.
  bool pack_scheduled_ = false;
  size_t announcing_ = 0;    // Found blocks that the listener is about to hear of.
  bool started_ = false;     // Recover() was answered.
  bool reported_in_ = true;  // What the listener believes.
};

template <class State>
bool NvmeTierImpl::Admit(State* state) {
  if (ledger_.TakePlace(state, shared_.options.max_queued_ops)) return true;
  Reject(state, Status(Code::kBusy));
  return false;
}

}  // namespace aquifer
