// Reading, writing and erasing: from a caller's batch to the drives and back.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fmt/format.h"
#include "tier/nvme/nvme_tier_impl.h"

namespace aquifer {
namespace {

bool IsPageAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kPageBytes == 0;
}

}  // namespace

void PendingWrite::OnTaken() { tier->OnWriteTaken(this); }
void PendingWrite::OnPayloadDone() { tier->OnWriteUntouched(this); }
void PendingWrite::OnAppended(const Status& status) { tier->OnWriteAppended(this, status); }

// ---- Reading ----

void NvmeTierImpl::Read(Batch<ReadOp>* caller_batch) {
  auto* const batch = ledger_.Add<ReadBatch>(caller_batch);
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
  if (Status status = PrepareUnpack(read, entry); !status.ok()) return settle(std::move(status));
  read->raw_bytes = shared_.index.raw_bytes(entry);
  read->stored_bytes = shared_.index.stored_bytes(entry);
  if (op->target.size() != RoundUpToPage(read->raw_bytes) || !IsPageAligned(op->target.data())) {
    return settle(Status(Code::kInvalid, fmt::format("the block has {} bytes, the target {}; it "
                                                     "must be that rounded up to 4096, and aligned",
                                                     read->raw_bytes, op->target.size())));
  }
  if (!ledger_.TakePlace(read, shared_.options.max_queued_ops)) return settle(Status(Code::kBusy));
  read->id = op->id;
  read->checksum = shared_.index.checksum(entry);
  read->target = op->target;
  if (read->unpack != nullptr) read->unpack->target = op->target;
  read->touched = true;
  return true;
}

void NvmeTierImpl::SubmitReads(uint32_t drive, std::vector<PendingRead*> reads) {
  std::vector<NvmeDrive::ReadRequest> requests;
  requests.reserve(reads.size());
  for (const PendingRead* read : reads) {
    requests.push_back({.place = read->place,
                        .target = read->target.first(RoundUpToPage(read->stored_bytes)),
                        .status = {}});
  }
  drives_[drive]->Read(std::move(requests),
                       [this, reads = std::move(reads)](std::vector<NvmeDrive::ReadRequest>& done) {
                         OnReadsDone(reads, done);
                       });
}

