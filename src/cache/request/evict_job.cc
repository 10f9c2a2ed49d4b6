#include "cache/request/evict_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace aquifer {
namespace {

constexpr size_t kEvictSlice = 64;
constexpr size_t kSweepSlice = 2048;
constexpr size_t kWalkSlice = 256;
// What so many chains hang below is not one session's.
constexpr size_t kMaxBranches = 512;
constexpr size_t kMaxBelow = size_t{1} << 16;

}  // namespace

void EvictJob::Reset() {
  cursor_ = evicted_ = unremembered_ = 0;
  unsure_ = lost_track_ = false;
  own_.reset();
  unseen_.clear();
  below_.clear();
  sweeping_ = asked().everything;
  if (sweeping_) cache().drives.records().BeginSweep(tenant());
  closed_ = sweeping_ && cache().durable != nullptr;
  if (closed_) cache().durable->BeginErasingAll(tenant());
  if (asked().everything || !asked().chain.keys.empty()) return;
  if (const NamedSession* const session = cache().sessions.Find(tenant(), asked().session)) {
    walk_ = session->head;
    unseen_.push_back(walk_);
    cache().sessions.ForgetHead(tenant(), asked().session);
  }
}

bool EvictJob::DropOne(BlockRef ref) {
  const Index& index = cache().residency.index();
  if (!index.Exists(ref) || index.at(ref).state != BlockState::kResident) return false;
  if (index.at(ref).tenant != tenant()) return false;
  // Also what NVMe does not have, as far as is known: a write that failed may have left a copy.
  Erase(cache().residency.IdOf(ref));
  cache().residency.Drop(ref, Leave::kAsked);
  ++evicted_;
  return true;
}

// A drive that has not been read may hold it too. Of a whole tenant that is known without a list.
void EvictJob::Erase(const BlockId& id) {
  if (cache().durable != nullptr && !asked().everything && !cache().durable->Erase(id)) {
    ++unremembered_;
  }
  if (asked().everything || cache().drives.records().known()) {
    cache().eraser.Add(id);
  } else if (!cache().eraser.AddForGood(id)) {
    ++unremembered_;
  }
}

// It is not in the index, or only being filled; a tier may have it all the same.
void EvictJob::EraseElsewhere(const BlockName& name) {
  const DriveRecords& records = cache().drives.records();
  if (cache().durable != nullptr || records.MayHave(name)) Erase(records.IdOf(name));
  cache().residency.OnDeletedInDurable(name);
}

bool EvictJob::DropSlice() {
  if (asked().everything) return DropEverythingSlice();
  return asked().chain.keys.empty() ? DropSessionSlice() : DropChainSlice();
}

bool EvictJob::DropEverythingSlice() {
  // What is stored meanwhile and goes on from an end is there when the blocks are gone through.
  if (cache().durable != nullptr && cache().durable->ForgetSomeEnds(tenant(), kEvictSlice)) {
    return true;
  }
  const Index& index = cache().residency.index();
  if (cursor_ == 0 && !cache().drives.records().known()) {
    cache().drives.records().ForgetTenant(tenant());
    unsure_ = true;
  }
  const size_t before = evicted_;
  for (size_t step = 0; step < kSweepSlice && cursor_ < index.ref_limit(); ++step, ++cursor_) {
    DropOne(static_cast<BlockRef>(cursor_));
    if (evicted_ - before == kEvictSlice) break;
  }
  // A name may say who it was that talked.
  return cursor_ < index.ref_limit() ||
         cache().drives.records().EraseWaiting(tenant(), kEvictSlice) ||
         cache().residency.ForgetDurableBelow(tenant(), kEvictSlice) ||
         cache().sessions.ForgetSome(tenant(), kEvictSlice);
}

bool EvictJob::DropSessionSlice() {
  if (!unseen_.empty()) return LookBelow();
  if (!below_.empty()) {
    DropBelow();
    return true;
  }
  for (size_t step = 0; step < kEvictSlice; ++step, ++cursor_) {
    if (!DropNextOfSession()) return false;
  }
  return true;
}

// What followed the last block that was named may be durable, and would stay behind. False: another
// one's blocks are there.
bool EvictJob::LookBelow() {
  const Index& index = cache().residency.index();
  for (size_t looked = 0; looked < kWalkSlice && !unseen_.empty();) {
    ++looked;
    const BlockName name = unseen_.back();
    unseen_.pop_back();
    const bool last = name == walk_;
    if (!last) below_.push_back(name);
    // Another session ends here: all of this one is its, too.
    if (cache().sessions.IsHead(name)) return false;
    size_t siblings = 0;
    size_t children = 0;
    BlockName below = name;
    for (BlockRef child = index.FirstChildOf(name); child != kNoBlock;
         child = index.at(child).next_sibling) {
      ++looked;
      if (++siblings > kMaxBranches) return false;
      if (index.at(child).state == BlockState::kGone) continue;  // Only still lent.
      ++children;
      if (index.at(child).state != BlockState::kResident) continue;
      below.key = index.at(child).key;
      unseen_.push_back(below);
    }
    for (const Key& key : cache().residency.DurableBelow(name, kMaxBranches + 1)) {
      ++looked;
      below.key = key;
      if (index.Find(below) != kNoBlock) continue;
      if (++siblings > kMaxBranches) return false;
      ++children;
      unseen_.push_back(below);
    }
    // The same where several chains go on from its end.
    if (last && children > 1) return false;
    lost_track_ = below_.size() + unseen_.size() > kMaxBelow;
    if (lost_track_) return false;
  }
  return true;
}

