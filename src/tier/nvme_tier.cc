#include "tier/nvme_tier.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "aquifer/checksum.h"
#include "aquifer/layout.h"
#include "base/check.h"
#include "fmt/format.h"
#include "io/bus_guard.h"
#include "tier/nvme_batch.h"
#include "tier/nvme_drive.h"

namespace aquifer {
namespace {

// What one worker task sums, and one group of reads holds: enough to make handing it over cheap.
constexpr uint64_t kVerifyBytes = uint64_t{1} << 20;
constexpr uint64_t kMinSegments = 4;  // A drive: one to fill, one that is full, two free.

bool IsPageAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kPageBytes == 0;
}

// Checksums of several blocks, made on a worker.
struct Verification {
  struct Item {
    std::span<const std::byte> bytes;
    Checksum expected;
    bool good = false;
    Status touch;  // Whether the memory could be touched at all.
  };

  void Run() {
    for (Item& item : items) {
      Checksum sum;
      item.touch = GuardBusErrors([&] { sum = ChecksumOf(item.bytes); });
      item.good = item.touch.ok() && sum == item.expected;
    }
  }

  std::vector<Item> items;
  uint64_t bytes = 0;
};

}  // namespace

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
    if (listener_ != nullptr) shared_.Post([this] { listener_->OnFound(); });
  }
  void OrderForReclaim(std::span<const BlockId> ids, std::vector<size_t>* order) override {
    if (listener_ != nullptr) listener_->OnReclaim(ids, order);
  }
  void OnMoveBegins(const BlockId& id) override { pending_[id].moving = true; }
  void OnMoveEnds(const BlockId& id) override;
  NvmeDrive* Drive(uint32_t number) override { return drives_[number].get(); }

  // ---- PendingWrite ----

  void OnWriteTaken(PendingWrite* write);
  void OnWriteUntouched(PendingWrite* write) { write->batch->Untouch(write, shared_.executor); }
  void ResolveWrite(PendingWrite* write, const Status& status);

 private:
  // What is under way for one block.
  struct Pending {
    PendingWrite* leader = nullptr;        // Writes it.
    bool moving = false;                   // Reclaim rewrites it.
    std::vector<PendingWrite*> followers;  // Want it written too, and wait for the leader.
    std::vector<PendingErase*> erases;     // Wait until nothing writes it any more.
  };

  using AnyBatch = std::variant<std::unique_ptr<ReadBatch>, std::unique_ptr<WriteBatch>,
                                std::unique_ptr<EraseBatch>>;

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
  Status CheckWrite(const WriteOp& op) const;
  void Verify(std::vector<PendingWrite*> writes);
  void VerifySome(std::vector<PendingWrite*> writes);
  void OnWritesVerified(const std::vector<PendingWrite*>& writes, const Verification& verification);
  void DropLateWrites();
  void SchedulePump();
  void Pump();
  void ReportHealth();

  // Erases.
  void StartErase(PendingErase* erase, std::map<uint32_t, std::vector<PendingErase*>>* by_drive);
  void FlushErases(std::map<uint32_t, std::vector<PendingErase*>> by_drive);
  bool MayHoldUnmarkedCopies() const;
  bool WaitsFor(const PendingErase& erase, const NvmeDrive& drive) const;

  void RunVerification(std::shared_ptr<Verification> verification, Task done);

  NvmeShared shared_;
  TierListener* const listener_;
  std::vector<std::unique_ptr<NvmeDrive>> drives_;
  uint32_t next_drive_ = 0;
  uint32_t taking_drive_ = 0;

  uint64_t next_batch_ = 1;
  std::map<uint64_t, AnyBatch> batches_;       // By age.
  std::map<const void*, uint64_t> batch_ids_;  // Of batches that are not done.
  std::set<std::pair<int64_t, uint64_t>> deadlines_;
  int64_t armed_nanos_ = INT64_MAX;
  uint64_t queued_ops_ = 0;

  std::map<BlockId, Pending> pending_;
  std::deque<AppendItem*> ready_;  // Verified PendingWrites that wait for a drive.
  bool pump_scheduled_ = false;
  bool started_ = false;     // Recover() was answered.
  bool reported_in_ = true;  // What the listener believes.
};

