#include "cache/loader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

// Small batches let the first blocks of a chain arrive while the last are being read; larger ones
// save a little work. 16 blocks or 4 MiB.
constexpr size_t kMaxBatchOps = 16;
constexpr uint64_t kMaxBatchBytes = uint64_t{4} << 20;
constexpr int64_t kRetryNanos = 1'000'000;
constexpr size_t kPumpSlice = 64;
// Keeps several drives busy, and half of the tier's queue free.
constexpr size_t kMaxInFlightBatches = 32;

}  // namespace

Loader::Loader(Residency* residency, TierSpeed* speed, Executor* executor, Clock* clock)
    : residency_(residency), speed_(speed), executor_(executor), clock_(clock) {}

Loader::~Loader() { *alive_ = false; }

uint32_t Loader::NewLoad(BlockRef ref) {
  uint32_t load = 0;
  if (free_loads_.empty()) {
    load = static_cast<uint32_t>(loads_.size());
    loads_.emplace_back();
  } else {
    load = free_loads_.back();
    free_loads_.pop_back();
  }
  loads_[load].ref = ref;
  loads_[load].slot = kNoSlot;
  loads_[load].asked_nanos = clock_->NowNanos();
  loads_[load].deadline_nanos = 0;
  residency_->SetOwnerData(ref, load + 1);
  residency_->BeginIo(ref, kTierNvme);
  ++pending_;
  queue_.push_back(load);
  return load;
}

void Loader::Load(BlockRef ref, int64_t deadline_nanos, const LoadTicket& ticket) {
  const uint32_t known = residency_->at(ref).owner_data;
  if (known != 0) ++stats_.shared_loads;
  const uint32_t load = known != 0 ? known - 1 : NewLoad(ref);
  loads_[load].deadline_nanos = std::max(loads_[load].deadline_nanos, deadline_nanos);
  loads_[load].waiters.push_back(ticket);
}

bool Loader::Wanted(const OneLoad& load) const {
  return std::any_of(load.waiters.begin(), load.waiters.end(),
                     [](const LoadTicket& ticket) { return ticket.waiter->Waits(ticket.run); });
}

// Tells everyone and forgets the load. Waiters may start other loads from inside.
void Loader::Finish(uint32_t load, const Status& status) {
  OneLoad& one = loads_[load];
  const BlockRef ref = one.ref;
  residency_->SetOwnerData(ref, 0);
  for (const LoadTicket& ticket : one.waiters) {
    if (ticket.waiter->Waits(ticket.run)) ticket.waiter->OnLoaded(ticket.op, ref, status);
  }
  one.waiters.clear();
  free_loads_.push_back(load);
  --pending_;
  residency_->EndIo(ref, kTierNvme);
}

Status Loader::TakeSlot(OneLoad* load) {
  Result<SlotId> slot =
      residency_->TakeSlot(residency_->at(load->ref).tenant, residency_->RawBytes(load->ref));
  if (!slot.ok()) return slot.status();
  load->slot = *slot;
  return Status();
}

void Loader::Pump() {
  if (pumping_ || tier_busy_) return;  // A waiter called from Finish() below.
  pumping_ = true;
  PumpSlice();
  pumping_ = false;
}

void Loader::PumpSlice() {
  ReadBatch* read = nullptr;
  bool starved = false;
  size_t left = std::min(queue_.size(), kPumpSlice);
  for (; left > 0 && !starved && in_flight_batches_ < kMaxInFlightBatches; --left) {
    const uint32_t load = queue_.front();
    OneLoad& one = loads_[load];
    queue_.pop_front();
    if (residency_->at(one.ref).state == BlockState::kGone) {
      Finish(load, Status(Code::kNotFound));
      continue;
    }
    if (!Wanted(one)) {  // Everyone left before it began.
      Finish(load, Status(Code::kLate));
      continue;
    }
    if (source_ == nullptr || !source_->in_service()) {
      Finish(load, Status(Code::kUnavailable, "the NVMe tier is out of service"));
      continue;
    }
    if (const Status status = TakeSlot(&one); !status.ok()) {
      if (status.code() == Code::kInvalid) {
        Finish(load, Status(Code::kNoSpace, status.message()));
        continue;
      }
      queue_.push_front(load);  // In chain order: nobody overtakes.
      starved = true;
      break;
    }
    if (read == nullptr) {
      read = TakeBatch();
    }
    ReadOp& op = read->batch.ops.emplace_back();
    op.id = residency_->IdOf(one.ref);
    op.target = residency_->SlotBytes(one.slot);
    read->batch.deadline_nanos = std::max(read->batch.deadline_nanos, one.deadline_nanos);
    read->loads.push_back(load);
    read->tenants.push_back(residency_->at(one.ref).tenant);
    read->slots.push_back(one.slot);
    read->bytes += op.target.size();
    if (read->loads.size() == kMaxBatchOps || read->bytes >= kMaxBatchBytes) {
      Submit(std::exchange(read, nullptr));
    }
  }
  if (read != nullptr) Submit(read);
  if (starved) return RetrySoon();
  // A batch that ends pumps on.
  if (queue_.empty() || in_flight_batches_ >= kMaxInFlightBatches) return;
  if (std::exchange(again_posted_, true)) return;
  executor_->Post([this, alive = alive_] {
    if (!*alive) return;
    again_posted_ = false;
    Pump();
  });
}

