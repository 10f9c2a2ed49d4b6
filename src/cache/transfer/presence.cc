#include "cache/transfer/presence.h"

#include <algorithm>

namespace aquifer {
namespace {

constexpr size_t kSlots = size_t{1} << 17;  // 3 MiB.
constexpr size_t kWays = 4;
constexpr size_t kWidth = 16;
constexpr size_t kMaxSearches = 256;
constexpr size_t kRememberSlice = 512;
// A request may give up sooner; the answer is remembered for when it asks again.
constexpr int64_t kLookNanos = 5'000'000'000;
// Long enough for the fetch behind a match. What another node deletes is a miss when it is read.
constexpr int64_t kThereNanos = 30'000'000'000;
// Another node may write it at any time.
constexpr int64_t kAbsentNanos = 1'000'000'000;

}  // namespace

Presence::Presence(DurableTier* tier, uint64_t hash_seed, Executor* executor, Clock* clock)
    : tier_(tier), executor_(executor), clock_(clock), hash_(hash_seed), slots_(kSlots) {}

void Presence::PostToSelf(Task task) {
  tasks_.Post([task = std::move(task)] { task(); });
}

Presence::Answer Presence::Recall(const BlockId& id) const {
  const uint64_t hash = hash_(id);
  for (const Slot& slot : SlotsOf(hash)) {
    if (slot.hash != hash) continue;
    const bool old = slot.epoch != epoch_ || slot.until_nanos <= clock_->NowNanos();
    if (old) return Answer::kUnknown;
    return slot.there ? Answer::kThere : Answer::kAbsent;
  }
  return Answer::kUnknown;
}

std::span<const Presence::Slot> Presence::SlotsOf(uint64_t hash) const {
  return std::span(slots_).subspan(hash % (kSlots / kWays) * kWays, kWays);
}

void Presence::Remember(const BlockId& id, bool there) {
  const uint64_t hash = hash_(id);
  const std::span<Slot> slots = std::span(slots_).subspan(hash % (kSlots / kWays) * kWays, kWays);
  // Its own, or else the one that is soonest out of date.
  Slot* into = &slots[0];
  for (Slot& slot : slots) {
    if (slot.until_nanos < into->until_nanos) into = &slot;
  }
  for (Slot& slot : slots) {
    if (slot.hash == hash) into = &slot;
  }
  *into = {.hash = hash,
           .until_nanos = clock_->NowNanos() + (there ? kThereNanos : kAbsentNanos),
           .epoch = epoch_,
           .there = there};
}

void Presence::Find(const ChainNames& chain, OnFound on_done) {
  if (tier_ == nullptr || searches_.size() >= kMaxSearches) {
    return PostToSelf([on_done = std::move(on_done)] { on_done(0); });
  }
  const std::span<const Key> keys = chain.keys.first(std::min(chain.keys.size(), kMaxKeys));
  const uint64_t number = next_search_++;
  searches_.emplace(
      number,
      Search{
          .common = {.tenant = chain.tenant, .key = {}, .group = chain.group, .part = chain.part},
          .keys = {keys.begin(), keys.end()},
          .search = ChainSearch(keys.size(), kWidth),
          .erasures = erasures_,
          .on_done = std::move(on_done)});
  PostToSelf([this, number] { RunRound(number); });
}

// Rounds that memory answers go on at once; the first question to the tier ends that.
void Presence::RunRound(uint64_t number) {
  if (tier_ == nullptr) return;
  Search& search = searches_.at(number);
  while (!search.search.done()) {
    auto look = std::make_unique<LookBatch>();
    std::vector<std::pair<size_t, bool>> known;
    for (size_t place = 0; place < search.search.round().size(); ++place) {
      const BlockId id = search.id(search.search.round()[place]);
      const Answer answer = Recall(id);
      if (answer != Answer::kUnknown) {
        known.emplace_back(place, answer == Answer::kThere);
        continue;
      }
      std::vector<Asker>& askers = asked_[id];
      if (askers.empty()) look->batch.ops.push_back({.id = id, .status = {}, .meta = {}});
      askers.push_back({.search = number, .place = place});
    }
    const bool all_known = known.size() == search.search.round().size();
    for (const auto& [place, there] : known) search.search.Answer(place, there);
    if (!look->batch.ops.empty()) {
      LookBatch* const raw = look.get();
      raw->erasures = erasures_;
      raw->batch.deadline_nanos = clock_->NowNanos() + kLookNanos;
      raw->batch.on_done = [this, raw](Batch<LookOp>&) { OnLooked(raw); };
      stats_.looks += raw->batch.ops.size();
      batches_.emplace(raw, std::move(look));
      tier_->Look(&raw->batch);
    }
    if (!all_known) return;
  }
  Finish(number);
}

void Presence::OnLooked(LookBatch* look) {
  for (const LookOp& op : look->batch.ops) {
    Answer answer = Answer::kUnknown;
    if (op.status.ok()) {
      const int64_t expiry = op.meta.expiry_unix_seconds;
      const bool over = expiry != 0 && expiry <= clock_->UnixSeconds();
      answer = over ? Answer::kAbsent : Answer::kThere;
    } else if (op.status.code() == Code::kNotFound || op.status.code() == Code::kCorrupt) {
      answer = Answer::kAbsent;
    }
    // It may have been deleted since.
    const bool stale = answer == Answer::kThere && look->erasures != erasures_;
    if (answer != Answer::kUnknown && !stale) Remember(op.id, answer == Answer::kThere);
    stats_.found += answer == Answer::kThere ? 1 : 0;
    stats_.failed += answer == Answer::kUnknown ? 1 : 0;
    Tell(op.id, answer);
  }
  // Freed later: this runs inside the batch's own callback.
  std::shared_ptr<LookBatch> finished = std::move(batches_.extract(look).mapped());
  executor_->Post([finished] {});
}

void Presence::Tell(const BlockId& id, Answer answer) {
  const auto asked = asked_.extract(id);
  if (asked.empty()) return;
  for (const Asker& asker : asked.mapped()) {
    Search& search = searches_.at(asker.search);
    if (answer == Answer::kUnknown) search.sure = false;
    if (search.search.Answer(asker.place, answer == Answer::kThere)) {
      PostToSelf([this, number = asker.search] { RunRound(number); });
    }
  }
}

void Presence::Finish(uint64_t number) {
  Search& search = searches_.at(number);
  const size_t found = search.search.found();
  if (search.sure && found < search.keys.size()) Remember(search.id(found), false);
  RememberSlice(number);
}

// What lies before the last that is there is there too.
void Presence::RememberSlice(uint64_t number) {
  Search& search = searches_.at(number);
  const size_t end = std::min(search.search.found(), search.remembered + kRememberSlice);
  for (; search.remembered < end; ++search.remembered) {
    if (search.erasures == erasures_) Remember(search.id(search.remembered), true);
  }
  if (end < search.search.found()) return PostToSelf([this, number] { RememberSlice(number); });
  const OnFound on_done = std::move(search.on_done);
  const size_t found = search.search.found();
  searches_.erase(number);
  on_done(found);
}

}  // namespace aquifer