void PendingWrite::OnTaken() { tier->OnWriteTaken(this); }
void PendingWrite::OnPayloadDone() { tier->OnWriteUntouched(this); }
void PendingWrite::OnAppended(const Status& status) { tier->ResolveWrite(this, status); }

// ---- Batches ----

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

template <class Op>
void NvmeTierImpl::CancelBatch(Batch<Op>* batch) {
  const auto found = batch_ids_.find(batch);
  if (found == batch_ids_.end()) return;
  shared_.Post([this, id = found->second] { SettleLate(id); });
}

void NvmeTierImpl::SettleLate(uint64_t id) {
  const auto found = batches_.find(id);
  if (found == batches_.end()) return;
  std::visit(
      [this](const auto& batch) {
        for (auto& state : batch->states) {
          if (!state.settled) Settle(&state, Status(Code::kLate));
        }
      },
      found->second);
  if (std::holds_alternative<std::unique_ptr<WriteBatch>>(found->second)) DropLateWrites();
}

void NvmeTierImpl::ArmDeadline() {
  if (deadlines_.empty() || deadlines_.begin()->first >= armed_nanos_) return;
  armed_nanos_ = deadlines_.begin()->first;
  shared_.PostAt(armed_nanos_, [this, at = armed_nanos_] {
    if (at == armed_nanos_) armed_nanos_ = INT64_MAX;
    const int64_t now = shared_.clock->NowNanos();
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      const uint64_t id = deadlines_.begin()->second;
      deadlines_.erase(deadlines_.begin());
      SettleLate(id);
    }
    ArmDeadline();
  });
}

void NvmeTierImpl::OnDriveOut(NvmeDrive* drive) {
  // Only what waits for this drive. Settling changes no container that is walked here.
  for (auto& [id, any] : batches_) {
    if (const auto* reads = std::get_if<std::unique_ptr<ReadBatch>>(&any)) {
      for (PendingRead& read : (*reads)->states) {
        if (!read.settled && read.place.drive == drive->number()) Settle(&read, drive->why());
      }
    } else if (const auto* writes = std::get_if<std::unique_ptr<WriteBatch>>(&any)) {
      for (PendingWrite& write : (*writes)->states) {
        if (!write.settled && write.drive == drive->number()) Settle(&write, drive->why());
      }
    } else if (const auto* erases = std::get_if<std::unique_ptr<EraseBatch>>(&any)) {
      for (PendingErase& erase : (*erases)->states) {
        if (!erase.settled && WaitsFor(erase, *drive)) Settle(&erase, drive->why());
      }
    }
  }
}

bool NvmeTierImpl::WaitsFor(const PendingErase& erase, const NvmeDrive& drive) const {
  if (erase.drive != UINT32_MAX) return erase.drive == drive.number();
  const auto found = pending_.find(erase.id);
  if (found == pending_.end()) return false;
  return found->second.moving ||
         (found->second.leader != nullptr && found->second.leader->drive == drive.number());
}

void NvmeTierImpl::OnLost(std::vector<BlockId> ids, Code why) {
  if (listener_ == nullptr) return;
  shared_.Post([this, ids = std::move(ids), why] { listener_->OnLost(ids, why); });
}

void NvmeTierImpl::RunVerification(std::shared_ptr<Verification> verification, Task done) {
  Executor* const executor = shared_.executor;
  shared_.workers->Run([verification, executor, done = shared_.Guard(std::move(done))] {
    verification->Run();
    executor->Post(done);
  });
}

// ---- Starting ----

void NvmeTierImpl::Recover(std::function<void(Status)> on_done) {
  auto waiting = std::make_shared<size_t>(drives_.size());
  auto answer = std::make_shared<std::function<void(Status)>>(std::move(on_done));
  for (const auto& drive : drives_) {
    drive->Recover([this, waiting, answer](const Status& status) {
      if (!status.ok()) {
        shared_.recovery.messages.push_back(status.ToString() + "; the drive is tried again");
      }
      if (--*waiting > 0) return;
      started_ = true;
      shared_.Post([this, answer] {
        (*answer)(in_service() ? Status()
                               : Status(Code::kUnavailable,
                                        "no drive can be used: " + drives_[0]->why().message()));
        SchedulePump();
      });
    });
  }
}

