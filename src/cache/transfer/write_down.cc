#include "cache/transfer/write_down.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr uint64_t kMaxBatchBytes = uint64_t{8} << 20;
// Enough that some blocks are verified while others are at the drive and the first ones wait for
// the page that names them. How much is at the drive at once is the tier's business: 32 MiB, all of
// which it may complete at once, so with no more than that of 64 KiB blocks under way it stood
// still until others were verified. The tier's queue has room for all of them beside loads and
// deletions.
constexpr uint64_t kMaxInFlightBytes = 16 * kMaxBatchBytes;
constexpr int64_t kPauseNanos = 50'000'000;  // After the tier had no room or was out of service.
constexpr int64_t kBusyNanos = 1'000'000;
constexpr int64_t kPutOffNanos = 100'000;  // Each is tried in two to three us.
constexpr size_t kSpareItems = 4096;       // Stale ones that the queue may hold.
constexpr size_t kTrimSlice = 8;           // For each that is added: faster than it grows.
constexpr size_t kSlice = 256;
constexpr size_t kPumpSlice = 64;
// As much may wait as the budget writes in so long: enough to take a burst whole, and no more,
// since what waits holds DRAM.
constexpr uint64_t kMaxWaitSeconds = 10;
constexpr size_t kFlushSlice = 24;  // Each is an answer to a caller: one to three us.

uint64_t& At(std::vector<uint64_t>* counts, uint32_t number) {
  if (counts->size() <= number) counts->resize(size_t{number} + 1);
  return (*counts)[number];
}

}  // namespace

WriteDown::WriteDown(const WriteDownSettings& settings, Residency* residency, Eraser* eraser,
                     Executor* executor, Clock* clock)
    : settings_(settings),
      residency_(residency),
      eraser_(eraser),
      executor_(executor),
      clock_(clock),
      budget_(settings.budget),
      chooses_(!budget_.unlimited() || settings.admission.written_part < 1),
      aside_(settings.admission,
             {.residency = residency,
              .unwritten = &unwritten_,
              .executor = executor,
              .take_back = [this](BlockRef ref, uint64_t sequence) { Enqueue(ref, sequence); },
              .on_taken_back = [this] { Pump(); }}) {}

void WriteDown::SetTarget(Tier* target) {
  target_ = target;
  Pump();
}

void WriteDown::Add(BlockRef ref) {
  if (!settings_.enabled) return;
  const uint64_t sequence = unwritten_.NextSequence();
  if (chooses_ && !aside_.Admit(ref, Affordable())) return aside_.Add(ref, sequence);
  const BlockRef parent = residency_->index().Parent(ref);
  if (parent != kNoBlock) aside_.Want(parent);
  Enqueue(ref, sequence);
}

void WriteDown::Promote(BlockRef ref) {
  if (!settings_.enabled || (chooses_ && !aside_.Admit(ref, Affordable()))) return;
  Enqueue(ref, unwritten_.NextSequence());
  PumpSoon();
}

void WriteDown::OnLost(BlockRef ref) {
  if (settings_.enabled && !residency_->set_aside(ref)) {
    aside_.Add(ref, unwritten_.NextSequence());
  }
}

void WriteDown::OnUsed(BlockRef ref) {
  if (chooses_) aside_.OnUsed(ref);
}

void WriteDown::Renew(BlockRef ref) {
  // The end of a write under way sees that the expiry is another.
  if (Writing(ref)) return;
  if (residency_->SetStale(ref)) Enqueue(ref, unwritten_.NextSequence());
}

void WriteDown::OnLoaded(BlockRef ref, const Status& status) {
  const auto found = loading_.find(ref);
  if (found == loading_.end()) return;
  const Item item = found->second;
  loading_.erase(found);
  // In its old place: whoever flushes waits for it. If it could not be loaded it is tried again.
  if (!Same(item) || !residency_->stale(ref)) {
    Settle(item);
  } else if (status.ok()) {
    Enqueue(ref, item.sequence);
  } else {
    Put(item);
  }
  CheckFlushesLater();
}

