#include "cache/transfer/loader.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

// Small batches let the first blocks of a chain arrive while the last are being
// read; larger ones save a little work. 16 blocks or 4 MiB.
constexpr size_t kMaxBatchOps = 16;
constexpr uint64_t kMaxBatchBytes = uint64_t{4} << 20;
constexpr int64_t kRetryNanos = 1'000'000;
constexpr size_t kPumpSlice = 64;
// Looking for a slot in vain may take long: so often in a slice.
constexpr size_t kMaxStarved = 8;
constexpr size_t kStuckSlice = 64;
constexpr size_t kTellSlice = 64;
// For one that joins two are looked at, so that those who left never outnumber
// the others by far.
constexpr size_t kLookedAtPerJoin = 2;
constexpr size_t kLookedAtPerTurn = 64;
// Of all drives together: the tier's queue has room for them beside all else.
// Each has an equal share, and no less than that.
constexpr size_t kMaxInFlightBatches = 32;
constexpr size_t kMinInFlightBatches = 2;

}  // namespace

Loader::Loader(Residency* residency, TierSpeed* speed, Executor* executor, Clock* clock,
               uint64_t max_bytes)
    : residency_(residency),
      speed_(speed),
      executor_(executor),
      clock_(clock),
      max_bytes_(max_bytes) {}

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
  load->stuck = false;
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
  load->queued = true;
  load->lane->loads.PushBack(load);
  if (!std::exchange(load->lane->queued, true)) ready_.PushBack(load->lane);
}

// It had its turn before.
void Loader::QueueFirst(OneLoad* load) {
  load->queued = true;
  load->lane->loads.PushFront(load);
  if (!std::exchange(load->lane->queued, true)) ready_.PushBack(load->lane);
}

void Loader::Load(BlockRef ref, int64_t deadline_nanos, const LoadTicket& ticket) {
  const uint32_t known = residency_->at(ref).owner_data;
  if (known != 0) ++stats_.shared_loads;
  OneLoad* const load = known != 0 ? &loads_[known - 1] : NewLoad(ref);
  load->deadline_nanos = std::max(load->deadline_nanos, deadline_nanos);
  Join(load, ticket);
  if (load->stuck && !load->queued) Queue(load);  // To be told how that stands.
}

void Loader::Join(OneLoad* load, const LoadTicket& ticket) {
  for (size_t i = 0; i < kLookedAtPerJoin; ++i) LookAtNextWaiter(load);
  if (free_waiting_.empty()) free_waiting_.PushBack(&waiting_.emplace_back());
  Waiting* const waiting = free_waiting_.PopFront();
  waiting->ticket = ticket;
  load->waiters.PushBack(waiting);
}

// From the front to the back and then again; their order stays.
void Loader::LookAtNextWaiter(OneLoad* load) {
  Waiting* const before = load->looked_at;
  Waiting* const next = before == nullptr ? load->waiters.front() : before->next;
  if (next == nullptr) {
    load->looked_at = nullptr;
  } else if (next->ticket.waiter->Waits(next->ticket.run)) {
    load->looked_at = next;
  } else {
    free_waiting_.PushBack(before == nullptr ? load->waiters.PopFront()
                                             : load->waiters.PopAfter(before));
  }
}

// Also where those at the front are many and have all left: that is seen the
// next time.
bool Loader::Wanted(OneLoad* load) {
  for (size_t left = kLookedAtPerTurn; left > 0 && !load->waiters.empty(); --left) {
    const LoadTicket& ticket = load->waiters.front()->ticket;
    if (ticket.waiter->Waits(ticket.run)) return true;
    load->looked_at = nullptr;
    free_waiting_.PushBack(load->waiters.PopFront());
  }
  return !load->waiters.empty();
}

// They may start other loads from inside, and ask for this one again.
bool Loader::Tell(OneLoad* load, LinkedQueue<Waiting>* waiters, const Status& status) {
  for (; tells_left_ > 0 && !waiters->empty(); --tells_left_) {
    Waiting* const waiting = waiters->PopFront();
    const LoadTicket ticket = waiting->ticket;
    free_waiting_.PushBack(waiting);
    if (ticket.waiter->Waits(ticket.run)) ticket.waiter->OnLoaded(ticket.op, load->ref, status);
  }
  return waiters->empty();
}

void Loader::TellLater(OneLoad* load, LinkedQueue<Waiting>* waiters, const Status& status) {
  ++load->telling;
  telling_.push_back({load, *waiters, status});
  TellMoreLater();
}

void Loader::TellMoreLater() {
  tell_.Post(&tasks_, [this] { TellSlice(); });
}

