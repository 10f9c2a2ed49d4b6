#include "cache/request/reserve_job.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"

namespace aquifer {
namespace {

constexpr size_t kReserveSlice = 32;

Refusal WhyNoSlot(Code code) {
  switch (code) {
    case Code::kBusy:
      return Refusal::kWarming;
    case Code::kInvalid:
      return Refusal::kQuota;
    default:
      return Refusal::kFull;
  }
}

}  // namespace

std::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "none";
    case Refusal::kFull:
      return "full";
    case Refusal::kQuota:
      return "quota";
    case Refusal::kWarming:
      return "warming";
    case Refusal::kDraining:
      return "draining";
    case Refusal::kTooMany:
      return "too many";
  }
  return "unknown";
}

void ReserveJob::Reset() {
  AQ_CHECK(asked().ops.size() == asked().chain.keys.size());
  cursor_ = 0;
}

void ReserveJob::Run() {
  const size_t end = std::min(cursor_ + kReserveSlice, asked().ops.size());
  for (; cursor_ < end; ++cursor_) asked().ops[cursor_] = ReserveOne(cursor_);
  cache().eraser.Pump();
  cache().housekeeping.Run();
  if (cursor_ == asked().ops.size()) return End(cursor_);
  Report(cursor_);
  RunAgain();
}

void ReserveJob::Cancel() {
  request()->status = Status(Code::kLate);
  End(cursor_);
}

NewBlock ReserveJob::BlockToFill(size_t i) const {
  const ReserveRequest& request = asked();
  const int64_t ttl = cache().catalog.tenant(tenant()).options.ttl_seconds;
  return {.name = cache().NameOf(tenant(), request.chain, i),
          .parent = i == 0 ? request.parent : request.chain.keys[i - 1],
          .position = request.position + static_cast<uint32_t>(i),
          .layout = cache().clients.LayoutOf(client(), request.chain.layout),
          .state = BlockState::kFilling,
          .expiry_unix_seconds = ttl == 0 ? 0 : cache().UnixIn(ttl),
          .checksum = {},
          .engine_hash = request.engine_hashes.empty() ? 0 : request.engine_hashes[i],
          .now_nanos = cache().NowNanos()};
}

ReserveOp ReserveJob::Refused(Refusal why) {
  cache().meters.CountRefusal(tenant(), why);
  ReserveOp op;
  op.refusal = why;
  return op;
}

ReserveOp ReserveJob::ReserveOne(size_t i) {
  Residency& residency = cache().residency;
  const ChainSlice& chain = asked().chain;
  const uint16_t layout = cache().clients.LayoutOf(client(), chain.layout);
  const uint32_t engine = cache().clients.at(client()).engine;
  const uint64_t block_bytes = cache().catalog.layout(layout).groups[chain.group].block_bytes;
  ReserveOp op;
  BlockRef ref = residency.index().Find(cache().NameOf(tenant(), chain, i));
  if (ref != kNoBlock && residency.at(ref).state == BlockState::kResident &&
      residency.at(ref).expired(cache().NowUnix())) {
    residency.Drop(ref, Leave::kExpired);
    ref = kNoBlock;
  }
  // The layout is in every key: only a client that makes keys up gets here.
  if (ref != kNoBlock && residency.at(ref).layout != layout) return Refused(Refusal::kFull);
  if (ref != kNoBlock && residency.at(ref).state == BlockState::kResident) {
    cache().meters.Count(tenant(), &CacheCounters::reserve_have);
    op.outcome = ReserveOutcome::kHave;
    return op;
  }
  if (cache().draining) return Refused(Refusal::kDraining);
  if (ref != kNoBlock && cache().fills.at(ref).engine != engine) {
    cache().meters.Count(tenant(), &CacheCounters::reserve_being_filled);
    op.outcome = ReserveOutcome::kBeingFilled;
    op.wait_ms = cache().fills.WaitMs(cache().fills.at(ref));
    return op;
  }
  if (cache().loans.full(client())) return Refused(Refusal::kTooMany);
  if (ref == kNoBlock) {
    const Result<SlotId> slot = residency.TakeSlot(tenant(), block_bytes);
    if (!slot.ok()) return Refused(WhyNoSlot(slot.status().code()));
    const Result<BlockRef> added = residency.AddFilling(BlockToFill(i), *slot);
    if (!added.ok()) {
      residency.FreeSlot(tenant(), *slot);
      return Refused(Refusal::kFull);
    }
    ref = *added;
    cache().fills.Begin(ref, engine);
  }
  cache().fills.Touch(ref);
  op.reservation = cache().loans.Lend(client(), ref, true);
  if (op.reservation == 0) return Refused(Refusal::kTooMany);
  op.outcome = ReserveOutcome::kSlot;
  op.slot = residency.SlotBytes(residency.at(ref).slot).first(block_bytes);
  cache().meters.Count(tenant(), &CacheCounters::reserved);
  return op;
}

}  // namespace aquifer
