#include "cache/request/fetch_job.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr size_t kFetchSlice = 64;
constexpr size_t kLateSlice = 1024;
constexpr size_t kAdvanceSlice = 2048;

uint64_t CacheCounters::* CounterOf(Code code, TierKind tier) {
  switch (code) {
    case Code::kOk:
      if (tier == TierKind::kDurable) return &CacheCounters::fetch_hits_durable;
      return tier == TierKind::kDram ? &CacheCounters::fetch_hits_dram
                                     : &CacheCounters::fetch_hits_nvme;
    case Code::kNotFound:
      return &CacheCounters::fetch_misses;
    case Code::kLate:
      return &CacheCounters::fetch_late;
    default:
      return &CacheCounters::fetch_failed;
  }
}

uint64_t CacheCounters::* BytesOf(TierKind tier) {
  if (tier == TierKind::kDurable) return &CacheCounters::fetch_bytes_durable;
  return tier == TierKind::kDram ? &CacheCounters::fetch_bytes_dram
                                 : &CacheCounters::fetch_bytes_nvme;
}

}  // namespace

void FetchJob::Reset() {
  AQ_CHECK(asked().ops.size() == asked().chain.keys.size());
  settled_.clear();
  settled_.reserve(asked().ops.size());  // It grows a slice at a time, and is never moved.
  cursor_ = answered_ = reported_ = loading_ = late_cursor_ = usable_ = 0;
  unanswered_.clear();
  inquiry_.Reset(cache().durable, NamesOf(asked().chain));
  deadline_nanos_ = DeadlineIn(asked().timeout_nanos);
  in_slice_ = posted_ = timer_set_ = cancelled_ = refused_ = false;
}

void FetchJob::Run() {
  posted_ = false;
  if (cancelled_) return SettleRestLate();
  if (IsOver(deadline_nanos_)) return Cancel();
  if (cursor_ < asked().chain.keys.size()) FetchSlice();
  if (!unanswered_.empty() && !inquiry_.asking()) FetchUnanswered();
  Advance();
}

void FetchJob::RunOn() {
  if (!std::exchange(posted_, true)) RunAgain();
}

void FetchJob::FetchSlice() {
  in_slice_ = true;
  const ChainSlice& chain = asked().chain;
  const size_t begin = cursor_;
  const size_t end = std::min(begin + kFetchSlice, chain.keys.size());
  std::array<BlockRef, kFetchSlice> refs;
  cache().residency.index().FindMany(tenant(), chain.group, chain.part,
                                     chain.keys.subspan(begin, end - begin), refs);
  settled_.resize(end, 0);
  for (size_t i = begin; i < end; ++i) FetchOne(i, &refs[i - begin]);
  for (size_t i = end; i-- > begin;) {
    const Index& index = cache().residency.index();
    const BlockRef ref = refs[i - begin];
    if (ref != kNoBlock && index.Exists(ref) && index.at(ref).state == BlockState::kResident) {
      cache().residency.Touch(ref);
      cache().write_down.OnUsed(ref);
    }
  }
  cursor_ = end;
  PumpLoads();
  in_slice_ = false;
  if (cursor_ < chain.keys.size()) RunOn();
}

void FetchJob::PumpLoads() {
  if (loading_ > 0) cache().loader.Pump();
  if (loading_ > 0 && cache().durable != nullptr) cache().durable->PumpLoads();
  if ((loading_ > 0 || !unanswered_.empty()) && !timer_set_) {
    timer_set_ = true;
    WakeAt(deadline_nanos_);
  }
}

// What this host has not, the durable tiers may have. They are asked for all of the rest at once.
void FetchJob::FetchFurther(size_t i) {
  const DurablePlace place = inquiry_.At(i, [this, run = run()] {
    if (this->run() == run) RunOn();
  });
  switch (place.answer) {
    case Presence::Answer::kAbsent:
      return SettleOne(i, Status(Code::kNotFound));
    case Presence::Answer::kUnknown:
      unanswered_.push_back(i);
      return;
    case Presence::Answer::kThere:
      break;
  }
  const ChainSlice& chain = asked().chain;
  ++loading_;
  cache().durable->Load(
      place.tier,
      {.name = {.tenant = tenant(), .group = chain.group, .part = chain.part, .key = chain.keys[i]},
       .layout = cache().clients.LayoutOf(client(), chain.layout)},
      deadline_nanos_, {.waiter = this, .run = run(), .op = i | kFromDurable});
}

// Each once: what is still not known is asked for, or waits again.
void FetchJob::FetchUnanswered() {
  in_slice_ = true;
  for (size_t left = std::min(unanswered_.size(), kFetchSlice); left > 0; --left) {
    const size_t i = unanswered_.front();
    unanswered_.pop_front();
    if (settled_[i] == 0) FetchFurther(i);
  }
  PumpLoads();
  in_slice_ = false;
  if (!unanswered_.empty() && !inquiry_.asking()) RunOn();
}