// ---- Reading ----

void NvmeTierImpl::Read(Batch<ReadOp>* caller_batch) {
  auto* const batch = NewBatch<ReadBatch>(caller_batch);
  if (batch == nullptr) return;
  const bool late = caller_batch->deadline_nanos <= shared_.clock->NowNanos();
  std::vector<std::vector<PendingRead*>> by_drive(drives_.size());
  // Retiring the last operation frees the batch, so what is refused is retired at the end.
  std::vector<PendingRead*> refused;
  for (PendingRead& read : batch->states) {
    ReadOp& op = caller_batch->ops[read.index];
    if (late) Settle(&read, Status(Code::kLate));
    if (!read.settled && PrepareRead(&read, &op)) {
      by_drive[read.place.drive].push_back(&read);
    } else {
      refused.push_back(&read);
    }
  }
  for (uint32_t drive = 0; drive < by_drive.size(); ++drive) {
    std::vector<PendingRead*> some;
    uint64_t bytes = 0;
    for (PendingRead* read : by_drive[drive]) {
      some.push_back(read);
      bytes += read->target.size();
      if (bytes >= kVerifyBytes) {
        SubmitReads(drive, std::exchange(some, {}));
        bytes = 0;
      }
    }
    if (!some.empty()) SubmitReads(drive, std::move(some));
  }
  for (PendingRead* read : refused) Retire(read);
}

// False if the operation is settled already.
bool NvmeTierImpl::PrepareRead(PendingRead* read, ReadOp* op) {
  const auto settle = [&](Status status) {
    Settle(read, std::move(status));
    return false;
  };
  if (!in_service()) return settle(Status(Code::kUnavailable));
  const NvmeIndex::EntryId entry = shared_.index.Find(op->id);
  if (entry == NvmeIndex::kNone) return settle(Status(Code::kNotFound));
  read->place = shared_.index.Place(entry);
  NvmeDrive* const drive = drives_[read->place.drive].get();
  if (shared_.index.Expired(entry, shared_.clock->UnixSeconds())) {
    ++shared_.counters.blocks_expired;
    drive->Drop(entry);
    OnLost({op->id}, Code::kNotFound);
    return settle(Status(Code::kNotFound));
  }
  if (!drive->in_service()) return settle(Status(Code::kUnavailable));
  read->raw_bytes = shared_.index.raw_bytes(entry);
  if (op->target.size() != RoundUpToPage(read->raw_bytes) || !IsPageAligned(op->target.data())) {
    return settle(Status(Code::kInvalid, fmt::format("the block has {} bytes, the target {}; it "
                                                     "must be that rounded up to 4096, and aligned",
                                                     read->raw_bytes, op->target.size())));
  }
  if (queued_ops_ >= shared_.options.max_queued_ops) return settle(Status(Code::kBusy));
  ++queued_ops_;
  read->counted = true;
  read->id = op->id;
  read->checksum = shared_.index.checksum(entry);
  read->target = op->target;
  read->touched = true;
  return true;
}

void NvmeTierImpl::SubmitReads(uint32_t drive, std::vector<PendingRead*> reads) {
  std::vector<NvmeDrive::ReadRequest> requests;
  requests.reserve(reads.size());
  for (const PendingRead* read : reads) {
    requests.push_back({.place = read->place, .target = read->target, .status = {}});
  }
  drives_[drive]->Read(std::move(requests),
                       [this, reads = std::move(reads)](std::vector<NvmeDrive::ReadRequest>& done) {
                         OnReadsDone(reads, done);
                       });
}

