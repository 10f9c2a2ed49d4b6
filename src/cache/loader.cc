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
// Looking for a slot in vain may take long: so often in a slice.
constexpr size_t kMaxStarved = 8;
// Of all drives together: half of the tier's queue. Each has an equal share, and no less than that.
constexpr size_t kMaxInFlightBatches = 32;
constexpr size_t kMinInFlightBatches = 2;

}  // namespace

Loader::Loader(Residency* residency, TierSpeed* speed, Executor* executor, Clock* clock)
    : residency_(residency), speed_(speed), executor_(executor), clock_(clock) {}

Loader::~Loader() { *alive_ = false; }

Loader::OneLoad* Loader::NewLoad(BlockRef ref) {
  if (free_loads_.empty()) {
    OneLoad& added = loads_.emplace_back();
    added.number = static_cast<uint32_t>(loads_.size() - 1);
    free_loads_.PushBack(&added);
  }
  OneLoad* const load = free_loads_.PopFront();
  load->ref = ref;
  load->slot = kNoSlot;
  load->asked_nanos = clock_->NowNanos();
  load->deadline_nanos = 0;
  load->lane = LaneOf(ref);
  residency_->SetOwnerData(ref, load->number + 1);
  residency_->BeginIo(ref, kTierNvme);
  ++pending_;
  Queue(load);
  return load;
}

Loader::Lane* Loader::LaneOf(BlockRef ref) {
  const uint32_t device = source_ == nullptr ? 0 : source_->DeviceOf(residency_->IdOf(ref));
  if (devices_.size() <= device) devices_.resize(device + 1);
  Lane& lane = lanes_[{device, residency_->at(ref).tenant, residency_->SlotBytesOf(ref)}];
  lane.device = device;
  return &lane;
}

void Loader::Queue(OneLoad* load) {
  load->lane->loads.PushBack(load);
  if (!std::exchange(load->lane->queued, true)) ready_.PushBack(load->lane);
}

// It had its turn before.
void Loader::QueueFirst(OneLoad* load) {
  load->lane->loads.PushFront(load);
  if (!std::exchange(load->lane->queued, true)) ready_.PushBack(load->lane);
}

void Loader::Load(BlockRef ref, int64_t deadline_nanos, const LoadTicket& ticket) {
  const uint32_t known = residency_->at(ref).owner_data;
  if (known != 0) ++stats_.shared_loads;
  OneLoad* const load = known != 0 ? &loads_[known - 1] : NewLoad(ref);
  load->deadline_nanos = std::max(load->deadline_nanos, deadline_nanos);
  load->waiters.push_back(ticket);
}

bool Loader::Wanted(const OneLoad& load) const {
  return std::any_of(load.waiters.begin(), load.waiters.end(),
                     [](const LoadTicket& ticket) { return ticket.waiter->Waits(ticket.run); });
}

// Tells everyone and forgets the load. Waiters may start other loads from inside.
void Loader::Finish(OneLoad* load, const Status& status) {
  const BlockRef ref = load->ref;
  residency_->SetOwnerData(ref, 0);
  for (const LoadTicket& ticket : load->waiters) {
    if (ticket.waiter->Waits(ticket.run)) ticket.waiter->OnLoaded(ticket.op, ref, status);
  }
  load->waiters.clear();
  free_loads_.PushBack(load);
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
  ready_.TakeAll(&aside_);
  PumpSlice();
}

void Loader::PumpSlice() {
  pumping_ = true;
  size_t starved = 0;
  for (size_t left = kPumpSlice; left > 0 && starved < kMaxStarved && !ready_.empty(); --left) {
    Lane* const lane = ready_.PopFront();
    const Turn turn = StartOne(lane);
    if (turn == Turn::kNoSlot) ++starved;
    lane->queued = !lane->loads.empty();
    if (lane->queued) (turn == Turn::kTaken ? ready_ : aside_).PushBack(lane);
  }
  for (Device& device : devices_) {
    if (device.filling != nullptr) Submit(std::exchange(device.filling, nullptr));
  }
  pumping_ = false;
  if (starved > 0) RetrySoon();  // Who waits for a place goes on when a batch ends.
  if (ready_.empty() || std::exchange(again_posted_, true)) return;
  executor_->Post([this, alive = alive_] {
    if (!*alive) return;
    again_posted_ = false;
    if (!tier_busy_) PumpSlice();
  });
}