void Loader::TellSlice() {
  tells_left_ = kTellSlice;
  while (tells_left_ > 0 && !telling_.empty()) {
    Telling now = std::move(telling_.front());
    telling_.pop_front();
    const BlockEntry& entry = residency_->at(now.load->ref);
    if (now.status.ok() && !entry.in_tier(kTierDram)) {
      // It has left again: they wait for the next read, if there can be one.
      if (entry.state == BlockState::kGone) now.status = Status(Code::kNotFound);
      if (now.status.ok()) now.load->waiters.TakeAll(&now.waiters);
    }
    const bool all = Tell(now.load, &now.waiters, now.status);
    if (!all) TellLater(now.load, &now.waiters, now.status);
    --now.load->telling;
    GoOnOrForget(now.load);
  }
  // A slice may end with the last who waited for one load, and leave those of others.
  if (telling_.empty()) {
    Pump();
  } else {
    TellMoreLater();
  }
}

void Loader::GoOnOrForget(OneLoad* load) {
  if (load->queued || load->reading || load->telling > 0) return;
  if (!load->waiters.empty()) return Queue(load);
  if (load->stuck) return;
  const BlockRef ref = load->ref;
  residency_->SetOwnerData(ref, 0);
  free_loads_.PushBack(load);
  --pending_;
  residency_->EndIo(ref, kTierNvme);
}

// That is all for those who wait. While its drive still reads it is kept, so
// that nobody starts the same once more.
void Loader::Settle(OneLoad* load, const Status& status) {
  stuck_.erase(load->number);
  LinkedQueue<Waiting> waiters = std::exchange(load->waiters, {});
  load->looked_at = nullptr;
  // Behind those who have to wait for their turn to be told.
  if (!telling_.empty() || !Tell(load, &waiters, status)) TellLater(load, &waiters, status);
  GoOnOrForget(load);
}

// Those who joined a read that hangs wait for its end, but not for a drive that
// has been given up and not beyond the last deadline.
void Loader::LookAtStuck(OneLoad* load) {
  if (residency_->at(load->ref).in_tier(kTierDram)) return Settle(load, Status());
  if (source_->Probe(residency_->IdOf(load->ref)).code() == Code::kUnavailable) {
    return Settle(load, Status(Code::kUnavailable, "its drive is out of service"));
  }
  if (load->deadline_nanos <= clock_->NowNanos()) return Settle(load, Status(Code::kLate));
  stuck_.insert(load->number);
}

void Loader::LookAtSomeStuck() {
  for (size_t left = std::min(stuck_.size(), kStuckSlice); left > 0 && !stuck_.empty(); --left) {
    auto next = stuck_.lower_bound(stuck_cursor_);
    if (next == stuck_.end()) next = stuck_.begin();
    stuck_cursor_ = *next + 1;
    OneLoad* const load = &loads_[*next];
    if (source_ == nullptr || !Wanted(load)) {
      Settle(load, Status(Code::kLate));
    } else {
      LookAtStuck(load);
    }
  }
}

Status Loader::TakeSlot(OneLoad* load) {
  Result<SlotId> slot =
      residency_->TakeSlot(residency_->at(load->ref).tenant, residency_->RawBytes(load->ref));
  if (!slot.ok()) return slot.status();
  load->slot = *slot;
  return Status();
}

void Loader::Pump() {
  if (pumping_ || tier_busy_) return;  // A waiter called from Settle() below.
  ready_.TakeAll(&aside_);
  PumpSlice();
}

void Loader::PumpSlice() {
  pumping_ = true;
  tells_left_ = kTellSlice;
  LookAtSomeStuck();
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
  if (ready_.empty()) return;
  again_.Post(&tasks_, [this] {
    if (!tier_busy_) PumpSlice();
  });
}

Loader::Turn Loader::StartOne(Lane* lane) {
  OneLoad* const load = lane->loads.PopFront();
  load->queued = false;
  const auto settle = [this, load](const Status& status) {
    Settle(load, status);
    return Turn::kTaken;
  };
  const auto wait = [lane, load](Turn turn) {
    load->queued = true;
    lane->loads.PushFront(load);  // In chain order: nobody overtakes.
    return turn;
  };
  if (residency_->at(load->ref).state == BlockState::kGone) return settle(Status(Code::kNotFound));
  // It was stored again, or came from a durable tier, while its drive could not serve it.
  if (residency_->at(load->ref).in_tier(kTierDram)) return settle(Status());
  if (!Wanted(load)) return settle(Status(Code::kLate));  // Everyone left before it began.
  if (source_ == nullptr || !source_->in_service()) {
    return settle(Status(Code::kUnavailable, "the NVMe tier is out of service"));
  }
  if (load->stuck) {
    LookAtStuck(load);
    return Turn::kTaken;
  }
  if (!HasPlace(devices_[lane->device], residency_->SlotBytesOf(load->ref))) {
    if (source_->Probe(residency_->IdOf(load->ref)).code() == Code::kUnavailable) {
      return settle(Status(Code::kUnavailable, "its drive is out of service"));
    }
    return wait(Turn::kNoPlace);
  }
  if (const Status status = TakeSlot(load); !status.ok()) {
    // What its engines hold may be theirs for long. What is being read may leave again soon.
    const bool soon = reading_[residency_->at(load->ref).tenant] > 0;
    if (status.code() != Code::kInvalid || soon) return wait(Turn::kNoSlot);
    return settle(Status(Code::kNoSpace, status.message()));
  }
  AddToBatch(load);
  return Turn::kTaken;
}

