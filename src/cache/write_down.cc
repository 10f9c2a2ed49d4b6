#include "cache/write_down.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

// Enough to keep a drive busy without queueing in front of reads.
constexpr size_t kMaxBatchOps = 16;
constexpr uint64_t kMaxBatchBytes = uint64_t{8} << 20;
constexpr size_t kMaxInFlightBatches = 4;
constexpr int64_t kPauseNanos = 50'000'000;  // After the tier had no room or was out of service.
constexpr int64_t kBusyNanos = 1'000'000;

uint64_t& At(std::vector<uint64_t>* by_tenant, uint16_t tenant) {
  if (by_tenant->size() <= tenant) by_tenant->resize(size_t{tenant} + 1);
  return (*by_tenant)[tenant];
}

}  // namespace

WriteDown::WriteDown(const WriteDownSettings& settings, Residency* residency, Eraser* eraser,
                     Executor* executor, Clock* clock)
    : settings_(settings),
      residency_(residency),
      eraser_(eraser),
      executor_(executor),
      clock_(clock),
      budget_(settings.budget) {}

WriteDown::~WriteDown() { *alive_ = false; }

void WriteDown::SetTarget(Tier* target) {
  target_ = target;
  Pump();
}

void WriteDown::Add(BlockRef ref) {
  if (target_ == nullptr) return;
  WriteDownCase block;
  block.features.position = residency_->at(ref).position;
  block.features.turns = residency_->at(ref).uses;
  block.features.bytes = residency_->RawBytes(ref);
  if (!ShouldWriteDown(settings_.admission, block)) {
    ++stats_.refused_blocks;
    ++At(&refused_, residency_->at(ref).tenant);
    return;
  }
  Item item{ref, next_sequence_++, residency_->at(ref).checksum, 0};
  const uint64_t bytes = residency_->SlotBytesOf(ref);
  if (held_bytes_ + bytes <= settings_.max_held_bytes) {
    item.held_bytes = bytes;
    held_bytes_ += bytes;
    residency_->HoldDirty(ref);
  }
  queue_.push_back(item);
}

void WriteDown::Unhold(const Item& item) {
  held_bytes_ -= item.held_bytes;
  residency_->UnholdDirty(item.ref);
}

void WriteDown::Requeue(const Item& item) {
  const auto place = std::upper_bound(
      queue_.begin(), queue_.end(), item.sequence,
      [](uint64_t sequence, const Item& other) { return sequence < other.sequence; });
  queue_.insert(place, item);
}

bool WriteDown::Current(const Item& item) const {
  if (!residency_->index().Exists(item.ref)) return false;
  const BlockEntry& entry = residency_->at(item.ref);
  return entry.state == BlockState::kResident && entry.checksum == item.checksum &&
         entry.in_tier(kTierDram) && !entry.in_tier(kTierNvme) &&
         (entry.io_tiers & TierBit(kTierDram)) == 0;
}

WriteDown::WriteBatch* WriteDown::TakeBatch() {
  for (const auto& write : batches_) {
    if (!write->busy) return write.get();
  }
  batches_.push_back(std::make_unique<WriteBatch>());
  WriteBatch* const write = batches_.back().get();
  write->batch.on_done = [this, write](Batch<WriteOp>&) { OnDone(write); };
  write->batch.on_quiescent = [this, write](Batch<WriteOp>&, size_t i) { OnQuiescent(write, i); };
  return write;
}

// False: the block cannot be written and is forgotten here.
bool WriteDown::AddTo(WriteBatch* write, const Item& item) {
  const uint64_t bytes = residency_->SlotBytesOf(item.ref);
  const uint16_t tenant = residency_->at(item.ref).tenant;
  if (!residency_->ChargeNvme(item.ref)) {
    ++stats_.refused_blocks;
    ++At(&refused_, tenant);
    return false;
  }
  WriteOp& op = write->batch.ops.emplace_back();
  op.meta = residency_->MetaOf(item.ref);
  op.source = residency_->SlotBytes(residency_->at(item.ref).slot);
  residency_->BeginIo(item.ref, kTierDram);
  write->items.push_back(item);
  write->charged.push_back(bytes);
  write->tenants.push_back(tenant);
  write->bytes += bytes;
  return true;
}

