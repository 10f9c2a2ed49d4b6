// Pin, Prestage and Evict.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cache/core.h"
#include "cache/jobs.h"

namespace aquifer {
namespace {

constexpr size_t kPinSlice = 64;
constexpr size_t kPrestageSlice = 64;
constexpr size_t kEvictSlice = 64;
constexpr size_t kSweepSlice = 2048;
constexpr size_t kWalkSlice = 256;
// What so many chains hang below is not one session's.
constexpr size_t kMaxBranches = 512;
constexpr size_t kMaxBelow = size_t{1} << 16;

Status NoSuchSession() {
  return Status(Code::kNotFound, "no such session; name it with Hint() first");
}

}  // namespace

// --- Pin

void PinJob::Reset() {
  cursor_ = 0;
  asked().pinned = 0;
}

void PinJob::Run() {
  const ChainSlice& chain = asked().chain;
  const size_t end = std::min(cursor_ + kPinSlice, chain.keys.size());
  // A pin belongs to the tenant: any of its clients may take it away.
  const uint64_t owner = tenant();
  for (; cursor_ < end; ++cursor_) {
    const BlockRef ref = core().residency_->index().Find(
        {.tenant = tenant(), .group = chain.group, .part = chain.part, .key = chain.keys[cursor_]});
    if (ref == kNoBlock || !core().Readable(ref)) continue;
    if (asked().seconds == 0) {
      core().residency_->Unpin(ref, owner);
    } else if (core().residency_->Pin(ref, owner, core().UnixIn(asked().seconds))) {
      core().write_down_->Want(ref);
    } else {
      request()->status =
          Status(Code::kNoSpace, "too many pins; take some away, or give them less time");
      return End(cursor_);
    }
    ++asked().pinned;
  }
  if (cursor_ == chain.keys.size()) return End(cursor_);
  Report(cursor_);
  RunAgain();
}

void PinJob::Cancel() {
  request()->status = Status(Code::kLate);
  End(cursor_);
}

// --- Prestage

void PrestageJob::Reset() {
  blocks_.clear();
  unanswered_.clear();
  cursor_ = open_ = 0;
  in_slice_ = collected_ = timer_set_ = reading_note_ = noteless_ = capped_ = false;
  note_ = {};
  deadline_nanos_ = DeadlineIn(asked().timeout_nanos);
  asked().found = asked().staged = 0;
  chain_ = asked().chain;
  // Keys alone, without their layout, do not say how large a block is.
  const bool known = chain_.layout != 0;
  layout_ = known ? core().LayoutOf(client(), chain_.layout) : 0;
  inquiry_.Reset(known ? core().durable_.get() : nullptr, NamesOf(chain_));
  if (!chain_.keys.empty()) return;
  if (const Core::Session* const session = core().FindSession(tenant(), asked().session)) {
    walk_ = session->head;
    return;
  }
  reading_note_ = true;  // Else it would have been refused.
}

// The keys that this node knows, or else those of the note.
bool PrestageJob::CollectKeys() {
  bool whole = false;
  if (core().WalkKeys(kWalkSlice, &walk_, &note_.keys, &whole)) return true;
  const Core::Session* const session = core().FindSession(tenant(), asked().session);
  const BlockRef head =
      session == nullptr ? BlockRef{kNoBlock} : core().residency_->index().Find(session->head);
  if (!whole || head == kNoBlock || note_.keys.front() != session->head.key) {
    reading_note_ = true;
    return true;
  }
  const BlockEntry& entry = core().residency_->at(head);
  core().catalog_.Hold(tenant(), entry.layout);
  note_.group = entry.group;
  note_.part = entry.part;
  std::reverse(note_.keys.begin(), note_.keys.end());
  StageKeys(entry.layout);
  return false;
}

// The layout is held.
void PrestageJob::StageKeys(uint16_t layout) {
  learned_ = layout_ = layout;
  chain_ = {.layout = 0, .group = note_.group, .part = note_.part, .keys = note_.keys};
  inquiry_.Reset(core().durable_.get(), NamesOf(chain_));
  collected_ = true;
}

// Only the durable tiers know of the session: their note has its keys.
void PrestageJob::ReadNote() {
  if (!std::exchange(timer_set_, true)) WakeAt(deadline_nanos_);
  core().durable_->notes().Read(tenant(), asked().session,
                                [this, run = run()](const Result<SessionNote>& note) {
                                  if (this->run() == run) OnNote(note);
                                });
}

void PrestageJob::OnNote(const Result<SessionNote>& note) {
  const auto end = [this](Status status) {
    request()->status = std::move(status);
    Finish();
  };
  reading_note_ = false;
  const Core::Session* const known = core().FindSession(tenant(), asked().session);
  if (!note.ok() && known == nullptr) return end(NoSuchSession());
  if (!note.ok()) {
    noteless_ = true;
    walk_ = known->head;
    return Run();
  }
  Result<uint16_t> layout =
      core().catalog_.Learn(tenant(), note->layout_fingerprint, note->group, note->block_bytes);
  if (!layout.ok()) return end(layout.status());
  note_ = *note;
  const BlockName head{
      .tenant = tenant(), .group = note_.group, .part = note_.part, .key = note_.keys.back()};
  if (known == nullptr) core().RememberSession(asked().session, head);
  StageKeys(*layout);
  Run();
}

void PrestageJob::LetGo() {
  core().residency_->RefundPrestage(tenant(), open_ * block_bytes_);
  open_ = 0;
  if (learned_) core().catalog_.Release(tenant(), *learned_);
  learned_.reset();
}

void PrestageJob::Finish() {
  LetGo();
  if (capped_ && request()->status.ok()) {
    request()->status =
        Status(Code::kNoSpace,
               "no DRAM is free, and half of the tenant's holds blocks that were prestaged and not "
               "fetched yet; fetch or evict those first");
  }
  End(1);
}

bool PrestageJob::Collect() {
  const bool ask = core().durable_ != nullptr && core().durable_->notes_usable() && !noteless_;
  if (chain_.keys.empty() && ask) return CollectKeys();
  const auto note = [this](BlockRef ref, const Key&, uint32_t) {
    if (ref != kNoBlock) blocks_.push_back(core().Note(ref));
  };
  if (chain_.keys.empty() && core().WalkUp(kWalkSlice, &walk_, note)) return true;
  collected_ = true;
  return false;
}

size_t PrestageJob::count() const {
  return chain_.keys.empty() ? blocks_.size() : chain_.keys.size();
}

// From the root on; kNoBlock when it is not there any more.
BlockRef PrestageJob::Block(size_t i) const {
  if (!chain_.keys.empty()) {
    return core().residency_->index().Find(
        {.tenant = tenant(), .group = chain_.group, .part = chain_.part, .key = chain_.keys[i]});
  }
  const Core::Noted& noted = blocks_[blocks_.size() - 1 - i];
  return core().Holds(noted) ? noted.ref : BlockRef{kNoBlock};
}

void PrestageJob::Run() {
  if (IsOver(deadline_nanos_)) return Cancel();
  if (reading_note_) return ReadNote();
  if (!collected_ && Collect()) return RunAgain();
  if (cursor_ == count() && !unanswered_.empty()) return StageUnanswered();
  in_slice_ = true;
  const size_t end = std::min(cursor_ + kPrestageSlice, count());
  for (; cursor_ < end; ++cursor_) {
    const BlockRef ref = Block(cursor_);
    if (ref != kNoBlock && core().Readable(ref)) {
      StageOne(ref);
    } else if (core().durable_ != nullptr && !chain_.keys.empty()) {
      StageFurther(cursor_);
    }
  }
  PumpLoads();
  in_slice_ = false;
  if (cursor_ < count()) return RunAgain();
  if (!unanswered_.empty() && !inquiry_.asking()) return RunAgain();
  MaybeEnd();
}

void PrestageJob::PumpLoads() {
  if (open_ > 0) core().loader_->Pump();
  if (open_ > 0 && core().durable_ != nullptr) core().durable_->PumpLoads();
  if ((open_ > 0 || !unanswered_.empty()) && !std::exchange(timer_set_, true)) {
    WakeAt(deadline_nanos_);
  }
}

void PrestageJob::StageFurther(size_t i) {
  const DurablePlace place = inquiry_.At(i, [this, run = run()] {
    if (this->run() == run && cursor_ == count()) RunAgain();
  });
  if (place.answer == Presence::Answer::kAbsent) return;
  if (place.answer == Presence::Answer::kUnknown) return unanswered_.push_back(i);
  ++asked().found;
  const GroupRecord& group = core().catalog_.layout(layout_).groups[chain_.group];
  if (!Charge(RoundUpToPage(group.block_bytes))) return;
  core().durable_->Load(place.tier,
                        {.name = {.tenant = tenant(),
                                  .group = chain_.group,
                                  .part = chain_.part,
                                  .key = chain_.keys[i]},
                         .layout = layout_},
                        deadline_nanos_, {.waiter = this, .run = run(), .op = i});
}

void PrestageJob::StageUnanswered() {
  if (inquiry_.asking()) return;
  in_slice_ = true;
  for (size_t left = std::min(unanswered_.size(), kPrestageSlice); left > 0; --left) {
    const size_t i = unanswered_.front();
    unanswered_.pop_front();
    StageFurther(i);
  }
  PumpLoads();
  in_slice_ = false;
  if (!unanswered_.empty() && !inquiry_.asking()) return RunAgain();
  MaybeEnd();
}

void PrestageJob::StageOne(BlockRef ref) {
  ++asked().found;
  if (core().residency_->at(ref).in_tier(kTierDram)) {
    ++asked().staged;
    return;
  }
  if (!Charge(core().residency_->SlotBytesOf(ref))) return;
  core().loader_->Load(ref, deadline_nanos_, {.waiter = this, .run = run(), .op = cursor_});
}

bool PrestageJob::Charge(uint64_t bytes) {
  block_bytes_ = bytes;
  if (!core().residency_->ChargePrestage(tenant(), bytes)) {
    capped_ = true;
    return false;
  }
  ++open_;
  return true;
}

void PrestageJob::OnLoaded(size_t, BlockRef ref, const Status& status) {
  --open_;
  Residency& residency = *core().residency_;
  if (status.ok()) {
    ++asked().staged;
    core().Count(tenant(), &CoreCounters::prestaged);
  }
  if (!status.ok() || !residency.NotePrestaged(ref)) {
    residency.RefundPrestage(tenant(), block_bytes_);
  }
  MaybeEnd();
}

void PrestageJob::MaybeEnd() {
  if (in_slice_ || open_ > 0 || !collected_ || cursor_ < count() || !unanswered_.empty()) return;
  Finish();
}

void PrestageJob::Cancel() {
  request()->status = Status(Code::kLate, "not every block was brought to DRAM in time");
  Finish();
}

// --- Evict

void EvictJob::Reset() {
  cursor_ = evicted_ = unremembered_ = 0;
  unsure_ = lost_track_ = false;
  own_.reset();
  unseen_.clear();
  below_.clear();
  sweeping_ = asked().everything;
  if (sweeping_) core().sweeping_.insert(tenant());
  closed_ = sweeping_ && core().durable_ != nullptr;
  if (closed_) core().durable_->BeginErasingAll(tenant());
  if (asked().everything || !asked().chain.keys.empty()) return;
  if (const Core::Session* const session = core().FindSession(tenant(), asked().session)) {
    walk_ = session->head;
    unseen_.push_back(walk_);
    core().ForgetHead(tenant(), asked().session);
  }
}

bool EvictJob::DropOne(BlockRef ref) {
  const Index& index = core().residency_->index();
  if (!index.Exists(ref) || index.at(ref).state != BlockState::kResident) return false;
  if (index.at(ref).tenant != tenant()) return false;
  // Also what NVMe does not have, as far as is known: a write that failed may have left a copy.
  Erase(core().residency_->IdOf(ref));
  core().residency_->Drop(ref, Leave::kAsked);
  ++evicted_;
  return true;
}

// A drive that has not been read may hold it too. Of a whole tenant that is known without a list.
void EvictJob::Erase(const BlockId& id) {
  if (core().durable_ != nullptr && !asked().everything && !core().durable_->Erase(id)) {
    ++unremembered_;
  }
  if (asked().everything || core().nvme_known()) {
    core().eraser_->Add(id);
  } else if (!core().eraser_->AddForGood(id)) {
    ++unremembered_;
  }
}

// It is not in the index, or only being filled; a tier may have it all the same.
void EvictJob::EraseElsewhere(const BlockName& name) {
  const BlockId id = core().IdOf(name);
  if (core().durable_ != nullptr || core().MayBeOnNvme(id)) Erase(id);
  core().residency_->OnDeletedInDurable(name);
}

// What drives had when they came of those of the tenant's that were being filled or written. False:
// that was all.
bool EvictJob::EraseFoundBusy() {
  std::set<BlockName>& found = core().found_busy_;
  auto next = found.lower_bound({.tenant = tenant()});
  for (size_t step = 0; next != found.end() && next->tenant == tenant(); ++step) {
    if (step == kEvictSlice) return true;
    core().EraseFound(*next);
    next = found.erase(next);
  }
  return false;
}

bool EvictJob::DropSlice() {
  if (asked().everything) return DropEverythingSlice();
  return asked().chain.keys.empty() ? DropSessionSlice() : DropChainSlice();
}

bool EvictJob::DropEverythingSlice() {
  // What is stored meanwhile and goes on from an end is there when the blocks are gone through.
  if (core().durable_ != nullptr && core().durable_->ForgetSomeEnds(tenant(), kEvictSlice)) {
    return true;
  }
  const Index& index = core().residency_->index();
  if (cursor_ == 0 && !core().nvme_known()) {
    core().forgotten_tenants_.insert(tenant());
    unsure_ = true;
  }
  const size_t before = evicted_;
  for (size_t step = 0; step < kSweepSlice && cursor_ < index.ref_limit(); ++step, ++cursor_) {
    DropOne(static_cast<BlockRef>(cursor_));
    if (evicted_ - before == kEvictSlice) break;
  }
  // A name may say who it was that talked.
  return cursor_ < index.ref_limit() || EraseFoundBusy() ||
         core().residency_->ForgetDurableBelow(tenant(), kEvictSlice) ||
         core().ForgetSessions(tenant(), kEvictSlice);
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
  const Index& index = core().residency_->index();
  for (size_t looked = 0; looked < kWalkSlice && !unseen_.empty();) {
    ++looked;
    const BlockName name = unseen_.back();
    unseen_.pop_back();
    const bool last = name == walk_;
    if (!last) below_.push_back(name);
    // Another session ends here: all of this one is its, too.
    if (core().IsSessionHead(name)) return false;
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
    for (const Key& key : core().residency_->DurableBelow(name, kMaxBranches + 1)) {
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
    if (!DropOne(core().residency_->index().Find(name))) EraseElsewhere(name);
  }
}

// What other chains share stays: whatever else hangs below is another's, and so is where another
// one ends.
bool EvictJob::DropNextOfSession() {
  if (core().IsSessionHead(walk_)) return false;
  const auto shared = own_ ? core().HasOtherBelow(walk_, own_) : false;
  lost_track_ = !shared.has_value();
  if (shared.value_or(true)) return false;
  const Index& index = core().residency_->index();
  const BlockRef ref = index.Find(walk_);
  std::optional<LostLink> link;
  if (ref != kNoBlock) {
    link = {.parent = index.ParentKey(ref), .position = index.at(ref).position};
  } else if (const LostLink* const gone = core().residency_->LinkAbove(walk_)) {
    link = *gone;
  }
  lost_track_ = !link.has_value();
  // A durable tier may have a block that is gone from here, or a drive: one that is detached, or
  // that the block was found on while it was being filled.
  const bool elsewhere =
      ref != kNoBlock || core().durable_ != nullptr || core().MayBeOnNvme(core().IdOf(walk_));
  if (!DropOne(ref) && elsewhere) EraseElsewhere(walk_);
  if (!link) return false;
  own_ = std::exchange(walk_.key, link->parent);
  return core().IsBefore(walk_, link->position);
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
    if (!DropOne(core().residency_->index().Find(name))) EraseElsewhere(name);
  }
  return cursor_ < count;
}

void EvictJob::Run() {
  const bool more = DropSlice();
  core().eraser_->Pump();
  if (more) return RunAgain();
  if (asked().everything && core().unindexed_.contains(tenant())) return DropUnindexed();
  EndSweep();
  WaitForTiers();
}

// Only the tier knows of what the index had no room for.
void EvictJob::DropUnindexed() {
  const TenantId id = core().catalog_.tenant(tenant()).id;
  core().nvme_->EnumerateInSlices(
      [&core = core(), id](const BlockMeta& meta) {
        if (meta.id.tenant != id || core.residency_->Find(meta.id) != kNoBlock) return;
        core.eraser_->Add(meta.id);
      },
      [this, run = run()] {
        if (this->run() != run) return;
        core().unindexed_.erase(tenant());
        core().eraser_->Pump();
        EndSweep();
        WaitForTiers();
      });
}

// The sweep is over, done or not.
void EvictJob::EndSweep() {
  if (std::exchange(sweeping_, false)) core().sweeping_.erase(tenant());
}

void EvictJob::Reopen() {
  if (std::exchange(closed_, false)) core().durable_->EndErasingAll(tenant());
}

void EvictJob::Drop() {
  EndSweep();
  Reopen();
}

// A block may have been on its way to NVMe when it was dropped. Once no such write is under way,
// all erasures have been asked for; once those are done, nothing is left.
void EvictJob::WaitForTiers() {
  if (unsure_ || (!core().options_.cache.nvme_directories.empty() && !core().nvme_ready_)) {
    return Finish(Status(
        Code::kUnavailable,
        "gone from memory; what NVMe may hold is not known yet. Evict again when Stats() shows "
        "the drives in service"));
  }
  core().write_down_->Barrier(tenant(), [this, run = run()](const Status& writes) {
    if (this->run() != run) return;
    const TenantId& id = core().catalog_.tenant(tenant()).id;
    core().eraser_->Barrier(id, [this, run, writes](const Status& erasures) {
      if (this->run() != run) return;
      core().Housekeep();
      WaitForDurable(writes.ok() ? erasures : writes);
    });
  });
}

void EvictJob::WaitForDurable(const Status& status) {
  if (core().durable_ == nullptr) return Finish(status);
  DurableTiers& durable = *core().durable_;
  const auto finish = [this, status, run = run()](const Status& there) {
    if (this->run() == run) Finish(status.ok() ? there : status);
  };
  if (!asked().session.empty() && asked().chain.keys.empty() && !asked().everything) {
    const auto noted = [this, finish, run = run()](const Status& note) {
      if (this->run() != run) return;
      core().durable_->Barrier(
          tenant(), [finish, note](const Status& there) { finish(there.ok() ? note : there); });
    };
    return durable.ForgetSession(tenant(), asked().session, noted);
  }
  if (!asked().everything) return durable.Barrier(tenant(), finish);
  // Once nothing is being written there any more.
  durable.Barrier(tenant(), [this, finish, run = run()](const Status& there) {
    if (this->run() != run) return;
    if (!there.ok()) return finish(there);
    core().durable_->EraseAll(tenant(), finish);
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