Loader::Turn Loader::StartOne(Lane* lane) {
  OneLoad* const load = lane->loads.PopFront();
  const auto finish = [this, load](const Status& status) {
    Finish(load, status);
    return Turn::kTaken;
  };
  if (residency_->at(load->ref).state == BlockState::kGone) return finish(Status(Code::kNotFound));
  if (!Wanted(*load)) return finish(Status(Code::kLate));  // Everyone left before it began.
  if (source_ == nullptr || !source_->in_service()) {
    return finish(Status(Code::kUnavailable, "the NVMe tier is out of service"));
  }
  if (!HasPlace(devices_[lane->device])) {
    if (source_->Probe(residency_->IdOf(load->ref)).code() == Code::kUnavailable) {
      return finish(Status(Code::kUnavailable, "its drive is out of service"));
    }
    lane->loads.PushFront(load);
    return Turn::kNoPlace;
  }
  if (const Status status = TakeSlot(load); !status.ok()) {
    if (status.code() == Code::kInvalid) return finish(Status(Code::kNoSpace, status.message()));
    lane->loads.PushFront(load);  // In chain order: nobody overtakes.
    return Turn::kNoSlot;
  }
  AddToBatch(load);
  return Turn::kTaken;
}

bool Loader::HasPlace(const Device& device) const {
  const size_t share = std::max(kMaxInFlightBatches / devices_.size(), kMinInFlightBatches);
  return device.filling != nullptr || device.batches < share;
}

void Loader::AddToBatch(OneLoad* load) {
  Device& device = devices_[load->lane->device];
  if (device.filling == nullptr) {
    device.filling = TakeBatch();
    device.filling->device = load->lane->device;
  }
  ReadBatch* const read = device.filling;
  ReadOp& op = read->batch.ops.emplace_back();
  op.id = residency_->IdOf(load->ref);
  op.target = residency_->SlotBytes(load->slot);
  read->batch.deadline_nanos = std::max(read->batch.deadline_nanos, load->deadline_nanos);
  read->loads.push_back(load);
  read->tenants.push_back(residency_->at(load->ref).tenant);
  read->slots.push_back(load->slot);
  read->bytes += op.target.size();
  if (read->loads.size() == kMaxBatchOps || read->bytes >= kMaxBatchBytes) {
    Submit(std::exchange(device.filling, nullptr));
  }
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
  ++devices_[read->device].batches;
  read->submitted_nanos = now;
  for (const OneLoad* load : read->loads) stats_.wait.Add(now - load->asked_nanos);
  read->queued_bytes = speed_->queued_bytes();
  speed_->Submitted(now, read->bytes, static_cast<uint32_t>(read->loads.size()));
  source_->Read(&read->batch);
}

void Loader::OnDone(ReadBatch* read) {
  --devices_[read->device].batches;
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
  OneLoad* const load = read->loads[i];
  const BlockRef ref = load->ref;
  const bool gone = residency_->at(ref).state == BlockState::kGone;
  if (op.status.ok() && !gone && op.checksum == residency_->at(ref).checksum) {
    ++stats_.loads;
    stats_.loaded_bytes += op.target.size();
    stats_.load.Add(clock_->NowNanos() - load->asked_nanos);
    residency_->ArriveInDram(ref, read->slots[i]);
    return Finish(load, Status());
  }
  if (op.in_flight) {
    residency_->QuarantineSlot(read->slots[i]);
    ++read->unquiet;
  } else {
    residency_->FreeSlot(read->tenants[i], read->slots[i]);
  }
  load->slot = kNoSlot;
  if (gone) return Finish(load, op.status.ok() ? Status(Code::kNotFound) : op.status);
  switch (op.status.code()) {
    case Code::kBusy:
      tier_busy_ = true;
      QueueFirst(load);
      return RetrySoon();
    case Code::kLate:
      ++stats_.late_loads;
      if (Wanted(*load) && load->deadline_nanos > clock_->NowNanos()) {
        QueueFirst(load);  // Someone with more time joined after it was submitted.
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