void NvmeTierImpl::OnReadsDone(const std::vector<PendingRead*>& reads,
                               const std::vector<NvmeDrive::ReadRequest>& requests) {
  auto verification = std::make_shared<Verification>();
  std::vector<PendingRead*> to_verify;
  for (size_t i = 0; i < reads.size(); ++i) {
    PendingRead* const read = reads[i];
    if (requests[i].status.ok() && !read->settled) {
      verification->items.push_back({.bytes = read->target.first(read->raw_bytes),
                                     .expected = read->checksum,
                                     .good = false,
                                     .touch = {}});
      to_verify.push_back(read);
      continue;
    }
    read->batch->Untouch(read, shared_.executor);
    if (requests[i].status.code() == Code::kNotFound) {  // The file was cut behind our back.
      DropCorrupt(*read);
      Settle(read, Status(Code::kCorrupt, "the file ends before the block does"));
    } else {
      Settle(read, requests[i].status);
    }
    Retire(read);
  }
  if (to_verify.empty()) return;
  RunVerification(verification,
                  [this, to_verify, verification] { OnReadsVerified(to_verify, *verification); });
}

void NvmeTierImpl::OnReadsVerified(const std::vector<PendingRead*>& reads,
                                   const Verification& verification) {
  for (size_t i = 0; i < reads.size(); ++i) {
    PendingRead* const read = reads[i];
    const Verification::Item& item = verification.items[i];
    read->batch->Untouch(read, shared_.executor);
    if (item.good) {
      ++shared_.counters.blocks_read;
      shared_.counters.bytes_read += read->raw_bytes;
      if (!read->settled) read->batch->batch->ops[read->index].checksum = read->checksum;
      Settle(read, Status());
    } else if (!item.touch.ok()) {
      Settle(read, item.touch);  // The target's memory is gone; the block may be well.
    } else {
      DropCorrupt(*read);
      Settle(read, Status(Code::kCorrupt, "the checksum does not match what was stored"));
    }
    Retire(read);
  }
}

void NvmeTierImpl::DropCorrupt(const PendingRead& read) {
  ++shared_.counters.corrupt_blocks;
  const NvmeIndex::EntryId entry = shared_.index.Find(read.id);
  if (entry == NvmeIndex::kNone || shared_.index.Place(entry) != read.place) return;
  drives_[read.place.drive]->Drop(entry);
  OnLost({read.id}, Code::kCorrupt);
}

// ---- Writing ----

void NvmeTierImpl::Write(Batch<WriteOp>* caller_batch) {
  auto* const batch = NewBatch<WriteBatch>(caller_batch);
  if (batch == nullptr) return;
  const bool late = caller_batch->deadline_nanos <= shared_.clock->NowNanos();
  std::vector<PendingWrite*> to_verify;
  std::vector<PendingWrite*> refused;
  for (PendingWrite& write : batch->states) {
    write.tier = this;
    if (late) Settle(&write, Status(Code::kLate));
    if (!write.settled && PrepareWrite(&write, caller_batch->ops[write.index])) {
      if (write.stage == PendingWrite::Stage::kNew) to_verify.push_back(&write);
    } else {
      refused.push_back(&write);
    }
  }
  Verify(std::move(to_verify));
  for (PendingWrite* write : refused) Retire(write);
}

Status NvmeTierImpl::CheckWrite(const WriteOp& op) const {
  if (op.meta.codec != Codec::kNone || op.meta.stored_bytes != op.meta.raw_bytes) {
    return Status(Code::kInvalid, "only blocks without a codec can be written");
  }
  if (op.meta.raw_bytes == 0 || op.meta.raw_bytes > shared_.options.max_block_bytes) {
    return Status(Code::kInvalid, fmt::format("a block of {} bytes; max_block_bytes is {}",
                                              op.meta.raw_bytes, shared_.options.max_block_bytes));
  }
  if (op.source.size() != RoundUpToPage(op.meta.stored_bytes) || !IsPageAligned(op.source.data())) {
    return Status(Code::kInvalid, fmt::format("the block has {} bytes, the source {}; it must be "
                                              "that rounded up to 4096, and aligned",
                                              op.meta.stored_bytes, op.source.size()));
  }
  return Status();
}