bool Loader::HasPlace(const Device& device, uint64_t bytes) const {
  if (device.bytes != 0 && device.bytes + bytes > max_bytes_ / devices_.size()) return false;
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
  load->reading = true;
  load->checksum = residency_->at(load->ref).checksum;
  ReadOp& op = read->batch.ops.emplace_back();
  op.id = residency_->IdOf(load->ref);
  op.target = residency_->SlotBytes(load->slot);
  read->batch.deadline_nanos = std::max(read->batch.deadline_nanos, load->deadline_nanos);
  read->loads.push_back(load);
  read->tenants.push_back(residency_->at(load->ref).tenant);
  read->slots.push_back(load->slot);
  read->bytes += op.target.size();
  device.bytes += op.target.size();
  ++reading_[read->tenants.back()];
  if (read->loads.size() == kMaxBatchOps || read->bytes >= kMaxBatchBytes) {
    Submit(std::exchange(device.filling, nullptr));
  }
}

void Loader::RetrySoon() {
  retry_.PostAt(&tasks_, clock_->NowNanos() + kRetryNanos, [this] {
    tier_busy_ = false;
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
  tells_left_ = kTellSlice;
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
  load->reading = false;
  const BlockRef ref = load->ref;
  const bool gone = residency_->at(ref).state == BlockState::kGone;
  // It came otherwise meanwhile: what was read, or could not be, is nobody's concern.
  const bool there = residency_->at(ref).in_tier(kTierDram);
  if (op.status.ok() && !gone && !there && op.checksum == residency_->at(ref).checksum) {
    ++stats_.loads;
    stats_.loaded_bytes += op.target.size();
    stats_.load.Add(clock_->NowNanos() - load->asked_nanos);
    EndReading(read, i);
    residency_->ArriveInDram(ref, read->slots[i]);
    return Settle(load, Status());
  }
  load->slot = kNoSlot;
  load->stuck = op.in_flight;
  if (op.in_flight) {
    residency_->QuarantineSlot(read->slots[i]);
    ++read->unquiet;
  } else {
    FreeSlot(read, i);
  }
  if (gone) return Settle(load, op.status.ok() ? Status(Code::kNotFound) : op.status);
  if (there) return Settle(load, Status());
  // It was stored again meanwhile, written with other bytes in the record's place, and has left
  // memory: what became of the old record says nothing of the new one.
  const bool replaced = load->checksum != residency_->at(ref).checksum;
  const Code code = op.status.code();
  if (replaced && (code == Code::kOk || code == Code::kCorrupt || code == Code::kNotFound)) {
    if (!Wanted(load) || load->deadline_nanos <= clock_->NowNanos()) {
      return Settle(load, Status(Code::kLate));
    }
    QueueFirst(load);
    return RetrySoon();
  }
  switch (code) {
    case Code::kBusy:
      tier_busy_ = true;
      QueueFirst(load);
      return RetrySoon();
    case Code::kLate:
      ++stats_.late_loads;
      if (Wanted(load) && load->deadline_nanos > clock_->NowNanos()) {
        QueueFirst(load);  // Someone with more time joined after it was submitted.
        return RetrySoon();
      }
      return Settle(load, op.status);
    case Code::kOk:  // Intact, but not what was stored under this key.
      ++stats_.failed_loads;
      residency_->Drop(ref, Leave::kCorrupt);
      return Settle(load, Status(Code::kCorrupt));
    case Code::kCorrupt:
    case Code::kNotFound:
      ++stats_.failed_loads;
      residency_->LeaveNvme(ref, code == Code::kCorrupt ? Leave::kCorrupt : Leave::kLostByTier);
      return Settle(load, op.status);
    default:
      ++stats_.failed_loads;
      return Settle(load, op.status);
  }
}

void Loader::EndReading(ReadBatch* read, size_t i) {
  devices_[read->device].bytes -= read->batch.ops[i].target.size();
  --reading_[read->tenants[i]];
}

void Loader::FreeSlot(ReadBatch* read, size_t i) {
  EndReading(read, i);
  residency_->FreeSlot(read->tenants[i], read->slots[i]);
}

void Loader::OnQuiescent(ReadBatch* read, size_t i) {
  FreeSlot(read, i);
  OneLoad* const load = read->loads[i];
  load->stuck = false;
  stuck_.erase(load->number);
  GoOnOrForget(load);
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