void NvmeTierImpl::OnReadsDone(const std::vector<PendingRead*>& reads,
                               const std::vector<NvmeDrive::ReadRequest>& requests) {
  auto verification = std::make_shared<Verification>();
  verification->packer = packer();
  std::vector<PendingRead*> to_verify;
  for (size_t i = 0; i < reads.size(); ++i) {
    PendingRead* const read = reads[i];
    if (requests[i].status.ok() && !read->settled) {
      verification->items.push_back({.bytes = read->target.first(read->raw_bytes),
                                     .expected = read->checksum,
                                     .good = false,
                                     .touch = {},
                                     .unpack = read->unpack});
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
      if (item.unpack != nullptr && item.unpack->refused_seal) ++shared_.counters.refused_seals;
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
  auto* const batch = ledger_.Add<WriteBatch>(caller_batch);
  if (batch == nullptr) return;
  const bool late = caller_batch->deadline_nanos <= shared_.clock->NowNanos();
  std::vector<PendingWrite*> to_verify;
  std::vector<PendingWrite*> refused;
  for (PendingWrite& write : batch->states) {
    write.tier = this;
    if (seals()) write.key = packer()->KeyOf(caller_batch->ops[write.index].meta.id.tenant);
    if (late) Settle(&write, Status(Code::kLate));
    if (!write.settled && PrepareWrite(&write, caller_batch->ops[write.index])) {
      if (write.stage == PendingWrite::Stage::kNew) to_verify.push_back(&write);
    } else {
      refused.push_back(&write);
    }
  }
  Verify(to_verify);
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
  if (seals() && write->key == nullptr) return settle(WithoutKey(op.meta.id.tenant));
  NvmeIndex::EntryId entry = shared_.index.Find(op.meta.id);
  if (entry != NvmeIndex::kNone) {
    NvmeDrive* const drive = drives_[shared_.index.Place(entry).drive].get();
    if (shared_.index.Expired(entry, shared_.clock->UnixSeconds())) {
      ++shared_.counters.blocks_expired;
      drive->Drop(entry);
      entry = NvmeIndex::kNone;
    } else if (drive->detached()) {
      // The write replaces the record, whose mark waits until its drive is back.
    } else if (!op.replace && shared_.index.HasSame(entry, op.meta) &&
               shared_.index.data_key_id(entry) ==
                   (write->key != nullptr ? write->key->id : op.meta.data_key_id)) {
      return settle(drive->in_service() ? Status() : Status(Code::kUnavailable));
    } else if (!drive->writable()) {  // The old record could not be marked.
      return settle(Status(Code::kUnavailable, drive->why().message()));
    }
  }
  if (const auto found = pending_.find(op.meta.id); found != pending_.end()) {
    const PendingWrite* const leader = found->second.leader;
    const bool behind_mark = leader != nullptr && LacksOnlyMark(*leader);
    const NvmeDrive* const hangs = behind_mark ? HeldUpBy(*leader) : nullptr;
    if (hangs != nullptr) return settle(hangs->why());
  }
  const bool writable = std::any_of(drives_.begin(), drives_.end(),
                                    [](const auto& drive) { return drive->writable(); });
  if (!writable) return settle(Status(Code::kUnavailable));
  if (!ledger_.TakePlace(write, shared_.options.max_queued_ops)) return settle(Status(Code::kBusy));
  write->meta = op.meta;
  write->source = op.source;
  write->renews = op.replace;
  // Also a block that was computed once more, with other bytes, and stored before the last of the
  // old one was gone: what counts is what was stored last.
  write->replace = op.replace || entry != NvmeIndex::kNone;
  Pending& pending = pending_[op.meta.id];
  if (pending.leader != nullptr) {
    write->stage = PendingWrite::Stage::kFollowing;
    pending.followers.push_back(write);
  } else {
    pending.leader = write;
  }
  return true;
}

void NvmeTierImpl::OnWriteTaken(PendingWrite* write) {
  write->stage = PendingWrite::Stage::kAtDrive;
  write->drive = taking_drive_;
  write->touched = write->keep == nullptr;
  pace_.Begin(shared_.clock->NowNanos());
}

void NvmeTierImpl::OnWriteUntouched(PendingWrite* write) {
  pace_.End(shared_.clock->NowNanos(), write->source.size());
  write->batch->Untouch(write, shared_.executor);
  ReleasePacked(write);
}

// A block that replaced another is written when that one is marked as gone: an erase or the block's
// expiry relies on it. A move under way would leave one more copy of the old to be marked.
void NvmeTierImpl::OnWriteAppended(PendingWrite* write, const Status& status) {
  if (write->superseded) return OnGivenUpAppended(write);
  if (!status.ok() || write->replaced_on == AppendItem::kNoDrive) {
    return ResolveWrite(write, status);
  }
  if (NvmeDrive* const old = drives_[write->replaced_on].get(); old->detached()) {
    old->MarkWhenBack();
    return ResolveWrite(write, status);
  }
  Pending& pending = pending_.find(write->meta.id)->second;
  if (pending.moves > 0) {
    pending.replaced = true;
  } else {
    MarkReplaced(write);
  }
}

void NvmeTierImpl::MarkReplaced(PendingWrite* write) {
  drives_[write->replaced_on]->FlushMaps(
      [this, write](const Status& status) { ResolveWrite(write, status); });
}

// Its caller was told that it failed, and may write the block again at once: to another drive,
// whatever becomes of this one.
void NvmeTierImpl::GiveUp(PendingWrite* write) {
  Pending& pending = pending_.find(write->meta.id)->second;
  if (pending.leader != write || LacksOnlyMark(*write)) return;
  write->superseded = true;
  pending.leader = nullptr;
  pending.given_up.push_back(write);
  LeadNext(&pending, TakeFollowers(&pending));
}

// Without those who were told that they are late: their buffers are their callers' again.
std::vector<PendingWrite*> NvmeTierImpl::TakeFollowers(Pending* pending) {
  std::vector<PendingWrite*> followers = std::exchange(pending->followers, {});
  std::erase_if(followers, [this](PendingWrite* follower) {
    const bool late = follower->settled;
    if (late) Retire(follower);
    return late;
  });
  return followers;
}

// Its record, if it has one, is dead and to be marked.
void NvmeTierImpl::OnGivenUpAppended(PendingWrite* write) {
  const BlockId id = write->meta.id;
  ReleasePacked(write);
  std::erase(pending_.find(id)->second.given_up, write);
  Retire(write);
  EndPending(id);
}

void NvmeTierImpl::LeadNext(Pending* pending, std::vector<PendingWrite*> followers) {
  if (followers.empty()) return;
  pending->leader = followers.front();
  pending->followers.assign(followers.begin() + 1, followers.end());
  VerifySome({pending->leader});
}

void NvmeTierImpl::EndPending(const BlockId& id) {
  const auto found = pending_.find(id);
  const Pending& pending = found->second;
  if (pending.leader != nullptr || pending.moves > 0 || !pending.given_up.empty()) return;
  std::vector<PendingErase*> erases = std::move(found->second.erases);
  pending_.erase(found);
  std::map<uint32_t, std::vector<PendingErase*>> by_drive;
  for (PendingErase* erase : erases) StartErase(erase, &by_drive);
  FlushErases(std::move(by_drive));
}

// The block is written, or will not be.
void NvmeTierImpl::ResolveWrite(PendingWrite* write, const Status& status) {
  Pending& pending = pending_.find(write->meta.id)->second;
  AQ_CHECK(pending.leader == write);
  pending.leader = nullptr;
  ReleasePacked(write);
  const bool told_otherwise = status.ok() && write->settled;
  Settle(write, status);
  std::vector<PendingWrite*> followers = TakeFollowers(&pending);
  if (!status.ok() && write->replaced_on != AppendItem::kNoDrive && !write->renews) {
    // It is on its drive, but what it replaced may come back. Told that it failed, its caller
    // counts on neither of the two.
    const NvmeIndex::EntryId entry = shared_.index.Find(write->meta.id);
    drives_[shared_.index.Place(entry).drive]->DropUnmarked(entry);
    OnLost({write->meta.id}, Code::kUnavailable);
  }
  if (told_otherwise && followers.empty() && write->replaced_on == AppendItem::kNoDrive) {
    // Its caller was told that it failed, and may have forgotten it: nobody would ever erase it.
    const NvmeIndex::EntryId entry = shared_.index.Find(write->meta.id);
    drives_[shared_.index.Place(entry).drive]->DropUnmarked(entry);
  } else if (status.ok()) {
    std::erase_if(followers, [this, write](PendingWrite* follower) {
      const bool same = follower->meta.checksum == write->meta.checksum &&
                        follower->meta.expiry_unix_seconds == write->meta.expiry_unix_seconds;
      if (!same) follower->replace = true;
      if (follower->replace) return false;
      Settle(follower, Status());
      Retire(follower);
      return true;
    });
  }
  LeadNext(&pending, std::move(followers));  // The next one tries with its own bytes.
  EndPending(write->meta.id);
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
  std::erase_if(waiting_pack_, [&](PendingWrite* write) {
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
                              : Status(Code::kUnavailable, WhyOut());
  std::deque<AppendItem*> failed = std::move(ready_);
  ready_.clear();
  for (AppendItem* item : failed) ResolveWrite(static_cast<PendingWrite*>(item), why);
}

void NvmeTierImpl::ReportHealth() {
  const bool in = in_service();
  if (!started_ || in == reported_in_) return;
  reported_in_ = in;
  if (listener_ == nullptr) return;
  shared_.Post([this, in, why = in ? Status() : Status(Code::kUnavailable, WhyOut())] {
    listener_->OnHealth(in, why);
  });
}

// ---- Erasing ----

void NvmeTierImpl::Erase(Batch<EraseOp>* caller_batch) {
  auto* const batch = ledger_.Add<EraseBatch>(caller_batch);
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
  ledger_.Release(batch);
}

void NvmeTierImpl::StartErase(PendingErase* erase,
                              std::map<uint32_t, std::vector<PendingErase*>>* by_drive) {
  if (const auto found = pending_.find(erase->id); found != pending_.end()) {
    const NvmeDrive* const held_up_by = HeldUpBy(erase->id, found->second);
    const bool first = found->second.erases.empty();
    if (held_up_by == nullptr || first) found->second.erases.push_back(erase);
    // The first is carried out when the drive lets go; whoever asks meanwhile is not kept waiting.
    if (held_up_by != nullptr) Settle(erase, held_up_by->why());
    if (held_up_by != nullptr && !first) Retire(erase);
    return;
  }
  erase->drives_read = DrivesRead();
  const NvmeIndex::EntryId entry = shared_.index.Find(erase->id);
  if (entry == NvmeIndex::kNone) {
    erase->unknown = true;
    (*by_drive)[UINT32_MAX].push_back(erase);
    return;
  }
  const uint32_t drive = shared_.index.Place(entry).drive;
  ++shared_.counters.blocks_erased;
  drives_[drive]->Drop(entry);
  erase->drive = drive;
  (*by_drive)[drive].push_back(erase);
}

void NvmeTierImpl::FlushErases(std::map<uint32_t, std::vector<PendingErase*>> by_drive) {
  for (auto& [number, erases] : by_drive) {
    if (number == UINT32_MAX) {
      FinishErases(std::move(erases), Status(), 0);
      continue;
    }
    drives_[number]->FlushMaps([this, erases = std::move(erases)](const Status& status) mutable {
      FinishErases(std::move(erases), status, 0);
    });
  }
}

const NvmeDrive* NvmeTierImpl::OutOfService(uint32_t drive) const {
  if (drive >= drives_.size() || drives_[drive]->in_service()) return nullptr;
  return drives_[drive].get();
}

const NvmeDrive* NvmeTierImpl::HeldUpBy(const PendingWrite& write) const {
  const NvmeDrive* const writes = OutOfService(write.drive);
  return writes != nullptr ? writes : OutOfService(write.replaced_on);
}

const NvmeDrive* NvmeTierImpl::HeldUpBy(const BlockId& id, const Pending& pending) const {
  for (const PendingWrite* write : pending.given_up) {
    if (const NvmeDrive* const hangs = HeldUpBy(*write); hangs != nullptr) return hangs;
  }
  if (pending.leader != nullptr) return HeldUpBy(*pending.leader);
  const NvmeIndex::EntryId entry = shared_.index.Find(id);
  return entry == NvmeIndex::kNone ? nullptr : OutOfService(shared_.index.Place(entry).drive);
}

// For a deletion of all that a tenant has: a write whose caller was told that it failed, and which
// a drive is still busy with, may yet put a block there.
bool NvmeTierImpl::MayYetAppear(const BlockId& erased) const {
  if (erased.key != Key{}) return false;
  return std::any_of(pending_.begin(), pending_.end(), [&erased](const auto& pending) {
    if (pending.first.tenant != erased.tenant) return false;
    const PendingWrite* const leader = pending.second.leader;
    return !pending.second.given_up.empty() || (leader != nullptr && leader->settled);
  });
}

size_t NvmeTierImpl::DrivesRead() const {
  return static_cast<size_t>(std::count_if(drives_.begin(), drives_.end(),
                                           [](const auto& drive) { return drive->recovered(); }));
}

// The bits of these are on their drives. But a copy that is gone only from memory may be on any
// drive: what is not marked there is, drive by drive, before they are acknowledged.
void NvmeTierImpl::FinishErases(std::vector<PendingErase*> erases, const Status& status,
                                uint32_t next_drive) {
  for (; status.ok() && next_drive < drives_.size(); ++next_drive) {
    NvmeDrive* const drive = drives_[next_drive].get();
    if (!drive->has_unwritten_marks() || !drive->writable()) continue;
    for (PendingErase* erase : erases) erase->drive = next_drive;
    return drive->FlushMaps(
        [this, erases = std::move(erases), next_drive](const Status& marked) mutable {
          FinishErases(std::move(erases), marked, next_drive + 1);
        });
  }
  // What others want marked since then is theirs to wait for.
  const bool unsure = std::any_of(drives_.begin(), drives_.end(), [](const auto& drive) {
    return drive->may_hold_unmarked_copies();
  });
  const bool all_read = AllRead();
  for (PendingErase* erase : erases) {
    Status result = status;
    EraseLeft left = all_read ? EraseLeft::kMark : EraseLeft::kUnread;
    // A drive that was read meanwhile may have brought another copy.
    const bool came = erase->drives_read != DrivesRead();
    if (came) left = EraseLeft::kCopy;
    if (status.ok() && (unsure || came || MayYetAppear(erase->id))) {
      result = Status(Code::kUnavailable, "a drive may hold a copy");
    } else if (status.ok() && erase->unknown) {
      result = Status(Code::kNotFound);
    }
    if (!erase->settled) erase->batch->batch->ops[erase->index].left = left;
    Settle(erase, std::move(result));
    Retire(erase);
  }
}

void NvmeTierImpl::OnMoveEnds(const BlockId& id) {
  const auto found = pending_.find(id);
  if (--found->second.moves > 0) return;
  if (std::exchange(found->second.replaced, false)) return MarkReplaced(found->second.leader);
  EndPending(id);
}

}  // namespace aquifer