// False if the operation is settled already.
bool NvmeTierImpl::PrepareWrite(PendingWrite* write, const WriteOp& op) {
  const auto settle = [&](Status status) {
    Settle(write, std::move(status));
    return false;
  };
  if (Status status = CheckWrite(op); !status.ok()) return settle(std::move(status));
  if (const NvmeIndex::EntryId entry = shared_.index.Find(op.meta.id); entry != NvmeIndex::kNone) {
    NvmeDrive* const drive = drives_[shared_.index.Place(entry).drive].get();
    if (!shared_.index.Expired(entry, shared_.clock->UnixSeconds())) {
      return settle(drive->in_service() ? Status() : Status(Code::kUnavailable));
    }
    ++shared_.counters.blocks_expired;
    drive->Drop(entry);
  }
  const bool writable = std::any_of(drives_.begin(), drives_.end(),
                                    [](const auto& drive) { return drive->writable(); });
  if (!writable) return settle(Status(Code::kUnavailable));
  if (queued_ops_ >= shared_.options.max_queued_ops) return settle(Status(Code::kBusy));
  ++queued_ops_;
  write->counted = true;
  write->meta = op.meta;
  write->source = op.source;
  Pending& pending = pending_[op.meta.id];
  if (pending.leader != nullptr) {
    write->stage = PendingWrite::Stage::kFollowing;
    pending.followers.push_back(write);
  } else {
    pending.leader = write;
  }
  return true;
}

void NvmeTierImpl::Verify(std::vector<PendingWrite*> writes) {
  std::vector<PendingWrite*> some;
  uint64_t bytes = 0;
  for (PendingWrite* write : writes) {
    some.push_back(write);
    bytes += write->source.size();
    if (bytes < kVerifyBytes) continue;
    VerifySome(std::exchange(some, {}));
    bytes = 0;
  }
  if (!some.empty()) VerifySome(std::move(some));
}

void NvmeTierImpl::VerifySome(std::vector<PendingWrite*> writes) {
  auto verification = std::make_shared<Verification>();
  for (PendingWrite* write : writes) {
    write->stage = PendingWrite::Stage::kVerifying;
    write->touched = true;
    verification->items.push_back({.bytes = write->source.first(write->meta.raw_bytes),
                                   .expected = write->meta.checksum,
                                   .good = false,
                                   .touch = {}});
  }
  RunVerification(verification, [this, writes = std::move(writes), verification] {
    OnWritesVerified(writes, *verification);
  });
}

void NvmeTierImpl::OnWritesVerified(const std::vector<PendingWrite*>& writes,
                                    const Verification& verification) {
  for (size_t i = 0; i < writes.size(); ++i) {
    PendingWrite* const write = writes[i];
    write->batch->Untouch(write, shared_.executor);
    if (write->settled) {
      ResolveWrite(write, Status(Code::kLate));
    } else if (!verification.items[i].good) {
      ++shared_.counters.corrupt_sources;
      ResolveWrite(write, verification.items[i].touch.ok()
                              ? Status(Code::kCorrupt, "the bytes do not match their checksum")
                              : verification.items[i].touch);
    } else {
      write->stage = PendingWrite::Stage::kReady;
      ready_.push_back(write);
    }
  }
  Pump();
}

void NvmeTierImpl::OnWriteTaken(PendingWrite* write) {
  write->stage = PendingWrite::Stage::kAtDrive;
  write->drive = taking_drive_;
  write->touched = true;
}

// The block is written, or will not be.
void NvmeTierImpl::ResolveWrite(PendingWrite* write, const Status& status) {
  const auto found = pending_.find(write->meta.id);
  Pending& pending = found->second;
  AQ_CHECK(pending.leader == write);
  pending.leader = nullptr;
  Settle(write, status);
  std::vector<PendingWrite*> followers = std::move(pending.followers);
  pending.followers.clear();
  std::erase_if(followers, [this](PendingWrite* follower) {
    const bool late = follower->settled;
    if (late) Retire(follower);
    return late;
  });
  if (status.ok()) {
    for (PendingWrite* follower : followers) {
      Settle(follower, Status());
      Retire(follower);
    }
  } else if (!followers.empty()) {
    // The next one tries with its own bytes.
    pending.leader = followers.front();
    pending.followers.assign(followers.begin() + 1, followers.end());
    VerifySome({pending.leader});
  }
  if (pending.leader == nullptr && !pending.moving) {
    std::vector<PendingErase*> erases = std::move(pending.erases);
    pending_.erase(found);
    std::map<uint32_t, std::vector<PendingErase*>> by_drive;
    for (PendingErase* erase : erases) StartErase(erase, &by_drive);
    FlushErases(std::move(by_drive));
  }
  Retire(write);
}