// Tails first. An eviction may have been faster here, but not in a durable tier.
void EvictJob::DropBelow() {
  for (size_t step = 0; step < kEvictSlice && !below_.empty(); ++step) {
    const BlockName name = below_.back();
    below_.pop_back();
    if (!DropOne(cache().residency.index().Find(name))) EraseElsewhere(name);
  }
}

// What other chains share stays: whatever else hangs below is another's, and so is where another
// one ends.
bool EvictJob::DropNextOfSession() {
  if (cache().sessions.IsHead(walk_)) return false;
  const auto shared = own_ ? cache().walk.HasOtherBelow(walk_, own_) : false;
  lost_track_ = !shared.has_value();
  if (shared.value_or(true)) return false;
  const Index& index = cache().residency.index();
  const BlockRef ref = index.Find(walk_);
  std::optional<LostLink> link;
  if (ref != kNoBlock) {
    link = {.parent = index.ParentKey(ref), .position = index.at(ref).position};
  } else if (const LostLink* const gone = cache().residency.LinkAbove(walk_)) {
    link = *gone;
  }
  lost_track_ = !link.has_value();
  // A durable tier may have a block that is gone from here, or a drive: one that is detached, or
  // that the block was found on while it was being filled.
  const bool elsewhere =
      ref != kNoBlock || cache().durable != nullptr || cache().drives.records().MayHave(walk_);
  if (!DropOne(ref) && elsewhere) EraseElsewhere(walk_);
  if (!link) return false;
  own_ = std::exchange(walk_.key, link->parent);
  return cache().walk.IsBefore(walk_, link->position);
}

bool EvictJob::DropChainSlice() {
  const ChainSlice& chain = asked().chain;
  const size_t count = chain.keys.size();
  const size_t end = std::min(cursor_ + kEvictSlice, count);
  for (; cursor_ < end; ++cursor_) {
    // Tails first: what hangs below a dropped block would be dropped too, and not counted here.
    const BlockName name{.tenant = tenant(),
                         .group = chain.group,
                         .part = chain.part,
                         .key = chain.keys[count - 1 - cursor_]};
    if (!DropOne(cache().residency.index().Find(name))) EraseElsewhere(name);
  }
  return cursor_ < count;
}

void EvictJob::Run() {
  const bool more = DropSlice();
  cache().eraser.Pump();
  if (more) return RunAgain();
  if (asked().everything && cache().drives.records().has_unindexed(tenant()))
    return DropUnindexed();
  EndSweep();
  WaitForTiers();
}

// Only the tier knows of what the index had no room for.
void EvictJob::DropUnindexed() {
  cache().drives.records().EraseUnindexed(tenant(), [this, run = run()] {
    if (this->run() != run) return;
    EndSweep();
    WaitForTiers();
  });
}

// The sweep is over, done or not.
void EvictJob::EndSweep() {
  if (std::exchange(sweeping_, false)) cache().drives.records().EndSweep(tenant());
}

void EvictJob::Reopen() {
  if (std::exchange(closed_, false)) cache().durable->EndErasingAll(tenant());
}

void EvictJob::Drop() {
  EndSweep();
  Reopen();
}

// A block may have been on its way to NVMe when it was dropped. Once no such write is under way,
// all erasures have been asked for; once those are done, nothing is left.
void EvictJob::WaitForTiers() {
  if (unsure_ || (cache().drives.any() && !cache().drives.ready())) {
    return WaitForDurable(Status(
        Code::kUnavailable,
        "gone from memory; what NVMe may hold is not known yet. Evict again when Stats() shows "
        "the drives in service"));
  }
  cache().write_down.Barrier(tenant(), [this, run = run()](const Status& writes) {
    if (this->run() != run) return;
    const TenantId& id = cache().catalog.tenant(tenant()).id;
    cache().eraser.Barrier(id, [this, run, writes](const Status& erasures) {
      if (this->run() != run) return;
      cache().housekeeping.Run();
      WaitForDurable(writes.ok() ? erasures : writes);
    });
  });
}

void EvictJob::WaitForDurable(const Status& status) {
  if (cache().durable == nullptr) return Finish(status);
  DurableTiers& durable = *cache().durable;
  const auto finish = [this, status, run = run()](const Status& there) {
    if (this->run() == run) Finish(status.ok() ? there : status);
  };
  if (!asked().session.empty() && asked().chain.keys.empty() && !asked().everything) {
    const auto noted = [this, finish, run = run()](const Status& note) {
      if (this->run() != run) return;
      cache().durable->Barrier(
          tenant(), [finish, note](const Status& there) { finish(there.ok() ? note : there); });
    };
    return durable.ForgetSession(tenant(), asked().session, noted);
  }
  if (!asked().everything) return durable.Barrier(tenant(), finish);
  // Once nothing is being written there any more.
  durable.Barrier(tenant(), [this, finish, run = run()](const Status& there) {
    if (this->run() != run) return;
    if (!there.ok()) return finish(there);
    cache().durable->EraseAll(tenant(), finish);
  });
}

void EvictJob::Finish(Status status) {
  Reopen();
  asked().evicted = evicted_;
  if (unremembered_ > 0) {
    status = Status(
        Code::kBusy,
        fmt::format("too many deletions wait for a drive or a store that cannot be reached: {} of "
                    "these blocks are gone from everywhere else, but come back if it holds them. "
                    "Evict them again when Stats() shows it in service",
                    unremembered_));
  }
  if (lost_track_ && status.ok()) {
    status = Status(Code::kNotFound,
                    "it is not known any more which blocks came before those that are deleted now; "
                    "evict the chain by its keys");
  }
  request()->status = std::move(status);
  End(1);
}

}  // namespace aquifer
