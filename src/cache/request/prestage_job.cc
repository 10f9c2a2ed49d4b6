#include "cache/request/prestage_job.h"

#include <algorithm>
#include <utility>

#include "io/disk/disk.h"

namespace aquifer {
namespace {

constexpr size_t kPrestageSlice = 64;
constexpr size_t kWalkSlice = 256;

Status NoSuchSession() {
  return Status(Code::kNotFound, "no such session; name it with Hint() first");
}

}  // namespace

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
  layout_ = known ? cache().clients.LayoutOf(client(), chain_.layout) : 0;
  inquiry_.Reset(known ? cache().durable : nullptr, NamesOf(chain_));
  if (!chain_.keys.empty()) return;
  if (const NamedSession* const session = cache().sessions.Find(tenant(), asked().session)) {
    walk_ = session->head;
    return;
  }
  reading_note_ = true;  // Else it would have been refused.
}

// The keys that this node knows, or else those of the note.
bool PrestageJob::CollectKeys() {
  bool whole = false;
  if (cache().walk.Keys(kWalkSlice, &walk_, &note_.keys, &whole)) return true;
  const NamedSession* const session = cache().sessions.Find(tenant(), asked().session);
  const BlockRef head =
      session == nullptr ? BlockRef{kNoBlock} : cache().residency.index().Find(session->head);
  if (!whole || head == kNoBlock || note_.keys.front() != session->head.key) {
    reading_note_ = true;
    return true;
  }
  const BlockEntry& entry = cache().residency.at(head);
  cache().catalog.Hold(tenant(), entry.layout);
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
  inquiry_.Reset(cache().durable, NamesOf(chain_));
  collected_ = true;
}

// Only the durable tiers know of the session: their note has its keys.
void PrestageJob::ReadNote() {
  if (!std::exchange(timer_set_, true)) WakeAt(deadline_nanos_);
  cache().durable->notes().Read(tenant(), asked().session,
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
  const NamedSession* const known = cache().sessions.Find(tenant(), asked().session);
  if (!note.ok() && known == nullptr) return end(NoSuchSession());
  if (!note.ok()) {
    noteless_ = true;
    walk_ = known->head;
    return Run();
  }
  Result<uint16_t> layout =
      cache().catalog.Learn(tenant(), note->layout_fingerprint, note->group, note->block_bytes);
  if (!layout.ok()) return end(layout.status());
  note_ = *note;
  const BlockName head{
      .tenant = tenant(), .group = note_.group, .part = note_.part, .key = note_.keys.back()};
  if (known == nullptr) cache().sessions.Remember(asked().session, head);
  StageKeys(*layout);
  Run();
}

void PrestageJob::LetGo() {
  cache().residency.RefundPrestage(tenant(), open_ * block_bytes_);
  open_ = 0;
  if (learned_) cache().catalog.Release(tenant(), *learned_);
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
  const bool ask = cache().durable != nullptr && cache().durable->notes_usable() && !noteless_;
  if (chain_.keys.empty() && ask) return CollectKeys();
  const auto note = [this](BlockRef ref, const Key&, uint32_t) {
    if (ref != kNoBlock) blocks_.push_back(cache().walk.Note(ref));
  };
  if (chain_.keys.empty() && cache().walk.Up(kWalkSlice, &walk_, note)) return true;
  collected_ = true;
  return false;
}

size_t PrestageJob::count() const {
  return chain_.keys.empty() ? blocks_.size() : chain_.keys.size();
}

// From the root on; kNoBlock when it is not there any more.
BlockRef PrestageJob::Block(size_t i) const {
  if (!chain_.keys.empty()) {
    return cache().residency.index().Find(
        {.tenant = tenant(), .group = chain_.group, .part = chain_.part, .key = chain_.keys[i]});
  }
  const NotedBlock& noted = blocks_[blocks_.size() - 1 - i];
  return cache().walk.Holds(noted) ? noted.ref : BlockRef{kNoBlock};
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
    if (ref != kNoBlock && cache().Readable(ref)) {
      StageOne(ref);
    } else if (cache().durable != nullptr && !chain_.keys.empty()) {
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
  if (open_ > 0) cache().loader.Pump();
  if (open_ > 0 && cache().durable != nullptr) cache().durable->PumpLoads();
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
  const GroupRecord& group = cache().catalog.layout(layout_).groups[chain_.group];
  if (!Charge(RoundUpToPage(group.block_bytes))) return;
  cache().durable->Load(place.tier,
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
  if (cache().residency.at(ref).in_tier(kTierDram)) {
    ++asked().staged;
    return;
  }
  if (!Charge(cache().residency.SlotBytesOf(ref))) return;
  cache().loader.Load(ref, deadline_nanos_, {.waiter = this, .run = run(), .op = cursor_});
}

bool PrestageJob::Charge(uint64_t bytes) {
  block_bytes_ = bytes;
  if (!cache().residency.ChargePrestage(tenant(), bytes)) {
    capped_ = true;
    return false;
  }
  ++open_;
  return true;
}

void PrestageJob::OnLoaded(size_t, BlockRef ref, const Status& status) {
  --open_;
  Residency& residency = cache().residency;
  if (status.ok()) {
    ++asked().staged;
    cache().meters.Count(tenant(), &CacheCounters::prestaged);
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

}  // namespace aquifer