// Settled writes that have not reached a drive go no further.
void NvmeTierImpl::DropLateWrites() {
  std::vector<PendingWrite*> late;
  std::erase_if(ready_, [&](AppendItem* item) {
    auto* const write = static_cast<PendingWrite*>(item);
    if (write->settled) late.push_back(write);
    return write->settled;
  });
  for (PendingWrite* write : late) ResolveWrite(write, Status(Code::kLate));
}

void NvmeTierImpl::SchedulePump() {
  if (std::exchange(pump_scheduled_, true)) return;
  shared_.Post([this] {
    pump_scheduled_ = false;
    Pump();
  });
}

// Hands ready writes to the drives, a group each in turn, until none takes any more.
void NvmeTierImpl::Pump() {
  ReportHealth();
  const auto count = static_cast<uint32_t>(drives_.size());
  bool took = true;
  while (took) {
    took = false;
    for (uint32_t i = 0; i < count; ++i) {
      taking_drive_ = (next_drive_ + i) % count;
      if (!drives_[taking_drive_]->TakeFrom(&ready_)) continue;
      took = true;
      next_drive_ = (taking_drive_ + 1) % count;
      break;
    }
  }
  if (ready_.empty()) return;
  bool writable = false;
  bool hopeless = true;
  for (const auto& drive : drives_) {
    writable |= drive->writable();
    hopeless &= !drive->writable() || drive->full();
  }
  if (!hopeless) return;
  const Status why = writable ? Status(Code::kNoSpace, "the file system has no room for a segment")
                              : Status(Code::kUnavailable, drives_[0]->why().message());
  std::deque<AppendItem*> failed = std::move(ready_);
  ready_.clear();
  for (AppendItem* item : failed) ResolveWrite(static_cast<PendingWrite*>(item), why);
}

void NvmeTierImpl::ReportHealth() {
  const bool in = in_service();
  if (!started_ || in == reported_in_) return;
  reported_in_ = in;
  if (listener_ == nullptr) return;
  shared_.Post(
      [this, in, why = in ? Status() : drives_[0]->why()] { listener_->OnHealth(in, why); });
}

// ---- Erasing ----

void NvmeTierImpl::Erase(Batch<EraseOp>* caller_batch) {
  auto* const batch = NewBatch<EraseBatch>(caller_batch);
  if (batch == nullptr) return;
  std::map<uint32_t, std::vector<PendingErase*>> by_drive;
  const bool late = caller_batch->deadline_nanos <= shared_.clock->NowNanos();
  ++batch->unretired;  // Ours, so that the batch outlives this loop.
  for (PendingErase& erase : batch->states) {
    erase.id = caller_batch->ops[erase.index].id;
    if (late) {
      Reject(&erase, Status(Code::kLate));
    } else if (Admit(&erase)) {
      StartErase(&erase, &by_drive);
    }
  }
  FlushErases(std::move(by_drive));
  for (const auto& drive : drives_) {
    if (drive->may_hold_unmarked_copies()) drive->FlushMaps([](const Status&) {});
  }
  if (--batch->unretired == 0) batches_.erase(batch->id);
}

void NvmeTierImpl::StartErase(PendingErase* erase,
                              std::map<uint32_t, std::vector<PendingErase*>>* by_drive) {
  if (const auto found = pending_.find(erase->id); found != pending_.end()) {
    found->second.erases.push_back(erase);
    return;
  }
  const NvmeIndex::EntryId entry = shared_.index.Find(erase->id);
  if (entry == NvmeIndex::kNone) {
    // A copy may be on a drive that was not read, or gone only from memory.
    return Reject(erase,
                  MayHoldUnmarkedCopies() ? Status(Code::kUnavailable) : Status(Code::kNotFound));
  }
  const uint32_t drive = shared_.index.Place(entry).drive;
  ++shared_.counters.blocks_erased;
  drives_[drive]->Drop(entry);
  erase->drive = drive;
  (*by_drive)[drive].push_back(erase);
}

