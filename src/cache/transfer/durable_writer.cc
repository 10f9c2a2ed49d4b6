#include "cache/transfer/durable_writer.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/planted_bug.h"

namespace aquifer {
namespace {

constexpr size_t kMaxBatchOps = 8;
constexpr uint64_t kMaxBatchBytes = uint64_t{16} << 20;
constexpr size_t kMaxInFlightBatches = 4;
constexpr size_t kMaxLoading = 8;
constexpr size_t kMaxLooks = 4;  // Batches.
constexpr size_t kLookOps = 16;
constexpr size_t kPumpSlice = 64;
constexpr size_t kReleaseSlice = 256;
constexpr size_t kFlushSlice = 24;  // Each is an answer to a caller: one to three us.
constexpr int64_t kBusyNanos = 10'000'000;
constexpr int64_t kPauseNanos = 500'000'000;     // After the tier failed.
constexpr int64_t kWriteNanos = 60'000'000'000;  // What takes longer hangs.
constexpr int64_t kLookNanos = 10'000'000'000;

uint64_t& At(std::vector<uint64_t>* counts, uint32_t number) {
  if (counts->size() <= number) counts->resize(size_t{number} + 1);
  return (*counts)[number];
}

}  // namespace

DurableWriter::DurableWriter(const DurableWriterParts& parts)
    : parts_(parts), budget_(parts.budget) {}

// --- What waits

void DurableWriter::Add(BlockRef ref) { Enqueue(ref, false, false); }

void DurableWriter::AddFound(BlockRef ref) { Enqueue(ref, false, true); }

void DurableWriter::Renew(BlockRef ref) {
  if (parts_.residency->in_durable(ref, parts_.number)) return Enqueue(ref, true, false);
  Item* const item = FindWaiting(ref);
  if (item != nullptr && item->look_first) item->renew = true;
}

DurableWriter::Item* DurableWriter::FindWaiting(BlockRef ref) {
  const auto known = sequence_of_.find(ref);
  if (known == sequence_of_.end()) return nullptr;
  if (const auto queued = queue_.find(known->second); queued != queue_.end()) {
    return &queued->second;
  }
  const auto aside = aside_.find(ref);
  return aside == aside_.end() ? nullptr : &aside->second;
}

void DurableWriter::NoteWanted(const Item& item) {
  if (!parts_.residency->durable_wanted(item.ref)) return;
  if (since_.emplace(item.sequence, item.since_nanos).second) ++wanted_of_[item.tenant];
}

void DurableWriter::NoteWritten(BlockRef ref, uint64_t sequence) {
  for (const auto& write : batches_) {
    for (const Item& item : write->items) {
      if (write->busy && item.ref == ref && item.sequence == sequence && Same(item)) {
        return NoteWanted(item);
      }
    }
  }
}

bool DurableWriter::JoinKnown(BlockRef ref, bool renew) {
  const auto known = sequence_of_.find(ref);
  if (known == sequence_of_.end()) return false;
  if (const auto queued = queue_.find(known->second); queued != queue_.end()) {
    if (Same(queued->second)) {
      queued->second.renew |= renew;
      NoteWanted(queued->second);
      return true;
    }
    const Item stale = queued->second;
    queue_.erase(queued);
    Settle(stale);
    return false;
  }
  const auto aside = aside_.find(ref);
  if (aside == aside_.end()) {  // Being written: its end sees what has changed.
    NoteWritten(ref, known->second);
    return true;
  }
  if (Same(aside->second)) {
    aside->second.renew |= renew;
    NoteWanted(aside->second);
    return true;
  }
  const Item stale = aside->second;
  aside_.erase(aside);
  Settle(stale);
  return false;
}

void DurableWriter::Enqueue(BlockRef ref, bool renew, bool look_first) {
  Residency& residency = *parts_.residency;
  if (JoinKnown(ref, renew)) return;
  const BlockEntry& entry = residency.at(ref);
  Item item{.ref = ref,
            .sequence = unwritten_.NextSequence(),
            .name = residency.OrderName(ref),
            .tenant = entry.tenant,
            .since_nanos = parts_.clock->NowNanos(),
            .renew = renew,
            .look_first = look_first};
  Hold(&item);
  sequence_of_[ref] = item.sequence;
  NoteWanted(item);
  unwritten_.Add(item.tenant, item.sequence);
  queue_.emplace(item.sequence, item);
}

bool DurableWriter::Same(const Item& item) const {
  return parts_.residency->IsStill(item.ref, item.name);
}

void DurableWriter::Hold(Item* item) {
  Residency& residency = *parts_.residency;
  const BlockEntry& entry = residency.at(item->ref);
  const uint64_t bytes = residency.SlotBytesOf(item->ref);
  const bool usable = parts_.tier != nullptr && parts_.tier->in_service();
  uint64_t& held_by = At(&held_by_, item->tenant);
  // A part of what the tenant can have: the rest must stay evictable, or a slow store stops all.
  // One block of each always: what is loaded to be written must be there when its turn comes.
  const bool room = held_by == 0 || (held_bytes_ + bytes <= parts_.max_held_bytes &&
                                     held_by + bytes <= residency.DramLimit(entry.tenant) / 4);
  if (!usable || !room || !entry.in_tier(kTierDram)) return;
  if (!residency.HoldForDurable(item->ref)) return;
  item->held_bytes = bytes;
  held_bytes_ += bytes;
  held_by += bytes;
}

void DurableWriter::Unhold(Item* item) {
  if (item->held_bytes == 0) return;
  const uint64_t bytes = std::exchange(item->held_bytes, 0);
  held_bytes_ -= bytes;
  At(&held_by_, item->tenant) -= bytes;
  if (Same(*item)) parts_.residency->UnholdForDurable(item->ref);
}

void DurableWriter::Settle(Item item) {
  Unhold(&item);
  if (since_.erase(item.sequence) > 0 && --wanted_of_[item.tenant] == 0) {
    wanted_of_.erase(item.tenant);
  }
  unwritten_.Remove(item.tenant, item.sequence);
  const auto known = sequence_of_.find(item.ref);
  if (known != sequence_of_.end() && known->second == item.sequence) sequence_of_.erase(known);
}

// In its old place.
void DurableWriter::Requeue(Item item) {
  if (!Same(item)) return Settle(item);
  queue_.emplace(item.sequence, item);
}

std::optional<DurableWriter::Item> DurableWriter::TakeFromAside(BlockRef ref, uint64_t sequence) {
  const auto found = aside_.find(ref);
  if (found == aside_.end() || found->second.sequence != sequence) return std::nullopt;
  const Item item = found->second;
  aside_.erase(found);
  return item;
}

void DurableWriter::OnHealth(bool in_service) {
  if (in_service) {
    paused_until_nanos_ = 0;
    return PumpSoon();
  }
  CheckFlushesLater();
  release_cursor_ = 0;
  if (!std::exchange(releasing_, true)) ReleaseSomeHolds();
}

void DurableWriter::ReleaseSomeHolds() {
  auto next = queue_.lower_bound(release_cursor_);
  for (size_t step = 0; step < kReleaseSlice && next != queue_.end(); ++step, ++next) {
    Unhold(&next->second);
  }
  releasing_ = next != queue_.end() && parts_.tier != nullptr && !parts_.tier->in_service();
  if (!releasing_) return;
  release_cursor_ = next->first;
  tasks_.Post([this] { ReleaseSomeHolds(); });
}

// --- Writing

size_t DurableWriter::BatchesAllowed() const {
  return parts_.loader->pending() > 0 ? 1 : kMaxInFlightBatches;
}

DurableWriter::Next DurableWriter::NextFor(const Item& item) const {
  if (!Same(item)) return Next::kSettle;
  const BlockEntry& entry = parts_.residency->at(item.ref);
  if (parts_.residency->in_durable(item.ref, parts_.number) && !item.renew) return Next::kSettle;
  if (entry.expired(static_cast<uint32_t>(parts_.clock->UnixSeconds()))) return Next::kSettle;
  // The deletion would take the new one too.
  if (parts_.eraser->Owes(parts_.residency->IdOf(item.ref))) return Next::kSkip;
  if (item.look_first) return looks_.size() < kMaxLooks ? Next::kLook : Next::kSkip;
  if (entry.in_tier(kTierDram)) return Next::kWrite;
  return loading_ < kMaxLoading ? Next::kLoad : Next::kSkip;
}

bool DurableWriter::TakeBudget(int64_t now, const Item& item, uint64_t bytes) {
  if (budget_.TakeBytes(now, bytes)) return true;
  if (!flushes_.WaitsFor(item.tenant, item.sequence)) {
    PumpAt(budget_.NextAt(now, bytes));
    return false;
  }
  budget_.ChargeBytes(now, bytes);
  return true;
}

void DurableWriter::Pump() {
  if (parts_.tier == nullptr || !parts_.tier->in_service() || pumping_) return;
  const int64_t now = parts_.clock->NowNanos();
  if (now < paused_until_nanos_) return PumpAt(paused_until_nanos_);
  pumping_ = true;
  size_t busy = 0;
  for (const auto& write : batches_) busy += write->busy && !write->done ? 1 : 0;
  WriteBatch* write = nullptr;
  std::vector<Item> looks;
  size_t steps = 0;
  auto next = queue_.lower_bound(std::exchange(pump_from_, 0));
  for (; next != queue_.end() && busy < BatchesAllowed() && steps < kPumpSlice; ++steps) {
    const Item item = next->second;
    const Next what = NextFor(item);
    if (what == Next::kSkip) {
      ++next;
      continue;
    }
    const uint64_t bytes =
        what == Next::kWrite ? parts_.residency->SlotBytesOf(item.ref) : uint64_t{0};
    if (what == Next::kWrite && !TakeBudget(now, item, bytes)) {
      next = NextFlushed(item.sequence);
      continue;
    }
    next = queue_.erase(next);
    switch (what) {
      case Next::kSettle:
        Settle(item);
        break;
      case Next::kLook:
        aside_.insert_or_assign(item.ref, item);
        looks.push_back(item);
        if (looks.size() == kLookOps) SubmitLook(std::exchange(looks, {}));
        break;
      case Next::kLoad:
        aside_.insert_or_assign(item.ref, item);
        ++loading_;
        load(item.ref, {.waiter = this, .run = item.sequence, .op = item.sequence});
        break;
      default:
        if (write == nullptr) write = TakeBatch();
        Take(item, write);
        if (write->items.size() < kMaxBatchOps && write->bytes < kMaxBatchBytes) break;
        Submit(std::exchange(write, nullptr));
        ++busy;
    }
  }
  if (write != nullptr) Submit(write);
  if (!looks.empty()) SubmitLook(looks);
  pumping_ = false;
  if (steps >= kPumpSlice && next != queue_.end()) {
    pump_from_ = next->first;
    PumpAt(now);
  }
  CheckFlushesLater();
}

void DurableWriter::PumpAt(int64_t nanos) {
  if (timer_nanos_ <= nanos) return;
  timer_nanos_ = nanos;
  tasks_.PostAt(nanos, [this, nanos] {
    if (timer_nanos_ == nanos) timer_nanos_ = INT64_MAX;
    Pump();
  });
}

void DurableWriter::Pause(const Status& why) {
  last_failure_ = why;
  ++stats_.failed_blocks;
  const int64_t pause = why.code() == Code::kBusy ? kBusyNanos : kPauseNanos;
  paused_until_nanos_ = parts_.clock->NowNanos() + pause;
}

DurableWriter::WriteBatch* DurableWriter::TakeBatch() {
  for (const auto& write : batches_) {
    if (!write->busy) return write.get();
  }
  WriteBatch* const write = batches_.emplace_back(std::make_unique<WriteBatch>()).get();
  write->batch.on_done = [this, write](Batch<WriteOp>&) { OnDone(write); };
  write->batch.on_quiescent = [this, write](Batch<WriteOp>&, size_t i) { OnQuiescent(write, i); };
  return write;
}

void DurableWriter::Take(const Item& item, WriteBatch* write) {
  WriteOp& op = write->batch.ops.emplace_back();
  op.meta = parts_.residency->MetaOf(item.ref);
  op.source = parts_.residency->SlotBytes(parts_.residency->at(item.ref).slot);
  op.dtype = parts_.residency->DTypeOf(item.ref);
  op.replace = item.renew;
  parts_.residency->BeginDurableIo(item.ref, parts_.number);
  write->items.push_back(item);
  write->bytes += op.source.size();
}

void DurableWriter::Submit(WriteBatch* write) {
  write->busy = true;
  write->number = next_batch_++;
  write->batch.deadline_nanos = parts_.clock->NowNanos() + kWriteNanos;
  parts_.tier->Write(&write->batch);
}

void DurableWriter::OnDone(WriteBatch* write) {
  write->done = true;
  for (size_t i = 0; i < write->items.size(); ++i) OnWritten(write, i);
  if (write->unquiet == 0) Recycle(write);
  CheckBarriersLater();
  parts_.eraser->Pump();
  Pump();
  CheckFlushesLater();
}

void DurableWriter::Recycle(WriteBatch* write) {
  write->batch.ops.clear();
  write->items.clear();
  write->bytes = 0;
  write->busy = write->done = false;
}

void DurableWriter::OnWritten(WriteBatch* write, size_t i) {
  const WriteOp& op = write->batch.ops[i];
  Item item = write->items[i];
  if (op.in_flight) {  // Until the store lets go: its slot stays what it is.
    ++write->unquiet;
    ++At(&hung_, item.tenant);
    return Pause(op.status);
  }
  const bool gone = parts_.residency->at(item.ref).state == BlockState::kGone;
  if (gone) EraseIfDeleted(item.ref, op.meta.id);
  const Code code = Planted(PlantedBug::kFailedWriteCounts) ? Code::kOk : op.status.code();
  if (gone || code == Code::kOk) {
    if (!gone) OnStored(item, op);
    Settle(item);
  } else if (code == Code::kCorrupt) {
    Settle(item);
    parts_.residency->Drop(item.ref, Leave::kCorrupt);
  } else if (code == Code::kInvalid) {
    ++stats_.refused_blocks;
    losses_.AddRefused(item.tenant);
    last_failure_ = op.status;
    Settle(item);
  } else {
    Pause(op.status);
    if (code != Code::kBusy) Unhold(&item);  // It may take long.
    Requeue(item);
  }
  parts_.residency->EndDurableIo(item.ref, parts_.number);
  if (gone || code != Code::kOk || !Same(item)) return;
  // Its expiry was changed while it was being written with the old one.
  if (op.meta.expiry_unix_seconds != parts_.residency->at(item.ref).expiry_unix_seconds) {
    Renew(item.ref);
  }
}

// Deleted while it was being written, it must not stay behind. What left for another reason may: it
// may be another node's, which found it there and told its callers that it is durable.
void DurableWriter::EraseIfDeleted(BlockRef ref, const BlockId& id) {
  if (parts_.residency->deleted(ref)) parts_.eraser->Add(id);
}

void DurableWriter::OnStored(const Item& item, const WriteOp& op) {
  ++stats_.written_blocks;
  stats_.written_bytes += op.source.size();
  parts_.residency->SetDurable(item.ref, parts_.number, true);
  parts_.presence->Remember(op.meta.id, true);
}

void DurableWriter::OnQuiescent(WriteBatch* write, size_t i) {
  Item item = write->items[i];
  --At(&hung_, item.tenant);
  const bool gone = parts_.residency->at(item.ref).state == BlockState::kGone;
  if (gone) {
    EraseIfDeleted(item.ref, write->batch.ops[i].meta.id);
    Settle(item);
  } else {
    Requeue(item);
  }
  parts_.residency->EndDurableIo(item.ref, parts_.number);
  if (--write->unquiet == 0) Recycle(write);
  parts_.eraser->Pump();
  Pump();
}

// --- What NVMe has

void DurableWriter::SubmitLook(const std::vector<Item>& items) {
  auto look = std::make_unique<LookBatch>();
  LookBatch* const raw = look.get();
  for (const Item& item : items) {
    raw->batch.ops.push_back({.id = parts_.residency->IdOf(item.ref), .status = {}, .meta = {}});
    raw->items.emplace_back(item.ref, item.sequence);
  }
  raw->batch.deadline_nanos = parts_.clock->NowNanos() + kLookNanos;
  raw->batch.on_done = [this, raw](Batch<LookOp>&) { OnLooked(raw); };
  looks_.emplace(raw, std::move(look));
  parts_.tier->Look(&raw->batch);
}

void DurableWriter::OnLooked(LookBatch* look) {
  for (size_t i = 0; i < look->items.size(); ++i) {
    const LookOp& op = look->batch.ops[i];
    std::optional<Item> item = TakeFromAside(look->items[i].first, look->items[i].second);
    if (!item) continue;
    if (!Same(*item)) {
      Settle(*item);
      continue;
    }
    const BlockEntry& entry = parts_.residency->at(item->ref);
    // Another node may have made it last longer than it is to here.
    const bool lasts = LastsLongEnough(op.meta.expiry_unix_seconds, entry.expiry_unix_seconds,
                                       parts_.clock->UnixSeconds());
    if (op.status.ok() && op.meta.checksum == entry.checksum && lasts && !item->renew) {
      parts_.residency->SetDurable(item->ref, parts_.number, true);
      Settle(*item);
      continue;
    }
    const Code code = op.status.code();
    if (code == Code::kOk || code == Code::kNotFound || code == Code::kCorrupt) {
      item->look_first = false;
      item->renew = code != Code::kNotFound;  // What is there is not what it should be.
    } else {
      Pause(op.status);
    }
    Requeue(*item);
  }
  std::shared_ptr<LookBatch> finished = std::move(looks_.extract(look).mapped());
  parts_.executor->Post([finished] {});  // This runs inside the batch's own callback.
  Pump();
  CheckFlushesLater();
}

void DurableWriter::OnLoaded(size_t op, BlockRef ref, const Status& status) {
  --loading_;
  std::optional<Item> item = TakeFromAside(ref, op);
  if (!item) return;
  // Or the next one that is loaded may have its slot before it is written, and so on for ever.
  if (status.ok() && Same(*item)) Hold(&*item);
  Requeue(*item);
  if (status.ok()) PumpSoon();  // Else it is tried again with the next tick.
}

// --- Flush

std::map<uint64_t, DurableWriter::Item>::iterator DurableWriter::NextFlushed(uint64_t sequence) {
  return queue_.find(unwritten_.NextFlushed(
      flushes_, sequence, [this](uint64_t waiting) { return queue_.contains(waiting); }));
}

void DurableWriter::AddClient(uint32_t client, uint16_t tenant) {
  losses_.AddClient(client, tenant, parts_.residency->lost_undurable(tenant));
}

FlushWaits::Id DurableWriter::Flush(uint16_t tenant, uint32_t client,
                                    std::function<void(Status)> on_done) {
  return AddFlush(tenant, {tenant, client, std::move(on_done)});
}

FlushWaits::Id DurableWriter::FlushAll(uint16_t tenant, uint32_t client,
                                       std::function<void(Status)> on_done) {
  return AddFlush(FlushWaits::kEveryone, {tenant, client, std::move(on_done)});
}

FlushWaits::Id DurableWriter::AddFlush(uint16_t of, FlushWaits::Wait wait) {
  const FlushWaits::Id flush = flushes_.Add(of, unwritten_.last(), std::move(wait));
  PumpSoon();
  CheckFlushesLater();
  return flush;
}

// One task for all that want it.
void DurableWriter::CheckFlushesLater() {
  if (!flushes_.empty()) flush_check_.Post(&tasks_, [this] { CheckFlushes(); });
}

// Answers a slice of the flushes that are through; of all, where the tier is out of service.
void DurableWriter::CheckFlushes() {
  const bool usable = parts_.tier != nullptr && parts_.tier->in_service();
  size_t left = kFlushSlice;
  for (const uint16_t of : flushes_.Whose()) {
    const uint64_t oldest = usable ? unwritten_.Oldest(of) : UINT64_MAX;
    while (left > 0) {
      const std::optional<FlushWaits::Wait> wait = flushes_.TakeWritten(of, oldest);
      if (!wait) break;
      --left;
      wait->on_done(usable ? LostSinceLastFlush(wait->tenant, wait->client)
                           : Status(Code::kUnavailable,
                                    "the durable tier went out of service; Stats() says why"));
    }
  }
  if (left == 0) CheckFlushesLater();
}

Status DurableWriter::LostSinceLastFlush(uint16_t tenant, uint32_t client) {
  const uint64_t news = losses_.TellNew(client, tenant, parts_.residency->lost_undurable(tenant));
  if (news == 0) return Status();
  return Status(Code::kNoSpace,
                std::to_string(news) +
                    " blocks were dropped, refused or found damaged before a durable tier had "
                    "them. Give the node more room, or the tier a larger write budget");
}

// --- Barrier

void DurableWriter::Barrier(uint16_t tenant, std::function<void(Status)> on_done) {
  barriers_.Add(next_batch_ - 1, [this, tenant, on_done = std::move(on_done)] {
    on_done(At(&hung_, tenant) == 0
                ? Status()
                : Status(Code::kUnavailable,
                         "a durable tier hangs in a write; it is deleted once that ends. Evict "
                         "again later"));
  });
  CheckBarriersLater();
}

void DurableWriter::CheckBarriersLater() {
  barrier_check_.Post(&tasks_, [this] { CheckBarriers(); });
}

void DurableWriter::CheckBarriers() {
  uint64_t oldest = next_batch_;
  for (const auto& write : batches_) {
    if (write->busy && !write->done) oldest = std::min(oldest, write->number);
  }
  if (barriers_.Settle(oldest)) CheckBarriersLater();
}

}  // namespace aquifer