void WriteDown::Put(const Item& item) {
  if (queue_.emplace(item.sequence, item).second) queued_bytes_ += item.bytes;
}

WriteDown::Queue::iterator WriteDown::TakeOut(Queue::iterator item) {
  queued_bytes_ -= item->second.bytes;
  return queue_.erase(item);
}

WriteDown::Item WriteDown::ItemOf(BlockRef ref, uint64_t sequence) const {
  const BlockEntry& entry = residency_->at(ref);
  return {.ref = ref,
          .sequence = sequence,
          .name = residency_->OrderName(ref),
          .tenant = entry.tenant,
          .bytes = residency_->SlotBytesOf(ref),
          .held_bytes = 0,
          .since_nanos = clock_->NowNanos()};
}

void WriteDown::Enqueue(BlockRef ref, uint64_t sequence) {
  Item item = ItemOf(ref, sequence);
  const uint16_t tenant = item.tenant;
  const uint64_t bytes = item.bytes;
  const bool usable = target_ != nullptr && target_->in_service();
  if (usable && residency_->at(ref).in_tier(kTierDram) &&
      held_bytes_ + bytes <= settings_.max_held_bytes &&
      At(&held_by_, tenant) + bytes <= HoldLimit(tenant) && residency_->HoldDirty(ref)) {
    item.held_bytes = bytes;
    held_bytes_ += bytes;
    At(&held_by_, tenant) += bytes;
  }
  Put(item);
  unwritten_.Add(tenant, item.sequence);
  if (queue_.size() > 2 * residency_->dram_blocks() + kSpareItems) TrimSome();
}

void WriteDown::TrimSome() {
  auto next = queue_.lower_bound(trim_cursor_);
  for (size_t step = 0; step < kTrimSlice && next != queue_.end(); ++step) {
    if (Current(next->second)) {
      ++next;
      continue;
    }
    const Item item = next->second;
    next = TakeOut(next);
    Discard(item);
  }
  trim_cursor_ = next == queue_.end() ? 0 : next->first;
}

double WriteDown::Affordable() const {
  if (budget_.unlimited()) return 1;
  return AffordablePart(queued_bytes_, std::min(kMaxWaitSeconds * settings_.budget.bytes_per_second,
                                                settings_.max_held_bytes / 2));
}

void WriteDown::TakeBackFlushed() {
  size_t left = kPumpSlice;
  // What NVMe gives up meanwhile is for the next flush: two that do not fit would push each other
  // out for ever.
  for (const uint16_t of : flushes_.Whose()) {
    left -= aside_.TakeBack(of, flushes_.LastOf(of), left);
  }
  if (left == 0 && !aside_.empty()) PumpSoon();
}

void WriteDown::PostToSelf(void (WriteDown::*step)()) {
  tasks_.Post([this, step] { (this->*step)(); });
}

// Half of what the tenant can have: the rest must stay evictable, or a slow drive stops all stores.
uint64_t WriteDown::HoldLimit(uint16_t tenant) const { return residency_->DramLimit(tenant) / 2; }

void WriteDown::Forget(const Item& item) {
  held_bytes_ -= item.held_bytes;
  if (item.held_bytes != 0) At(&held_by_, item.tenant) -= item.held_bytes;
  if (Same(item)) residency_->UnholdDirty(item.ref);
}

void WriteDown::Settle(const Item& item) { unwritten_.Remove(item.tenant, item.sequence); }

void WriteDown::Discard(const Item& item) {
  Forget(item);
  const bool load_first =
      Same(item) && residency_->stale(item.ref) && !residency_->at(item.ref).in_tier(kTierDram);
  if (!load_first) return Settle(item);
  const auto [waits, added] = loading_.try_emplace(item.ref, item);
  waits->second.held_bytes = 0;
  if (!added) return Settle(item);
  load(item.ref);
}