void NvmeTierImpl::FlushErases(std::map<uint32_t, std::vector<PendingErase*>> by_drive) {
  for (auto& [number, erases] : by_drive) {
    NvmeDrive* const drive = drives_[number].get();
    drive->FlushMaps([this, erases = std::move(erases)](const Status& status) {
      for (PendingErase* erase : erases) {
        Status result = status;
        if (status.ok() && MayHoldUnmarkedCopies()) {
          result = Status(Code::kUnavailable, "another drive may hold a copy");
        }
        Settle(erase, std::move(result));
        Retire(erase);
      }
    });
  }
}

bool NvmeTierImpl::MayHoldUnmarkedCopies() const {
  return std::any_of(drives_.begin(), drives_.end(),
                     [](const auto& drive) { return drive->may_hold_unmarked_copies(); });
}

void NvmeTierImpl::OnMoveEnds(const BlockId& id) {
  const auto found = pending_.find(id);
  found->second.moving = false;
  if (found->second.leader != nullptr) return;
  std::vector<PendingErase*> erases = std::move(found->second.erases);
  pending_.erase(found);
  std::map<uint32_t, std::vector<PendingErase*>> by_drive;
  for (PendingErase* erase : erases) StartErase(erase, &by_drive);
  FlushErases(std::move(by_drive));
}

// ---- Asking ----

void NvmeTierImpl::Enumerate(const std::function<void(const BlockMeta&)>& visit) const {
  const int64_t unix_seconds = shared_.clock->UnixSeconds();
  for (const NvmeIndex::EntryId entry : shared_.index.Ordered()) {
    if (shared_.index.Expired(entry, unix_seconds)) continue;
    if (!drives_[shared_.index.Place(entry).drive]->in_service()) continue;
    visit(shared_.index.Meta(entry));
  }
}

Status NvmeTierImpl::Probe(const BlockId& id) const {
  const NvmeIndex::EntryId entry = shared_.index.Find(id);
  if (entry == NvmeIndex::kNone) return Status(in_service() ? Code::kNotFound : Code::kUnavailable);
  if (shared_.index.Expired(entry, shared_.clock->UnixSeconds())) return Status(Code::kNotFound);
  if (!drives_[shared_.index.Place(entry).drive]->in_service()) return Status(Code::kUnavailable);
  return Status();
}

TierUsage NvmeTierImpl::Usage() const {
  TierUsage usage;
  usage.capacity_bytes = shared_.options.capacity_bytes;
  for (const auto& drive : drives_) {
    usage.used_bytes += drive->used_bytes();
    usage.live_bytes += drive->live_bytes();
  }
  usage.block_count = shared_.index.size();
  usage.queued_ops = queued_ops_;
  return usage;
}

std::vector<std::pair<std::string, uint64_t>> NvmeTierImpl::Counters() const {
  const NvmeCounters& counters = shared_.counters;
  const NvmeRecovery& recovery = shared_.recovery;
  uint64_t file_bytes = 0;
  uint64_t memory_bytes = shared_.index.memory_bytes();
  uint64_t in = 0;
  uint64_t writable = 0;
  for (const auto& drive : drives_) {
    file_bytes += drive->file_bytes();
    memory_bytes += drive->memory_bytes();
    in += drive->in_service() ? 1 : 0;
    writable += drive->writable() ? 1 : 0;
  }
  return {
      {"blocks_written", counters.blocks_written},
      {"bytes_written", counters.bytes_written},
      {"blocks_read", counters.blocks_read},
      {"bytes_read", counters.bytes_read},
      {"blocks_erased", counters.blocks_erased},
      {"blocks_expired", counters.blocks_expired},
      {"corrupt_blocks", counters.corrupt_blocks},
      {"corrupt_sources", counters.corrupt_sources},
      {"corrupt_records", recovery.corrupt_records},
      {"torn_segments", recovery.segments_by_scan},
      {"skipped_segments", recovery.segments_skipped},
      {"read_errors", counters.read_errors},
      {"write_errors", counters.write_errors},
      {"create_errors", counters.create_errors},
      {"map_writes", counters.map_writes},
      {"segments_opened", counters.segments_opened},
      {"segments_sealed", counters.segments_sealed},
      {"segments_reclaimed", counters.segments_reclaimed},
      {"reclaim_moved_blocks", counters.reclaim_moved_blocks},
      {"reclaim_moved_bytes", counters.reclaim_moved_bytes},
      {"reclaim_dropped_blocks", counters.reclaim_dropped_blocks},
      {"probes", counters.probes},
      {"times_out_of_service", counters.times_out_of_service},
      {"drives_in_service", in},
      {"drives_writable", writable},
      {"file_bytes", file_bytes},
      {"index_bytes", memory_bytes},
  };
}