void WriteDown::Pump() {
  if (target_ == nullptr || !target_->in_service()) return;
  const int64_t now = clock_->NowNanos();
  if (now < paused_until_nanos_) return PumpAt(paused_until_nanos_);
  size_t busy = 0;
  for (const auto& write : batches_) busy += write->busy && !write->done ? 1 : 0;
  while (!queue_.empty() && busy < kMaxInFlightBatches) {
    WriteBatch* const write = TakeBatch();
    while (!queue_.empty() && write->items.size() < kMaxBatchOps && write->bytes < kMaxBatchBytes) {
      const Item item = queue_.front();
      if (Current(item)) {
        const uint64_t bytes = residency_->SlotBytesOf(item.ref);
        if (!budget_.TakeBytes(now, bytes)) {
          if (flushes_.empty()) {
            PumpAt(budget_.NextAt(now, bytes));
            break;
          }
          budget_.ChargeBytes(now, bytes);
        }
        queue_.pop_front();
        if (!AddTo(write, item)) {
          budget_.RefundBytes(now, bytes);
          Unhold(item);
        }
      } else {
        queue_.pop_front();  // Dropped since, or there already.
        held_bytes_ -= item.held_bytes;
      }
    }
    if (write->items.empty()) break;
    write->busy = true;
    write->number = next_batch_++;
    in_flight_blocks_ += write->items.size();
    ++busy;
    target_->Write(&write->batch);
  }
  if (!flushes_.empty()) CheckFlushes();
}

void WriteDown::PumpAt(int64_t nanos) {
  if (timer_nanos_ <= nanos) return;
  timer_nanos_ = nanos;
  executor_->PostAt(nanos, [this, nanos, alive = alive_] {
    if (!*alive) return;
    if (timer_nanos_ == nanos) timer_nanos_ = INT64_MAX;
    Pump();
  });
}

void WriteDown::OnDone(WriteBatch* write) {
  in_flight_blocks_ -= write->items.size();
  write->done = true;
  for (size_t i = 0; i < write->items.size(); ++i) OnWritten(write, i);
  if (write->unquiet == 0) Recycle(write);
  eraser_->Pump();
  Pump();
  CheckFlushes();
}

void WriteDown::Recycle(WriteBatch* write) {
  write->batch.ops.clear();
  write->items.clear();
  write->charged.clear();
  write->tenants.clear();
  write->bytes = 0;
  write->busy = false;
  write->done = false;
  CheckBarriers();
}

void WriteDown::OnWritten(WriteBatch* write, size_t i) {
  const Item& item = write->items[i];
  const WriteOp& op = write->batch.ops[i];
  const bool gone = residency_->at(item.ref).state == BlockState::kGone;
  if (!op.status.ok() || gone) residency_->UnchargeNvme(write->tenants[i], write->charged[i]);
  if (!op.status.ok()) last_failure_ = op.status;
  if (op.in_flight) {
    ++write->unquiet;
    ++stats_.failed_blocks;
    return;
  }
  if (gone) {
    eraser_->Add(op.meta.id);  // Deleted while it was being written: it must not stay behind.
    held_bytes_ -= item.held_bytes;
  } else if (op.status.ok()) {
    ++stats_.written_blocks;
    stats_.written_bytes += write->charged[i];
    residency_->ArriveOnNvme(item.ref);
  } else if (op.status.code() == Code::kCorrupt) {
    held_bytes_ -= item.held_bytes;
    residency_->Drop(item.ref, Leave::kCorrupt);
  } else if (op.status.code() == Code::kInvalid) {  // Too large for the tier: it stays in DRAM.
    ++stats_.refused_blocks;
    ++At(&refused_, write->tenants[i]);
  } else {
    ++stats_.failed_blocks;
    const bool busy = op.status.code() == Code::kBusy;
    paused_until_nanos_ = clock_->NowNanos() + (busy ? kBusyNanos : kPauseNanos);
    Requeue(item);
  }
  residency_->EndIo(item.ref, kTierDram);
  const bool finished = op.status.ok() || op.status.code() == Code::kInvalid;
  if (!gone && finished) Unhold(item);
}

void WriteDown::OnQuiescent(WriteBatch* write, size_t i) {
  const Item item = write->items[i];
  if (residency_->at(item.ref).state == BlockState::kGone) {
    eraser_->Add(write->batch.ops[i].meta.id);
    held_bytes_ -= item.held_bytes;
  } else {
    Requeue(item);
  }
  residency_->EndIo(item.ref, kTierDram);
  if (--write->unquiet == 0) Recycle(write);
  eraser_->Pump();
  Pump();
}