void WriteDown::ReleaseHolds() {
  release_cursor_ = 0;
  if (!std::exchange(releasing_, true)) ReleaseSomeHolds();
}

void WriteDown::ReleaseSomeHolds() {
  auto next = queue_.lower_bound(release_cursor_);
  for (size_t step = 0; step < kSlice && next != queue_.end(); ++step, ++next) {
    Forget(next->second);
    next->second.held_bytes = 0;
  }
  releasing_ = next != queue_.end() && !target_->in_service();
  if (!releasing_) return;
  release_cursor_ = next->first;
  PostToSelf(&WriteDown::ReleaseSomeHolds);
}

void WriteDown::Requeue(const Item& item) {
  if (residency_->at(item.ref).in_tier(kTierNvme)) std::ignore = residency_->SetStale(item.ref);
  Put(item);
}

// What waits for no such drive or key can be written meanwhile. They come back one by one, so that
// trying them takes little, however many they are.
void WriteDown::PutOff(const Item& item) {
  if (residency_->at(item.ref).in_tier(kTierNvme)) std::ignore = residency_->SetStale(item.ref);
  const int64_t now = clock_->NowNanos();
  const int64_t last = put_off_.empty() ? now : put_off_.rbegin()->first;
  put_off_.emplace(std::max(now + kPauseNanos, last + kPutOffNanos), item);
}

void WriteDown::TakeUp(int64_t now) {
  for (size_t step = 0; step < kPumpSlice && !put_off_.empty(); ++step) {
    const auto [due, item] = *put_off_.begin();
    if (due > now) break;
    put_off_.erase(put_off_.begin());
    Put(item);
  }
  if (!put_off_.empty()) PumpAt(std::max(put_off_.begin()->first, now + kBusyNanos));
}

bool WriteDown::Same(const Item& item) const { return residency_->IsStill(item.ref, item.name); }

bool WriteDown::Current(const Item& item) const {
  if (!Same(item)) return false;
  const BlockEntry& entry = residency_->at(item.ref);
  const bool wanted = !entry.in_tier(kTierNvme) || residency_->stale(item.ref);
  return entry.in_tier(kTierDram) && wanted && !Writing(item.ref);
}

bool WriteDown::Barred(BlockRef ref) const {
  const BlockId id = residency_->IdOf(ref);
  return eraser_->Owes(id) || at_tier_.contains(id) || OlderHangs(ref, id);
}

// A write of the very same block that hangs is no obstacle: whichever of the two is on NVMe in the
// end, it is this block.
bool WriteDown::OlderHangs(BlockRef ref, const BlockId& id) const {
  const auto hanging = hanging_.find(id);
  if (hanging == hanging_.end()) return false;
  const auto own = hung_blocks_.find(ref);
  return own == hung_blocks_.end() || own->second.writes < hanging->second;
}

bool WriteDown::Writing(BlockRef ref) const {
  if ((residency_->at(ref).io_tiers & TierBit(kTierDram)) == 0) return false;
  const auto hung = hung_blocks_.find(ref);
  return hung == hung_blocks_.end() || hung->second.again;
}

void WriteDown::BeginWrite(BlockRef ref) {
  const auto hung = hung_blocks_.find(ref);
  if (hung == hung_blocks_.end()) return residency_->BeginIo(ref, kTierDram);
  hung->second.again = true;
}

void WriteDown::EndWrite(BlockRef ref) {
  const auto hung = hung_blocks_.find(ref);
  if (hung == hung_blocks_.end()) return residency_->EndIo(ref, kTierDram);
  hung->second.again = false;
  if (hung->second.writes > 0) return;
  hung_blocks_.erase(hung);
  residency_->EndIo(ref, kTierDram);
}

void WriteDown::HangWrite(BlockRef ref) {
  HungBlock& hung = hung_blocks_[ref];
  ++hung.writes;
  hung.again = false;
}