// ---- Making one ----

namespace {

Result<uint64_t> ChooseSegmentBytes(const NvmeTierOptions& options, size_t drives) {
  const uint64_t per_drive = options.capacity_bytes / drives;
  const uint64_t least = MinSegmentBytes(options.max_block_bytes);
  const uint64_t most = per_drive / kMinSegments / kPageBytes * kPageBytes;
  if (most < least) {
    return Status(
        Code::kInvalid,
        fmt::format("capacity_bytes {} over {} drive(s) gives segments of at most {} bytes, but a "
                    "block of max_block_bytes {} needs {}: raise capacity_bytes to {}, or lower "
                    "max_block_bytes",
                    options.capacity_bytes, drives, most, options.max_block_bytes, least,
                    least * kMinSegments * drives));
  }
  if (options.segment_bytes == 0) {
    const uint64_t wanted = std::clamp(std::bit_ceil(options.capacity_bytes / 256),
                                       uint64_t{64} << 20, uint64_t{1} << 30);
    return std::min(std::max(wanted, std::bit_ceil(least)), most);
  }
  if (options.segment_bytes % kPageBytes != 0) {
    return Status(Code::kInvalid,
                  fmt::format("segment_bytes {} is not a multiple of 4096", options.segment_bytes));
  }
  if (options.segment_bytes < least) {
    return Status(Code::kInvalid,
                  fmt::format("segment_bytes {} is under the {} that a block of max_block_bytes {} "
                              "needs: raise segment_bytes, or lower max_block_bytes",
                              options.segment_bytes, least, options.max_block_bytes));
  }
  if (options.segment_bytes > most) {
    return Status(Code::kInvalid,
                  fmt::format("segment_bytes {} fits fewer than {} times into the {} bytes of each "
                              "drive: lower segment_bytes to {}, or raise capacity_bytes",
                              options.segment_bytes, kMinSegments, per_drive, most));
  }
  return options.segment_bytes;
}

}  // namespace

Result<std::unique_ptr<NvmeTier>> NewNvmeTier(const NvmeTierOptions& options,
                                              std::vector<Disk*> disks, TierListener* listener,
                                              WorkerPool* workers, Executor* executor, Clock* clock,
                                              Random* random) {
  if (disks.empty() || disks.size() > 256) {
    return Status(Code::kInvalid, fmt::format("{} drives; 1 to 256 are possible", disks.size()));
  }
  if (options.max_block_bytes == 0 || options.max_block_bytes > kMaxBlockBytes) {
    return Status(Code::kInvalid, fmt::format("max_block_bytes {} is not within 1 to {}",
                                              options.max_block_bytes, kMaxBlockBytes));
  }
  if (options.max_queued_ops == 0) return Status(Code::kInvalid, "max_queued_ops is zero");
  if (options.probe_interval_nanos <= 0 || options.hang_nanos <= 0) {
    return Status(Code::kInvalid, "probe_interval_nanos and hang_nanos must be positive");
  }
  NvmeShared shared;
  shared.options = options;
  AQ_ASSIGN_OR_RETURN(shared.options.segment_bytes, ChooseSegmentBytes(options, disks.size()));
  shared.workers = workers;
  shared.executor = executor;
  shared.clock = clock;
  shared.random = random;
  return std::unique_ptr<NvmeTier>(
      std::make_unique<NvmeTierImpl>(std::move(shared), std::move(disks), listener));
}

}  // namespace aquifer