void Loader::RetrySoon() {
  if (retry_posted_) return;
  retry_posted_ = true;
  executor_->PostAt(clock_->NowNanos() + kRetryNanos, [this, alive = alive_] {
    if (!*alive) return;
    retry_posted_ = tier_busy_ = false;
    Pump();
  });
}

Loader::ReadBatch* Loader::TakeBatch() {
  if (free_batches_.empty()) {
    batches_.push_back(std::make_unique<ReadBatch>());
    ReadBatch* const read = batches_.back().get();
    // Set once: a batch is used again from inside its own on_done.
    read->batch.on_done = [this, read](Batch<ReadOp>&) { OnDone(read); };
    read->batch.on_quiescent = [this, read](Batch<ReadOp>&, size_t i) { OnQuiescent(read, i); };
    read->batch.deadline_nanos = 0;
    free_batches_.push_back(read);
  }
  ReadBatch* const read = free_batches_.back();
  free_batches_.pop_back();
  return read;
}

void Loader::Submit(ReadBatch* read) {
  const int64_t now = clock_->NowNanos();
  ++in_flight_batches_;
  read->submitted_nanos = now;
  for (const uint32_t load : read->loads) stats_.wait.Add(now - loads_[load].asked_nanos);
  read->queued_bytes = speed_->queued_bytes();
  speed_->Submitted(now, read->bytes, static_cast<uint32_t>(read->loads.size()));
  source_->Read(&read->batch);
}

void Loader::OnDone(ReadBatch* read) {
  --in_flight_batches_;
  const int64_t now = clock_->NowNanos();
  const auto ops = static_cast<uint32_t>(read->loads.size());
  const SpeedSample sample{.bytes = read->bytes,
                           .ops = ops,
                           .queued_bytes = read->queued_bytes,
                           .elapsed_nanos = now - read->submitted_nanos};
  const auto all = [read](Code code) {
    return std::all_of(read->batch.ops.begin(), read->batch.ops.end(),
                       [code](const ReadOp& op) { return op.status.code() == code; });
  };
  if (all(Code::kOk)) {
    speed_->Completed(now, sample);
  } else if (all(Code::kLate)) {
    speed_->Late(now, sample);
  } else {
    speed_->Failed(now, read->bytes, ops);
  }
  for (size_t i = 0; i < read->loads.size(); ++i) OnRead(read, i);
  if (read->unquiet == 0) Recycle(read);
  Pump();
}

void Loader::OnRead(ReadBatch* read, size_t i) {
  const ReadOp& op = read->batch.ops[i];
  const uint32_t load = read->loads[i];
  const BlockRef ref = loads_[load].ref;
  const bool gone = residency_->at(ref).state == BlockState::kGone;
  if (op.status.ok() && !gone && op.checksum == residency_->at(ref).checksum) {
    ++stats_.loads;
    stats_.loaded_bytes += op.target.size();
    stats_.load.Add(clock_->NowNanos() - loads_[load].asked_nanos);
    residency_->ArriveInDram(ref, read->slots[i]);
    return Finish(load, Status());
  }
  if (op.in_flight) {
    residency_->QuarantineSlot(read->slots[i]);
    ++read->unquiet;
  } else {
    residency_->FreeSlot(read->tenants[i], read->slots[i]);
  }
  loads_[load].slot = kNoSlot;
  if (gone) return Finish(load, op.status.ok() ? Status(Code::kNotFound) : op.status);
  switch (op.status.code()) {
    case Code::kBusy:
      tier_busy_ = true;
      queue_.push_front(load);
      return RetrySoon();
    case Code::kLate:
      ++stats_.late_loads;
      if (Wanted(loads_[load]) && loads_[load].deadline_nanos > clock_->NowNanos()) {
        queue_.push_front(load);  // Someone with more time joined after it was submitted.
        return RetrySoon();
      }
      return Finish(load, op.status);
    case Code::kOk:  // Intact, but not what was stored under this key.
      ++stats_.failed_loads;
      residency_->Drop(ref, Leave::kCorrupt);
      return Finish(load, Status(Code::kCorrupt));
    case Code::kCorrupt:
    case Code::kNotFound:
      ++stats_.failed_loads;
      residency_->LeaveNvme(
          ref, op.status.code() == Code::kCorrupt ? Leave::kCorrupt : Leave::kLostByTier);
      return Finish(load, op.status);
    default:
      ++stats_.failed_loads;
      return Finish(load, op.status);
  }
}

void Loader::OnQuiescent(ReadBatch* read, size_t i) {
  residency_->FreeSlot(read->tenants[i], read->slots[i]);
  AQ_CHECK(read->unquiet > 0);
  if (--read->unquiet == 0) Recycle(read);
  Pump();
}

void Loader::Recycle(ReadBatch* read) {
  read->batch.ops.clear();
  read->batch.deadline_nanos = 0;
  read->loads.clear();
  read->tenants.clear();
  read->slots.clear();
  read->bytes = 0;
  free_batches_.push_back(read);
}

}  // namespace aquifer