void WriteDown::EndHungWrite(BlockRef ref) {
  const auto hung = hung_blocks_.find(ref);
  AQ_CHECK(hung != hung_blocks_.end() && hung->second.writes > 0);
  if (--hung->second.writes > 0 || hung->second.again) return;
  hung_blocks_.erase(hung);
  residency_->EndIo(ref, kTierDram);
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

// kBusy: room for it is being made. kNoSpace: the block cannot be written and is forgotten here.
Status WriteDown::AddTo(WriteBatch* write, const Item& item) {
  const uint64_t bytes = residency_->SlotBytesOf(item.ref);
  const uint16_t tenant = residency_->at(item.ref).tenant;
  const bool renewal = residency_->at(item.ref).in_tier(kTierNvme);
  if (Status charged = renewal ? Status() : residency_->ChargeNvme(item.ref); !charged.ok()) {
    if (charged.code() == Code::kBusy) return charged;
    ++stats_.refused_blocks;
    if (!residency_->in_lasting(item.ref)) losses_.AddRefused(tenant);
    return charged;
  }
  WriteOp& op = write->batch.ops.emplace_back();
  op.meta = residency_->MetaOf(item.ref);
  op.source = residency_->SlotBytes(residency_->at(item.ref).slot);
  op.dtype = residency_->DTypeOf(item.ref);
  op.replace = renewal;
  residency_->ClearStale(item.ref);
  at_tier_.insert(op.meta.id);
  BeginWrite(item.ref);
  write->items.push_back(item);
  write->charged.push_back(renewal ? 0 : bytes);
  write->tenants.push_back(tenant);
  write->bytes += bytes;
  return Status();
}

void WriteDown::Pump() {
  if (target_ == nullptr || !target_->in_service() || sorting_) return;
  const int64_t now = clock_->NowNanos();
  if (now < paused_until_nanos_) return PumpAt(paused_until_nanos_);
  TakeUp(now);
  size_t busy = 0;
  uint64_t bytes_under_way = 0;
  for (const auto& write : batches_) {
    if (!write->busy || write->done) continue;
    ++busy;
    bytes_under_way += write->bytes;
  }
  if (!aside_.empty() && !flushes_.empty()) TakeBackFlushed();
  // What is under way cannot be evicted, like what is held.
  const uint64_t most_bytes = std::min(kMaxInFlightBytes, settings_.max_held_bytes);
  const auto has_room = [&] {
    return busy == 0 || (busy < kMaxInFlightBatches && bytes_under_way < most_bytes);
  };
  size_t steps = 0;
  auto next = queue_.lower_bound(std::exchange(pump_from_, 0));
  while (next != queue_.end() && has_room() && steps < kPumpSlice) {
    WriteBatch* const write = TakeBatch();
    while (next != queue_.end() && write->items.size() < kMaxBatchOps &&
           write->bytes < kMaxBatchBytes && steps++ < kPumpSlice) {
      const Item item = next->second;
      if (Current(item)) {
        if (Barred(item.ref)) {
          ++next;  // Until the deletion or the write before it has ended; others need not wait.
          continue;
        }
        const uint64_t bytes = residency_->SlotBytesOf(item.ref);
        if (!budget_.TakeBytes(now, bytes)) {
          if (!flushes_.WaitsFor(item.tenant, item.sequence)) {
            PumpAt(budget_.NextAt(now, bytes));
            next = NextFlushed(item.sequence);
            continue;
          }
          budget_.ChargeBytes(now, bytes);
        }
        next = TakeOut(next);
        const uint64_t blocks = residency_->nvme_blocks();
        const Status added = AddTo(write, item);
        steps += blocks - residency_->nvme_blocks();  // What made room for it.
        if (added.ok()) continue;
        budget_.RefundBytes(now, bytes);
        if (added.code() == Code::kBusy) {
          Put(item);
          PumpAt(now);
          next = queue_.end();
          continue;
        }
        Forget(item);
        Settle(item);
      } else {
        next = TakeOut(next);
        Discard(item);
      }
    }
    if (write->items.empty()) break;
    write->busy = true;
    write->number = next_batch_++;
    write->submitted_nanos = now;
    for (const Item& item : write->items) stats_.wait.Add(now - item.since_nanos);
    in_flight_blocks_ += write->items.size();
    ++busy;
    bytes_under_way += write->bytes;
    target_->Write(&write->batch);
  }
  if (steps >= kPumpSlice && next != queue_.end() && has_room()) {
    pump_from_ = next->first;
    PumpAt(now);
  }
  CheckFlushesLater();
}

void WriteDown::PumpAt(int64_t nanos) {
  if (timer_nanos_ <= nanos) return;
  timer_nanos_ = nanos;
  tasks_.PostAt(nanos, [this, nanos] {
    if (timer_nanos_ == nanos) timer_nanos_ = INT64_MAX;
    Pump();
  });
}

void WriteDown::OnDone(WriteBatch* write) {
  in_flight_blocks_ -= write->items.size();
  write->done = true;
  for (const WriteOp& op : write->batch.ops) at_tier_.erase(op.meta.id);
  stats_.write.Add(clock_->NowNanos() - write->submitted_nanos);
  for (size_t i = 0; i < write->items.size(); ++i) OnWritten(write, i);
  if (write->unquiet == 0) Recycle(write);
  CheckBarriersLater();
  eraser_->Pump();
  Pump();
  CheckFlushesLater();
}

void WriteDown::Recycle(WriteBatch* write) {
  write->batch.ops.clear();
  write->items.clear();
  write->charged.clear();
  write->tenants.clear();
  write->bytes = 0;
  write->busy = false;
  write->done = false;
}

void WriteDown::OnWritten(WriteBatch* write, size_t i) {
  const Item& item = write->items[i];
  const WriteOp& op = write->batch.ops[i];
  const bool gone = residency_->at(item.ref).state == BlockState::kGone;
  if (!op.status.ok() || gone) residency_->UnchargeNvme(write->tenants[i], write->charged[i]);
  if (!op.status.ok()) last_failure_ = op.status;
  if (op.in_flight) return OnHung(write, i);
  SettleOlder(op.meta.id, residency_->NameOf(item.ref), !op.status.ok() && !gone);
  if (gone) {  // It must not stay behind.
    eraser_->Add(op.meta.id);
    Forget(item);
    Settle(item);
  } else if (op.status.ok()) {
    OnStored(write, i);
  } else if (op.status.code() == Code::kCorrupt) {
    // Its record on NVMe goes with it: not unwritten, but lost all the same.
    if (residency_->at(item.ref).in_tier(kTierNvme)) losses_.AddRefused(write->tenants[i]);
    Forget(item);
    Settle(item);
    residency_->Drop(item.ref, Leave::kCorrupt);
  } else if (op.status.code() == Code::kInvalid) {  // Too large for the tier: it stays in DRAM.
    ++stats_.refused_blocks;
    losses_.AddRefused(write->tenants[i]);
  } else {
    ++stats_.failed_blocks;
    const bool busy = op.status.code() == Code::kBusy;
    const int64_t now = clock_->NowNanos();
    Item again = item;
    if (!busy) {  // It may take long: until then the memory is worth more.
      Forget(again);
      again.held_bytes = 0;
    }
    const bool replaces = op.replace && residency_->at(item.ref).in_tier(kTierNvme);
    // Its drive is away, or its tenant's key: others can be written meanwhile.
    const bool only_this = replaces || (target_ != nullptr && target_->in_service());
    if (only_this && op.status.code() == Code::kUnavailable) {
      budget_.RefundBytes(now, op.source.size());
      PutOff(again);
    } else {
      paused_until_nanos_ = now + (busy ? kBusyNanos : kPauseNanos);
      Requeue(again);
    }
  }
  EndWrite(item.ref);
  const bool finished = op.status.ok() || op.status.code() == Code::kInvalid;
  if (gone || !finished) return;
  Settle(item);
  // Its expiry was changed while it was being written with the old one.
  if (op.status.ok() && Same(item) &&
      op.meta.expiry_unix_seconds != residency_->at(item.ref).expiry_unix_seconds) {
    if (residency_->at(item.ref).in_tier(kTierNvme) && residency_->SetStale(item.ref)) {
      Forget(item);
      return Enqueue(item.ref, item.sequence);  // Whoever flushes waits for that too.
    }
  }
  Forget(item);
}

void WriteDown::SettleOlder(const BlockId& id, const BlockName& name, bool left) {
  const auto older = older_records_.extract(id);
  if (older.empty() || !left) return;
  older.mapped() ? eraser_->Add(id) : on_older_left(name);
}

void WriteDown::OnStored(WriteBatch* write, size_t i) {
  const BlockRef ref = write->items[i].ref;
  const WriteOp& op = write->batch.ops[i];
  ++stats_.written_blocks;
  stats_.written_bytes += op.source.size();
  if (!op.replace && target_->Probe(op.meta.id).code() == Code::kNotFound) {
    // Reclaimed again before the rest of the batch was written, or past its time.
    eraser_->Add(op.meta.id);
    return residency_->UnchargeNvme(write->tenants[i], write->charged[i]);
  }
  if (!op.replace) return residency_->ArriveOnNvme(ref);
  // The old record may have gone while the new one was on its way: deleted for room, which takes
  // the new one too, or dropped by the tier.
  if (residency_->at(ref).in_tier(kTierNvme) || eraser_->Owes(op.meta.id)) return;
  // Also on a drive that has gone out of service since: it has the record when it is back.
  if (target_->Probe(op.meta.id).code() == Code::kNotFound) return;
  if (residency_->ChargeNvme(ref).ok()) {
    residency_->ArriveOnNvme(ref);
  } else {
    eraser_->Add(op.meta.id);
  }
}

// Another drive may have it at once, from the same slot.
void WriteDown::OnHung(WriteBatch* write, size_t i) {
  ++write->unquiet;
  ++At(&hung_, write->tenants[i]);
  ++stats_.failed_blocks;
  Item again = write->items[i];
  HangWrite(again.ref);
  ++hanging_[write->batch.ops[i].meta.id];
  Forget(again);
  again.held_bytes = 0;
  if (residency_->at(again.ref).state == BlockState::kGone) return Settle(again);
  Requeue(again);
}

void WriteDown::OnQuiescent(WriteBatch* write, size_t i) {
  const BlockRef ref = write->items[i].ref;
  const BlockId& id = write->batch.ops[i].meta.id;
  const BlockName name = residency_->NameOf(ref);
  const bool gone = residency_->at(ref).state == BlockState::kGone;
  write->batch.ops[i].in_flight = false;
  --At(&hung_, write->tenants[i]);
  if (gone) eraser_->Add(id);
  if (--hanging_.at(id) == 0) hanging_.erase(id);
  EndHungWrite(ref);
  // Unless it is being replaced, or was.
  if (!hung_blocks_.contains(ref)) SettleOlder(id, name, !gone);
  if (--write->unquiet == 0) Recycle(write);
  eraser_->Pump();
  Pump();
}

// --- Flush

WriteDown::Queue::iterator WriteDown::NextFlushed(uint64_t sequence) {
  return queue_.find(unwritten_.NextFlushed(
      flushes_, sequence, [this](uint64_t waiting) { return queue_.contains(waiting); }));
}

void WriteDown::AddClient(uint32_t client, uint16_t tenant) {
  losses_.AddClient(client, tenant, residency_->lost_unwritten(tenant));
}

FlushWaits::Id WriteDown::AddFlush(uint16_t of, FlushWaits::Wait wait) {
  const FlushWaits::Id flush = flushes_.Add(of, unwritten_.last(), std::move(wait));
  PumpSoon();
  CheckFlushesLater();
  return flush;
}

void WriteDown::HottestFirst() {
  if (std::exchange(sorting_, true)) return;
  sort_end_ = unwritten_.last() + 1;
  SortSome();
}

// First everything that waits is put onto the heap, then it comes back from there with new numbers.
void WriteDown::SortSome() {
  for (size_t step = 0; step < kSlice && sorting_; ++step) {
    if (!queue_.empty() && queue_.begin()->first < sort_end_) {
      const Item item = queue_.begin()->second;
      TakeOut(queue_.begin());
      if (!Current(item)) {
        Discard(item);
        continue;
      }
      by_value_.push_back({residency_->DramValue(item.ref), item});
      std::push_heap(by_value_.begin(), by_value_.end());
    } else if (sort_end_ > 0 && !aside_.empty()) {
      aside_.TakeBack(FlushWaits::kEveryone, UINT64_MAX, 1);
    } else if (!by_value_.empty()) {
      sort_end_ = 0;
      std::pop_heap(by_value_.begin(), by_value_.end());
      Item item = by_value_.back().item;
      by_value_.pop_back();
      Settle(item);
      item.sequence = unwritten_.NextSequence();
      unwritten_.Add(item.tenant, item.sequence);
      Put(item);
    } else {
      sorting_ = false;
    }
  }
  if (sorting_) return PostToSelf(&WriteDown::SortSome);
  flushes_.WaitUntil(unwritten_.last());  // Their blocks may stand anywhere now.
  Pump();
  CheckFlushesLater();
}

Status WriteDown::LostSinceLastFlush(uint16_t tenant, uint32_t client) {
  const uint64_t news = losses_.TellNew(client, tenant, residency_->lost_unwritten(tenant));
  if (news == 0) return Status();
  return Status(Code::kNoSpace, std::to_string(news) +
                                    " blocks were dropped, refused or found damaged before they "
                                    "could be written; Stats() counts each kind. Give the cache "
                                    "more DRAM, a larger write budget or written part, or NVMe "
                                    "more room");
}

// One task for all that want it.
void WriteDown::CheckFlushesLater() {
  if (!flushes_.empty()) flush_check_.Post(&tasks_, [this] { CheckFlushes(); });
}

// Answers a slice of the flushes that are through; of all, where the tier is out of service.
void WriteDown::CheckFlushes() {
  const bool usable = target_ != nullptr && target_->in_service();
  if (usable && sorting_) return;
  size_t left = kFlushSlice;
  for (const uint16_t of : flushes_.Whose()) {
    const uint64_t oldest = usable ? unwritten_.Oldest(of) : UINT64_MAX;
    while (left > 0) {
      const std::optional<FlushWaits::Wait> wait = flushes_.TakeWritten(of, oldest);
      if (!wait) break;
      --left;
      wait->on_done(usable ? LostSinceLastFlush(wait->tenant, wait->client)
                           : Status(Code::kUnavailable,
                                    "the NVMe tier went out of service; Stats() says of each "
                                    "drive why"));
    }
  }
  if (left == 0) CheckFlushesLater();
}

// --- Barrier

void WriteDown::Barrier(uint16_t tenant, std::function<void(Status)> on_done) {
  barriers_.Add(next_batch_ - 1, [this, tenant, on_done = std::move(on_done)] {
    on_done(At(&hung_, tenant) == 0
                ? Status()
                : Status(Code::kUnavailable,
                         "a drive hangs in a write; it is deleted once that ends. Evict again "
                         "later; Stats() says which drive"));
  });
  CheckBarriersLater();
}

void WriteDown::CheckBarriersLater() {
  barrier_check_.Post(&tasks_, [this] { CheckBarriers(); });
}

void WriteDown::CheckBarriers() {
  uint64_t oldest = next_batch_;
  for (const auto& write : batches_) {
    if (write->busy && !write->done) oldest = std::min(oldest, write->number);
  }
  if (barriers_.Settle(oldest)) CheckBarriersLater();
}

}  // namespace aquifer