// --- Flush

uint64_t WriteDown::OldestUnwritten() const {
  uint64_t oldest = queue_.empty() ? next_sequence_ : queue_.front().sequence;
  for (const auto& write : batches_) {
    if (!write->busy) continue;
    for (const Item& item : write->items) oldest = std::min(oldest, item.sequence);
  }
  return oldest;
}

uint64_t WriteDown::Flush(uint16_t tenant, std::function<void(Status)> on_done) {
  const uint64_t number = next_flush_++;
  flushes_.push_back({number, tenant, next_sequence_ - 1, false, std::move(on_done)});
  executor_->Post([this, alive = alive_] {
    if (!*alive) return;
    Pump();
    CheckFlushes();
  });
  return number;
}

void WriteDown::HottestFirst() {
  std::erase_if(queue_, [this](const Item& item) {
    if (Current(item)) return false;
    held_bytes_ -= item.held_bytes;
    return true;
  });
  std::stable_sort(queue_.begin(), queue_.end(), [this](const Item& a, const Item& b) {
    return residency_->DramValue(a.ref) > residency_->DramValue(b.ref);
  });
  for (Item& item : queue_) item.sequence = next_sequence_++;
  // Their blocks may stand anywhere now: they wait for all of it.
  for (FlushWait& wait : flushes_) {
    if (!wait.at_tier) wait.sequence = next_sequence_ - 1;
  }
}

void WriteDown::EndFlush(uint64_t flush) {
  std::erase_if(flushes_, [flush](const FlushWait& wait) { return wait.number == flush; });
}

void WriteDown::FinishFlush(uint64_t number, Status status) {
  const auto found =
      std::find_if(flushes_.begin(), flushes_.end(),
                   [number](const FlushWait& wait) { return wait.number == number; });
  if (found == flushes_.end()) return;
  FlushWait wait = std::move(*found);
  flushes_.erase(found);
  if (status.ok()) status = LostSinceLastFlush(wait.tenant);
  wait.on_done(std::move(status));
}

Status WriteDown::LostSinceLastFlush(uint16_t tenant) {
  const uint64_t lost = residency_->lost_unwritten(tenant) + At(&refused_, tenant);
  const uint64_t news = lost - std::exchange(At(&lost_at_flush_, tenant), lost);
  if (news == 0) return Status();
  return Status(Code::kNoSpace, std::to_string(news) +
                                    " blocks were dropped or refused before they could be written; "
                                    "give NVMe more room or a larger write budget");
}

void WriteDown::CheckFlushes() {
  if (flushes_.empty()) return;
  const bool usable = target_ != nullptr && target_->in_service();
  const uint64_t oldest = OldestUnwritten();
  std::vector<uint64_t> unavailable;
  std::vector<uint64_t> written;
  for (FlushWait& wait : flushes_) {
    if (!usable) {
      unavailable.push_back(wait.number);
    } else if (!wait.at_tier && oldest > wait.sequence) {
      wait.at_tier = true;
      written.push_back(wait.number);
    }
  }
  for (const uint64_t number : unavailable) {
    FinishFlush(number, Status(Code::kUnavailable, "the NVMe tier is out of service"));
  }
  for (const uint64_t number : written) {
    target_->Flush([this, number, alive = alive_](Status status) {
      if (*alive) FinishFlush(number, std::move(status));
    });
  }
}

// --- Barrier

void WriteDown::Barrier(std::function<void()> on_done) {
  barriers_.push_back({next_batch_ - 1, std::move(on_done)});
  executor_->Post([this, alive = alive_] {
    if (*alive) CheckBarriers();
  });
}

void WriteDown::CheckBarriers() {
  uint64_t oldest = next_batch_;
  for (const auto& write : batches_) {
    if (write->busy) oldest = std::min(oldest, write->number);
  }
  std::vector<BarrierWait> ready;
  std::erase_if(barriers_, [&ready, oldest](BarrierWait& wait) {
    if (oldest <= wait.batch) return false;
    ready.push_back(std::move(wait));
    return true;
  });
  for (BarrierWait& wait : ready) wait.on_done();
}

}  // namespace aquifer
