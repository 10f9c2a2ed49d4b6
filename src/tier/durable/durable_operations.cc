// Reading, looking, writing and erasing: from a caller's batch to the store and back.
#include <fmt/format.h>

#include <utility>

#include "base/planted_bug.h"
#include "io/disk/disk.h"
#include "tier/durable/durable_tier_impl.h"

namespace aquifer {
namespace {

bool IsPages(std::span<const std::byte> memory) {
  return !memory.empty() && memory.size() % kPageBytes == 0 &&
         reinterpret_cast<uintptr_t>(memory.data()) % kPageBytes == 0;
}

Status WrongLength(uint64_t block_bytes, uint64_t given_bytes) {
  return Status(Code::kInvalid,
                fmt::format("the block has {} bytes, its memory {}; it must be that "
                            "rounded up to 4096, and aligned",
                            block_bytes, given_bytes));
}

}  // namespace

bool LastsLongEnough(int64_t there_unix_seconds, int64_t wanted_unix_seconds,
                     int64_t now_unix_seconds) {
  if (there_unix_seconds == 0) return true;
  if (wanted_unix_seconds == 0) return false;
  return there_unix_seconds - now_unix_seconds >= (wanted_unix_seconds - now_unix_seconds) / 2;
}

// ---- Reading ----

void DurableTierImpl::Read(Batch<ReadOp>* caller_batch) {
  auto* const batch = ledger_.Add<ReadBatch>(caller_batch);
  if (batch == nullptr) return;
  // Retiring the last operation frees the batch, so what is refused is retired at the end.
  std::vector<DurableRead*> refused;
  for (DurableRead& read : batch->states) {
    const ReadOp& op = caller_batch->ops[read.index];
    Status status = IsPages(op.target)
                        ? Admit(op.id, &read)
                        : Status(Code::kInvalid, "the target is not made of whole pages");
    if (status.ok()) {
      StartRead(&read);
    } else {
      Settle(&read, std::move(status));
      refused.push_back(&read);
    }
  }
  for (DurableRead* read : refused) Retire(read);
}

void DurableTierImpl::StartRead(DurableRead* read) {
  const Batch<ReadOp>& batch = *read->batch->batch;
  const ReadOp& op = batch.ops[read->index];
  read->trip = NewTrip(BlobKind::kRead, BlobNameOf(op.id, read->key.get()), batch.deadline_nanos);
  read->trip->request.body = op.target;
  read->touched = true;
  Submit(read->trip, [this, read](Trip& trip) { OnRead(read, trip); });
}

// A read whose caller was told that it is late is only retired: its batch may be gone.
void DurableTierImpl::OnRead(DurableRead* read, const Trip& trip) {
  const std::shared_ptr<Trip> keep = std::exchange(read->trip, nullptr);
  if (read->settled) return FinishRead(read, Status());
  const ReadOp& op = read->batch->batch->ops[read->index];
  const Status& status = trip.request.status;
  if (status.code() == Code::kCorrupt) {
    read->trip = NewTrip(BlobKind::kLook, trip.request.name, trip.request.deadline_nanos);
    return Submit(read->trip, [this, read](Trip& look) { OnMisfit(read, look); });
  }
  if (!status.ok()) return FinishRead(read, status);
  const Result<BlockMeta> meta = CheckHead(trip, op.id, read->key.get());
  if (!meta.ok()) {
    if (meta.status().code() == Code::kCorrupt) Suspect(op.id);
    return FinishRead(read, meta.status());
  }
  if (op.target.size() != RoundUpToPage(meta->raw_bytes)) {
    return FinishRead(read, WrongLength(meta->raw_bytes, op.target.size()));
  }
  auto job = std::make_shared<UnpackJob>();
  job->meta = *meta;
  job->target = op.target;
  job->key = read->key;
  RunOnWorker([packer = packer_, job] { packer->Unpack(job.get()); },
              [this, read, job] { OnUnpacked(read, *job); });
}

// The store says that it is not whole or does not fit. Which of the two, its header tells.
void DurableTierImpl::OnMisfit(DurableRead* read, const Trip& trip) {
  const std::shared_ptr<Trip> keep = std::exchange(read->trip, nullptr);
  if (read->settled) return FinishRead(read, Status());
  const ReadOp& op = read->batch->batch->ops[read->index];
  const Code code = trip.request.status.code();
  if (code != Code::kOk && code != Code::kCorrupt) return FinishRead(read, trip.request.status);
  Status damage(Code::kCorrupt, "what is stored is not whole");
  if (code == Code::kOk) {
    const Result<BlockMeta> meta = CheckHead(trip, op.id, read->key.get());
    if (!meta.ok()) {
      damage = meta.status();
    } else if (RoundUpToPage(meta->raw_bytes) != op.target.size()) {
      return FinishRead(read, WrongLength(meta->raw_bytes, op.target.size()));
    } else {
      ++counters_.corrupt_blobs;
    }
  } else {
    ++counters_.corrupt_blobs;
  }
  if (damage.code() == Code::kCorrupt) Suspect(op.id);
  FinishRead(read, std::move(damage));
}

void DurableTierImpl::OnUnpacked(DurableRead* read, const UnpackJob& job) {
  if (job.target_gone) {
    return FinishRead(read, job.status);
  } else if (!job.status.ok()) {
    ++(job.refused_seal ? counters_.refused_seals : counters_.corrupt_blobs);
    Suspect(job.meta.id);
  } else {
    suspects_.erase(job.meta.id);
    ++counters_.blocks_read;
    counters_.bytes_read += job.meta.raw_bytes;
    if (!read->settled) {
      ReadOp& op = read->batch->batch->ops[read->index];
      op.checksum = job.meta.checksum;
      if (op.meta != nullptr) *op.meta = job.meta;
    }
  }
  FinishRead(read, job.status);
}

void DurableTierImpl::FinishRead(DurableRead* read, Status status) {
  if (!read->settled && status.code() == Code::kNotFound) ++counters_.blocks_missed;
  read->batch->Untouch(read, executor_);
  Settle(read, std::move(status));
  Retire(read);
}

// ---- Looking ----

void DurableTierImpl::Look(Batch<LookOp>* caller_batch) {
  auto* const batch = ledger_.Add<LookBatch>(caller_batch);
  if (batch == nullptr) return;
  std::vector<DurableLook*> refused;
  for (DurableLook& look : batch->states) {
    const LookOp& op = caller_batch->ops[look.index];
    Status status = IsSuspect(op.id) ? Status(Code::kNotFound) : Admit(op.id, &look);
    if (!status.ok()) {
      Settle(&look, std::move(status));
      refused.push_back(&look);
      continue;
    }
    ++counters_.looks;
    look.trip =
        NewTrip(BlobKind::kLook, BlobNameOf(op.id, look.key.get()), caller_batch->deadline_nanos);
    Submit(look.trip, [this, at = &look](Trip& trip) { OnLooked(at, trip); });
  }
  for (DurableLook* look : refused) Retire(look);
}

void DurableTierImpl::OnLooked(DurableLook* look, const Trip& trip) {
  const std::shared_ptr<Trip> keep = std::exchange(look->trip, nullptr);
  if (!look->settled) {
    LookOp& op = look->batch->batch->ops[look->index];
    Status status = trip.request.status;
    if (status.code() == Code::kCorrupt) ++counters_.corrupt_blobs;
    if (status.ok()) {
      const Result<BlockMeta> meta = CheckHead(trip, op.id, look->key.get());
      if (meta.ok()) op.meta = *meta;
      status = meta.status();
    }
    Settle(look, std::move(status));
  }
  Retire(look);
}

// ---- Writing ----

void DurableTierImpl::Write(Batch<WriteOp>* caller_batch) {
  auto* const batch = ledger_.Add<WriteBatch>(caller_batch);
  if (batch == nullptr) return;
  std::vector<DurableWrite*> refused;
  for (DurableWrite& write : batch->states) {
    const WriteOp& op = caller_batch->ops[write.index];
    Status status = CheckWrite(op);
    if (status.ok()) status = Admit(op.meta.id, &write);
    if (!status.ok()) {
      Settle(&write, std::move(status));
      refused.push_back(&write);
      continue;
    }
    write.meta = op.meta;
    write.replace = op.replace;
    Enter(op.meta.id, &write);
  }
  for (DurableWrite* write : refused) Retire(write);
}

Status DurableTierImpl::CheckWrite(const WriteOp& op) const {
  if (op.meta.codec != Codec::kNone || op.meta.stored_bytes != op.meta.raw_bytes) {
    return Status(Code::kInvalid, "a block comes to the tier as its engine made it");
  }
  if (op.meta.raw_bytes == 0 || op.meta.raw_bytes > options_.max_block_bytes) {
    return Status(Code::kInvalid, fmt::format("a block of {} bytes; max_block_bytes is {}",
                                              op.meta.raw_bytes, options_.max_block_bytes));
  }
  if (!IsPages(op.source) || op.source.size() != RoundUpToPage(op.meta.raw_bytes)) {
    return WrongLength(op.meta.raw_bytes, op.source.size());
  }
  return Status();
}

void DurableTierImpl::BeginWrite(DurableWrite* write) {
  if (write->settled) return FinishWrite(write, Status());
  const WriteOp& op = write->batch->batch->ops[write->index];
  write->packed = std::make_shared<PackedBlock>();
  write->packed->Describe(op, write->key, options_.lossless, packer_, pace_.bytes_per_second());
  if (!waiting_.empty() || !write->packed->TakeScratch(&scratch_)) {
    waiting_.push_back(write);
  } else {
    RunPack(write);
  }
}

void DurableTierImpl::SchedulePump() {
  if (waiting_.empty() || std::exchange(pump_scheduled_, true)) return;
  Post([this] { Pump(); });
}

void DurableTierImpl::Pump() {
  pump_scheduled_ = false;
  while (!waiting_.empty()) {
    DurableWrite* const write = waiting_.front();
    if (!write->settled && !write->packed->TakeScratch(&scratch_)) return;
    waiting_.pop_front();
    if (write->settled) {
      FinishWrite(write, Status());
    } else {
      RunPack(write);
    }
  }
}

void DurableTierImpl::RunPack(DurableWrite* write) {
  write->touched = true;
  RunOnWorker([packer = packer_, packed = write->packed] { packer->Pack(&packed->job); },
              [this, write] { OnPacked(write); });
}

void DurableTierImpl::OnPacked(DurableWrite* write) {
  const PackJob& job = write->packed->job;
  if (write->settled) return FinishWrite(write, Status());
  if (!job.status.ok()) {
    ++counters_.corrupt_sources;
    return FinishWrite(write, job.status);
  }
  // What lies in scratch memory needs the caller's no more.
  if (write->packed->apart()) write->batch->Untouch(write, executor_);
  SubmitWrite(write, !write->replace && !suspects_.contains(write->meta.id));
}

void DurableTierImpl::SubmitWrite(DurableWrite* write, bool if_absent) {
  const PackJob& job = write->packed->job;
  write->trip = NewWriteTrip(write->packed, BlobNameOf(job.meta.id, write->key.get()),
                             write->batch->batch->deadline_nanos);
  write->trip->request.if_absent = if_absent;
  Submit(write->trip, [this, write](Trip& done) { OnWritten(write, done); });
}

void DurableTierImpl::OnWritten(DurableWrite* write, const Trip& trip) {
  const std::shared_ptr<Trip> keep = std::exchange(write->trip, nullptr);
  const BlobRequest& request = trip.request;
  if (request.status.code() == Code::kCorrupt && !write->settled) {
    return OnDamaged(write, request);
  }
  if (!request.status.ok()) return FinishWrite(write, request.status);
  if (request.existed) {
    if (write->settled) return FinishWrite(write, Status());
    write->trip = NewTrip(BlobKind::kLook, request.name, request.deadline_nanos);
    return Submit(write->trip, [this, write](Trip& look) { OnExisting(write, look); });
  }
  const BlockMeta& meta = write->packed->job.meta;
  ++counters_.blocks_written;
  counters_.bytes_written += meta.stored_bytes;
  counters_.raw_bytes_written += meta.raw_bytes;
  if (meta.codec != Codec::kNone) ++counters_.blocks_smaller;
  suspects_.erase(meta.id);
  FinishWrite(write, Status());
}

// What the store has under that name is no blob. Never kCorrupt: that says that our bytes are.
void DurableTierImpl::OnDamaged(DurableWrite* write, const BlobRequest& request) {
  if (!request.if_absent) {
    return FinishWrite(write, Status(Code::kInvalid, request.status.message()));
  }
  ++counters_.blocks_overwritten;
  SubmitWrite(write, false);
}

// Somebody has written it before, as we would have; but it may be damaged, or about to go.
void DurableTierImpl::OnExisting(DurableWrite* write, const Trip& trip) {
  const std::shared_ptr<Trip> keep = std::exchange(write->trip, nullptr);
  if (write->settled) return FinishWrite(write, Status());
  const Code code = trip.request.status.code();
  const bool known = code == Code::kOk || code == Code::kCorrupt || code == Code::kNotFound;
  if (!known) return FinishWrite(write, trip.request.status);
  if (code == Code::kOk) {
    const Result<BlockMeta> meta = CheckHead(trip, write->meta.id, write->key.get());
    if (meta.ok() && LastsLongEnough(meta->expiry_unix_seconds, write->meta.expiry_unix_seconds,
                                     clock_->UnixSeconds())) {
      ++counters_.blocks_there;
      return FinishWrite(write, Status());
    }
  }
  ++counters_.blocks_overwritten;
  SubmitWrite(write, false);
}

void DurableTierImpl::FinishWrite(DurableWrite* write, Status status) {
  const BlockId id = write->meta.id;
  write->packed.reset();  // And with it the scratch memory, unless the store still has it.
  write->batch->Untouch(write, executor_);
  Settle(write, std::move(status));
  Retire(write);
  Leave(id);
  SchedulePump();
}

// ---- Erasing ----

void DurableTierImpl::Erase(Batch<EraseOp>* caller_batch) {
  auto* const batch = ledger_.Add<EraseBatch>(caller_batch);
  if (batch == nullptr) return;
  std::vector<DurableErase*> refused;
  for (DurableErase& erase : batch->states) {
    EraseOp& op = caller_batch->ops[erase.index];
    op.left = EraseLeft::kCopy;
    // What a key that is gone has sealed goes with its generation, and never by name: when that
    // was tried again, the tenant might have the same block under another key. So it is not to be
    // tried again, also where the store is away.
    Status status = IsKeyless(op.id.tenant) ? Status(Code::kNotFound) : Admit(op.id, &erase);
    if (!status.ok()) {
      Settle(&erase, std::move(status));
      refused.push_back(&erase);
      continue;
    }
    erase.id = op.id;
    Enter(op.id, &erase);
  }
  for (DurableErase* erase : refused) Retire(erase);
}

void DurableTierImpl::BeginErase(DurableErase* erase) {
  if (erase->settled || Planted(PlantedBug::kStoreDeletionLost)) {
    return FinishErase(erase, Status());
  }
  erase->trip = NewTrip(BlobKind::kRemove, BlobNameOf(erase->id, erase->key.get()),
                        erase->batch->batch->deadline_nanos);
  Submit(erase->trip, [this, erase](Trip& trip) {
    const std::shared_ptr<Trip> keep = std::exchange(erase->trip, nullptr);
    FinishErase(erase, trip.request.status);
  });
}

void DurableTierImpl::FinishErase(DurableErase* erase, Status status) {
  const BlockId id = erase->id;
  if (status.ok() || status.code() == Code::kNotFound) suspects_.erase(id);
  Settle(erase, std::move(status));
  Retire(erase);
  Leave(id);
}

// ---- One behind the other ----

void DurableTierImpl::Enter(const BlockId& id, Change change) {
  std::deque<Entered>& line = changes_[id];
  line.push_back({.change = change, .number = next_change_++});
  if (line.size() == 1) Begin(change);
}

void DurableTierImpl::Begin(Change change) {
  if (DurableWrite* const* const write = std::get_if<DurableWrite*>(&change)) {
    BeginWrite(*write);
  } else {
    BeginErase(std::get<DurableErase*>(change));
  }
}

void DurableTierImpl::Leave(const BlockId& id) {
  const auto found = changes_.find(id);
  found->second.pop_front();
  if (found->second.empty()) {
    changes_.erase(found);
  } else {
    Begin(found->second.front().change);
  }
}

}  // namespace aquifer