void FetchJob::FetchOne(size_t i, BlockRef* found) {
  // A key that is there twice may have been dropped, as expired, the first time.
  if (*found != kNoBlock && !cache().residency.index().Exists(*found)) *found = kNoBlock;
  // The layout is in every key: under another one's handle it is nothing that was asked for.
  const uint16_t layout = cache().clients.LayoutOf(client(), asked().chain.layout);
  if (*found != kNoBlock && cache().residency.at(*found).layout != layout) *found = kNoBlock;
  const BlockRef ref = *found;
  if (ref == kNoBlock || !cache().Readable(ref)) {
    if (ref != kNoBlock) {
      const BlockEntry& entry = cache().residency.at(ref);
      if (entry.state == BlockState::kResident && entry.expired(cache().NowUnix())) {
        cache().residency.Drop(ref, Leave::kExpired);
      }
      *found = kNoBlock;
    }
    return cache().durable == nullptr ? SettleOne(i, Status(Code::kNotFound)) : FetchFurther(i);
  }
  if (cache().residency.at(ref).in_tier(kTierDram)) return LendOne(i, ref, TierKind::kDram);
  ++loading_;
  cache().loader.Load(ref, deadline_nanos_, {.waiter = this, .run = run(), .op = i});
}

void FetchJob::LendOne(size_t i, BlockRef ref, TierKind tier) {
  const LeaseId lease = cache().loans.Lend(client(), ref, false);
  if (lease == 0) {
    // Said once: a million times over it would be a million allocations.
    const bool said = std::exchange(refused_, true);
    return SettleOne(
        i, said ? Status(Code::kBusy) : Status(Code::kBusy, "too many leases; release some"));
  }
  FetchOp& op = asked().ops[i];
  const BlockEntry& entry = cache().residency.at(ref);
  op.bytes = cache().residency.SlotBytes(entry.slot).first(cache().residency.RawBytes(ref));
  op.lease = lease;
  op.checksum = entry.checksum;
  op.tier = tier;
  if (i == 0) first_position_ = entry.position;
  SettleOne(i, Status());
}

void FetchJob::SettleOne(size_t i, Status status) {
  FetchOp& op = asked().ops[i];
  cache().meters.Count(tenant(), CounterOf(status.code(), op.tier));
  if (status.ok()) {
    cache().meters.Count(tenant(), BytesOf(op.tier), op.bytes.size());
  }
  op.status = std::move(status);
  settled_[i] = 1;
}

void FetchJob::OnLoaded(size_t ticket, BlockRef ref, const Status& status) {
  --loading_;
  const size_t op = ticket & ~kFromDurable;
  const bool durable = (ticket & kFromDurable) != 0;
  if (settled_[op] != 0) return;  // Late.
  const Code code = status.code();
  const bool elsewhere = durable ? code == Code::kNotFound || code == Code::kCorrupt
                                 : !status.ok() && code != Code::kLate;
  if (status.ok() && cache().residency.at(ref).expired(cache().NowUnix())) {
    SettleOne(op, Status(Code::kNotFound));  // It was not when it was asked for.
  } else if (status.ok()) {
    LendOne(op, ref, durable ? TierKind::kDurable : TierKind::kNvme);
  } else if (elsewhere && cache().durable != nullptr) {
    FetchElsewhere(op, status);
  } else {
    SettleOne(op, status);
  }
  // Once for all that this task brings: the same block may have been asked for very often.
  if (!in_slice_) RunOn();
}

// Where it was, it is not, or cannot be read: another tier may have it. A tier that said so is not
// asked again for this one.
void FetchJob::FetchElsewhere(size_t i, const Status& status) {
  FetchFurther(i);
  if (settled_[i] != 0) asked().ops[i].status = status;  // None has: it is as it was.
  if (!in_slice_) PumpLoads();
}

// Tells the caller how far the answers go without a gap. Behind one that was slow there may be very
// many.
void FetchJob::Advance() {
  const size_t end = std::min(settled_.size(), answered_ + kAdvanceSlice);
  for (; answered_ < end && settled_[answered_] != 0; ++answered_) {
    if (usable_ == answered_ && asked().ops[answered_].status.ok()) ++usable_;
  }
  if (answered_ == asked().ops.size()) {
    CountSaved();
    return End(answered_);
  }
  if (answered_ == end && end < settled_.size()) RunOn();
  if (answered_ == reported_) return;
  reported_ = answered_;
  Report(answered_);
}

void FetchJob::Cancel() {
  if (std::exchange(cancelled_, true)) return;
  late_cursor_ = answered_;
  SettleRestLate();
}

void FetchJob::SettleRestLate() {
  const size_t end = std::min(late_cursor_ + kLateSlice, asked().ops.size());
  if (settled_.size() < end) settled_.resize(end, 0);
  for (; late_cursor_ < end; ++late_cursor_) {
    if (settled_[late_cursor_] == 0) SettleOne(late_cursor_, Status(Code::kLate));
  }
  if (end < asked().ops.size()) return RunOn();
  CountSaved();
  End(end);
}

// Other kv groups and parts belong to the same tokens, which are counted once.
void FetchJob::CountSaved() {
  const ChainSlice& chain = asked().chain;
  if (usable_ == 0 || chain.group != 0 || chain.part != 0) return;
  const uint16_t layout = cache().clients.LayoutOf(client(), chain.layout);
  const auto prefill = PrefillOrDefault(
      cache().worth, cache().prefill.Find(cache().clients.PrefillNameOf(client(), layout)));
  if (!prefill) return;
  const double tokens = cache().catalog.layout(layout).tokens_per_block;
  const double recompute_ms =
      prefill->Milliseconds(static_cast<double>(usable_) * tokens, first_position_ * tokens);
  const double fetch_ms = static_cast<double>(cache().NowNanos() - begun_nanos()) / 1e6;
  // Every rank of the engine fetches the same blocks.
  const double ranks = std::max(1u, cache().clients.RanksOf(client()));
  cache().meters.CountSaved(tenant(), (recompute_ms - fetch_ms) / ranks);
}

}  // namespace aquifer
