#include "cache/session/session_notes.h"

#include <algorithm>
#include <iterator>

namespace aquifer {
namespace {

constexpr size_t kWalkSlice = 128;
constexpr size_t kPumpSlice = 32;
constexpr size_t kMaxWanted = 4096;
constexpr size_t kMaxKeysWaiting = size_t{1} << 20;  // 32 MiB.
constexpr size_t kMaxKnownPieces = 4096;
constexpr int64_t kRestNanos = 1'000'000'000;
constexpr int64_t kGiveUpNanos = 60'000'000'000;     // A last block that nobody stores.
constexpr int64_t kOthersNanos = 250'000'000;        // Once one tier has answered.
constexpr int64_t kNoteSeconds = 30 * 24 * 60 * 60;  // Of a session that nobody names again.

Status NoneInService() { return Status(Code::kUnavailable, "no durable tier is in service"); }

// That there is none, or none that is worth anything, is one.
bool IsAnswer(const Status& status) {
  return status.ok() || status.code() == Code::kNotFound || status.code() == Code::kCorrupt;
}

}  // namespace

SessionNotes::SessionNotes(SessionNotesParts parts) : parts_(std::move(parts)) {}

void SessionNotes::Want(const std::string& session, const BlockName& head, bool own_class) {
  const Name name(head.tenant, session);
  if (const auto known = number_of_.find(name); known != number_of_.end()) {
    Wanted& wanted = wanted_.at(known->second);
    own_class = own_class || (wanted.own_class && !wanted.forget);
    const bool same = wanted.head.key == head.key && !wanted.forget;
    if (same && own_class == wanted.own_class) return;
    if (wanted.putting > 0) {
      wanted.changed = true;
      wanted.head = head;
      wanted.forget = false;
      wanted.own_class = own_class;
      return;
    }
    Settle(known->second);
  }
  if (wanted_.size() >= kMaxWanted || keys_ >= kMaxKeysWaiting) {
    ++stats_.skipped;
    const auto oldest = std::find_if(wanted_.begin(), wanted_.end(), [](const auto& one) {
      return one.second.putting == 0 && !one.second.forget;
    });
    if (oldest == wanted_.end()) return;
    Settle(oldest->first);
  }
  const uint64_t number = next_++;
  number_of_[name] = number;
  Wanted& wanted = wanted_[number];
  wanted.name = name;
  wanted.head = wanted.walk = head;
  wanted.own_class = own_class;
  wanted.since_nanos = parts_.clock->NowNanos();
  WalkOn(number);
}

void SessionNotes::Forget(uint16_t tenant, const std::string& session,
                          std::function<void(Status)> on_done) {
  if (parts_.tiers.empty()) return Tell(std::move(on_done), Status());
  const Name name(tenant, session);
  std::vector<std::function<void(Status)>> on_forgotten;  // Of those who asked before, too.
  if (const auto known = number_of_.find(name); known != number_of_.end()) {
    on_forgotten.swap(wanted_.at(known->second).on_forgotten);
  }
  on_forgotten.push_back(std::move(on_done));
  Want(session, {.tenant = tenant, .group = 0, .part = 0, .key = {}});
  const auto known = number_of_.find(name);
  if (known == number_of_.end()) {
    for (auto& one : on_forgotten) Tell(std::move(one), Status(Code::kBusy, "too many notes wait"));
    return;
  }
  Wanted& wanted = wanted_.at(known->second);
  wanted.forget = wanted.walked = wanted.whole = true;
  wanted.on_forgotten = std::move(on_forgotten);
  Pump();
}

bool SessionNotes::forgetting(uint16_t tenant, const std::string& session) const {
  const auto known = number_of_.find({tenant, session});
  return known != number_of_.end() && wanted_.at(known->second).forget;
}

bool SessionNotes::waits(uint16_t tenant) const {
  const auto first = number_of_.lower_bound({tenant, ""});
  return first != number_of_.end() && first->first.first == tenant;
}

void SessionNotes::Tell(std::function<void(Status)> on_done, const Status& status) {
  parts_.executor->Post([on_done = std::move(on_done), status] { on_done(status); });
}

// A slice after the other: chains are long.
void SessionNotes::WalkOn(uint64_t number) {
  const auto found = wanted_.find(number);
  if (found == wanted_.end() || found->second.walked) return;
  Wanted& wanted = found->second;
  const size_t before = wanted.keys.size();
  const bool more = parts_.walk(kWalkSlice, &wanted.walk, &wanted.keys, &wanted.whole) &&
                    wanted.keys.size() < kMaxSessionKeys;
  keys_ += wanted.keys.size() - before;
  wanted.walked = !more;
  if (wanted.walked) return CheckFlushesLater();
  tasks_.Post([this, number] { WalkOn(number); });
}

void SessionNotes::WalkIfStored(uint64_t number, Wanted* wanted) {
  if (!wanted->walked || !wanted->keys.empty() || wanted->forget) return;
  if (parts_.residency->index().Find(wanted->head) == kNoBlock) return;
  wanted->walked = false;
  wanted->walk = wanted->head;
  WalkOn(number);
}

bool SessionNotes::Hopeless(const Wanted& wanted) const {
  if (wanted.forget) return false;
  if (!wanted.whole && !wanted.keys.empty()) return true;
  return wanted.since_nanos + kGiveUpNanos < parts_.clock->NowNanos() &&
         parts_.residency->index().Find(wanted.head) == kNoBlock;
}

bool SessionNotes::Ready(const Wanted& wanted) const {
  if (wanted.forget) return true;
  const BlockRef ref = parts_.residency->index().Find(wanted.head);
  return ref != kNoBlock && parts_.residency->in_lasting(ref);
}

bool SessionNotes::Rests(const Wanted& wanted) const {
  const auto put = put_nanos_.find(wanted.name);
  return flushes_.empty() && put != put_nanos_.end() &&
         put->second + kRestNanos > parts_.clock->NowNanos();
}

void SessionNotes::Pump() {
  const int64_t now = parts_.clock->NowNanos();
  auto next = wanted_.upper_bound(cursor_);
  for (size_t step = 0; step < kPumpSlice && next != wanted_.end(); ++step) {
    const uint64_t number = next->first;
    Wanted& wanted = next->second;
    ++next;
    cursor_ = number;
    WalkIfStored(number, &wanted);
    if (!wanted.walked || wanted.putting > 0) continue;
    if (Hopeless(wanted)) {
      ++stats_.skipped;
      Settle(number);
    } else if (wanted.whole && Ready(wanted) && !Rests(wanted)) {
      Put(number, &wanted);
    }
  }
  if (next == wanted_.end()) cursor_ = 0;
  std::erase_if(put_nanos_, [now](const auto& put) { return put.second + kRestNanos <= now; });
  if (!flushes_.empty()) CheckFlushesLater();
}

void SessionNotes::Put(uint64_t number, Wanted* wanted) {
  Putting all;
  all.number = number;
  all.tenant = parts_.catalog->tenant(wanted->name.first).id;
  all.name = SessionNoteName(wanted->name.second);
  all.expiry_unix_seconds = parts_.clock->UnixSeconds() + kNoteSeconds;
  last_written_micros_ = std::max(parts_.clock->UnixMicros(), last_written_micros_ + 1);
  all.note.written_unix_micros = static_cast<uint64_t>(last_written_micros_);
  if (!wanted->forget) {
    const BlockRef ref = parts_.residency->index().Find(wanted->head);
    const BlockEntry& entry = parts_.residency->at(ref);
    all.note.group = entry.group;
    all.note.part = entry.part;
    all.note.block_bytes = parts_.residency->RawBytes(ref);
    all.note.layout_fingerprint = parts_.catalog->layout(entry.layout).fingerprint;
    all.chain.assign(wanted->keys.rbegin(), wanted->keys.rend());
    CutSession(all.chain, &all.note);
    if (wanted->own_class) {
      all.end_name = SessionEndName(entry.group, entry.part, entry.key);
      all.session = wanted->name.second;
    }
    if (entry.expiry_unix_seconds != 0) all.expiry_unix_seconds = entry.expiry_unix_seconds;
  }
  put_nanos_[wanted->name] = parts_.clock->NowNanos();
  // One more, so that an answer from inside does not end it before all are asked.
  wanted->putting = 1;
  for (DurableTier* const tier : parts_.tiers) {
    if (!tier->in_service()) continue;
    ++wanted->putting;
    auto putting = std::make_shared<Putting>(all);
    putting->tier = tier;
    PutNext(putting);
  }
  OnPut(number, Status(Code::kUnavailable));
}

// A piece that was put a while ago may be near its end: it is put anew with every start, and when
// so many others came that it was forgotten.
void SessionNotes::PutNext(const std::shared_ptr<Putting>& putting) {
  const SessionNote& note = putting->note;
  while (putting->pieces < note.pieces.size() &&
         known_pieces_.contains({putting->tier, note.pieces[putting->pieces]})) {
    ++putting->pieces;
  }
  if (parts_.tiers.empty()) return;  // Closed.
  if (putting->pieces == note.pieces.size() && !putting->end_name.empty()) return PutEnd(putting);
  if (putting->pieces == note.pieces.size()) {
    return putting->tier->PutNote(
        putting->tenant, putting->name, EncodeSessionNote(note), putting->expiry_unix_seconds,
        tasks_.Guard([this, putting](const Status& put) { OnPut(putting->number, put); }));
  }
  const std::span<const Key> keys =
      std::span(putting->chain)
          .subspan(putting->pieces * kKeysPerSessionPiece, kKeysPerSessionPiece);
  putting->tier->PutNote(putting->tenant, SessionPieceName(keys.back()), EncodeSessionPiece(keys),
                         parts_.clock->UnixSeconds() + 2 * kNoteSeconds,
                         tasks_.Guard([this, putting](const Status& put) {
                           if (!put.ok()) return OnPut(putting->number, put);
                           if (known_pieces_.size() >= kMaxKnownPieces) known_pieces_.clear();
                           known_pieces_.emplace(putting->tier,
                                                 putting->note.pieces[putting->pieces]);
                           PutNext(putting);
                         }));
}

void SessionNotes::PutEnd(const std::shared_ptr<Putting>& putting) {
  const auto on_put = tasks_.Guard([this, putting](const Status& put) {
    if (!put.ok()) return OnPut(putting->number, put);
    PutNext(putting);
  });
  putting->tier->GetNote(
      putting->tenant, putting->end_name,
      tasks_.Guard([this, putting, on_put](const Result<std::vector<std::byte>>& bytes) {
        if (parts_.tiers.empty()) return;
        if (!bytes.ok() && !IsAnswer(bytes.status())) return on_put(bytes.status());
        const Result<SessionEnd> there =
            bytes.ok() ? DecodeSessionEnd(*bytes) : Result<SessionEnd>(bytes.status());
        SessionEnd end = there.ok() ? *there : SessionEnd();
        AddToSessionEnd(putting->session, &end);
        putting->tier->PutNote(putting->tenant, std::exchange(putting->end_name, ""),
                               EncodeSessionEnd(end), putting->expiry_unix_seconds, on_put);
      }));
}

void SessionNotes::OnPut(uint64_t number, const Status& status) {
  const auto found = wanted_.find(number);
  if (found == wanted_.end()) return;
  Wanted& wanted = found->second;
  wanted.put |= status.ok();
  if (--wanted.putting > 0) return;
  wanted.failed = !wanted.put;
  ++(wanted.failed ? stats_.failed : stats_.written);
  if (wanted.changed) return BeginAnew(number);
  if (!wanted.failed) return Settle(number);
  TellForgotten(&wanted, Status(Code::kUnavailable,
                                "no durable tier took the note that the session is deleted; that "
                                "is tried again"));
  CheckFlushesLater();
}

// It goes on, or was deleted, since its note was sent.
void SessionNotes::BeginAnew(uint64_t number) {
  Wanted& wanted = wanted_.at(number);
  const Name name = wanted.name;
  const BlockName head = wanted.head;
  const bool forget = wanted.forget;
  const bool own_class = wanted.own_class;
  std::vector<std::function<void(Status)>> on_forgotten;
  if (forget) on_forgotten.swap(wanted.on_forgotten);
  Settle(number);
  for (FlushWait& wait : flushes_) wait.last = next_;  // Who waited for this waits for that.
  if (!forget) return Want(name.second, head, own_class);
  for (auto& on_done : on_forgotten) Forget(name.first, name.second, std::move(on_done));
}

void SessionNotes::TellForgotten(Wanted* wanted, const Status& status) {
  for (auto& on_done : std::exchange(wanted->on_forgotten, {})) Tell(std::move(on_done), status);
}

void SessionNotes::Settle(uint64_t number) {
  const auto found = wanted_.find(number);
  TellForgotten(&found->second, Status());
  keys_ -= found->second.keys.size();
  number_of_.erase(found->second.name);
  wanted_.erase(found);
  CheckFlushesLater();
}

// --- Flush

void SessionNotes::Flush(uint16_t of, std::function<void(Status)> on_done) {
  flushes_.push_back({.of = of, .last = next_ - 1, .on_done = std::move(on_done)});
  // What failed before is tried once more.
  for (auto& [number, wanted] : wanted_) {
    if (wanted.failed && flushes_.back().Concerns(number, wanted.name.first) && Ready(wanted)) {
      wanted.failed = false;
    }
  }
  CheckFlushesLater();
}

void SessionNotes::CheckFlushesLater() {
  if (flushes_.empty()) return;
  flush_check_.Post(&tasks_, [this] { CheckFlushes(); });
}

void SessionNotes::CheckFlushes() {
  uint64_t oldest = next_;  // Of those that are worth waiting for.
  for (auto& [number, wanted] : wanted_) {
    WalkIfStored(number, &wanted);
    const bool idle = wanted.walked && wanted.putting == 0;
    if (idle && wanted.whole && !wanted.failed && Ready(wanted)) {
      Put(number, &wanted);
      return CheckFlushesLater();
    }
    if (!wanted.walked || wanted.putting > 0) oldest = std::min(oldest, number);
  }
  const auto through =
      std::partition(flushes_.begin(), flushes_.end(),
                     [oldest](const FlushWait& wait) { return wait.last >= oldest; });
  const std::vector<FlushWait> done(std::make_move_iterator(through),
                                    std::make_move_iterator(flushes_.end()));
  flushes_.erase(through, flushes_.end());
  for (const FlushWait& wait : done) wait.on_done(VerdictFor(wait));
}

Status SessionNotes::VerdictFor(const FlushWait& wait) const {
  const bool failed = std::any_of(wanted_.begin(), wanted_.end(), [&wait](const auto& one) {
    return one.second.failed && wait.Concerns(one.first, one.second.name.first);
  });
  if (!failed) return Status();
  return Status(Code::kUnavailable,
                "the blocks are durable, but no durable tier took the note that names them as a "
                "session's; flush again when Stats() shows it in service");
}

// --- Read

void SessionNotes::Read(uint16_t tenant, const std::string& session, OnRead on_done) {
  auto reading = std::make_shared<Reading>();
  reading->tenant = parts_.catalog->tenant(tenant).id;
  reading->session = session;
  reading->on_done = std::move(on_done);
  BeginReading(reading);
}

void SessionNotes::BeginReading(const std::shared_ptr<Reading>& reading) {
  std::vector<DurableTier*> asked;
  for (DurableTier* const tier : parts_.read_from) {
    if (tier->in_service()) asked.push_back(tier);
  }
  if (asked.empty()) return reading->on_done(NoneInService());
  reading->awaited = asked.size();
  for (DurableTier* const tier : asked) {
    tier->GetNote(reading->tenant, SessionNoteName(reading->session),
                  tasks_.Guard([this, reading, tier](const Result<std::vector<std::byte>>& note) {
                    OnNote(reading, tier, note);
                  }));
  }
}

void SessionNotes::ReadEnd(const BlockName& end, OnReadEnd on_done) {
  auto reading = std::make_shared<ReadingEnd>();
  reading->end = end;
  reading->trouble = NoneInService();
  reading->on_done = std::move(on_done);
  reading->awaited = 1;  // So that an answer from inside does not end it before all are asked.
  for (DurableTier* const tier : parts_.read_from) {
    if (!tier->in_service()) continue;
    if (reading->awaited++ == 1) reading->trouble = Status();
    tier->GetNote(parts_.catalog->tenant(end.tenant).id,
                  SessionEndName(end.group, end.part, end.key),
                  tasks_.Guard([this, reading](const Result<std::vector<std::byte>>& bytes) {
                    const Result<SessionEnd> noted =
                        bytes.ok() ? DecodeSessionEnd(*bytes) : Result<SessionEnd>(bytes.status());
                    if (!IsAnswer(noted.status())) reading->trouble = noted.status();
                    if (noted.ok()) {
                      for (const std::string& session : noted->sessions) {
                        AddToSessionEnd(session, &reading->noted);
                      }
                      reading->noted.more |= noted->more;
                    }
                    OnEnd(reading);
                  }));
  }
  tasks_.Post([this, reading] { OnEnd(reading); });
}

void SessionNotes::OnEnd(const std::shared_ptr<ReadingEnd>& reading) {
  if (--reading->awaited > 0) return;
  if (reading->noted.sessions.empty()) {
    return reading->on_done(reading->trouble.ok() ? Status(Code::kNotFound) : reading->trouble);
  }
  reading->found.more = reading->noted.more;
  reading->awaited = reading->noted.sessions.size();
  // It may have gone on since, or was deleted: that is in its own note.
  for (const std::string& session : reading->noted.sessions) {
    auto own = std::make_shared<Reading>();
    own->tenant = parts_.catalog->tenant(reading->end.tenant).id;
    own->session = session;
    own->last_key_only = true;
    own->on_done = tasks_.Guard([this, reading, session](const Result<SessionNote>& note) {
      OnSessionOfEnd(reading, session, note);
    });
    BeginReading(own);
  }
}

void SessionNotes::OnSessionOfEnd(const std::shared_ptr<ReadingEnd>& reading,
                                  const std::string& session, const Result<SessionNote>& note) {
  const BlockName& end = reading->end;
  if (note.ok() && note->keys.back() == end.key && note->group == end.group &&
      note->part == end.part) {
    reading->found.sessions.push_back(session);
  }
  if (!IsAnswer(note.status())) reading->trouble = note.status();
  if (--reading->awaited > 0) return;
  if (!reading->found.sessions.empty() || reading->found.more) {
    return reading->on_done(reading->found);
  }
  reading->on_done(reading->trouble.ok() ? Status(Code::kNotFound) : reading->trouble);
}

void SessionNotes::OnNote(const std::shared_ptr<Reading>& reading, DurableTier* tier,
                          const Result<std::vector<std::byte>>& bytes) {
  --reading->awaited;
  Result<SessionNote> note =
      bytes.ok() ? DecodeSessionNote(*bytes) : Result<SessionNote>(bytes.status());
  if (!IsAnswer(note.status())) reading->trouble = note.status();
  if (note.ok()) reading->notes.emplace_back(*std::move(note), tier);
  if (reading->awaited == 0) return ChooseNote(reading);
  if (!bytes.ok() || reading->notes.size() != 1) return;
  // A tier that hangs keeps nobody from what another one has.
  tasks_.PostAt(parts_.clock->NowNanos() + kOthersNanos, [this, reading] { ChooseNote(reading); });
}

void SessionNotes::ChooseNote(const std::shared_ptr<Reading>& reading) {
  if (std::exchange(reading->chosen, true)) return;
  std::sort(reading->notes.begin(), reading->notes.end(), [](const auto& a, const auto& b) {
    return a.first.written_unix_micros > b.first.written_unix_micros;
  });
  ReadNext(reading);
}

void SessionNotes::ReadNext(const std::shared_ptr<Reading>& reading) {
  if (reading->next == reading->notes.size()) {
    return reading->on_done(reading->trouble.ok() ? Status(Code::kNotFound) : reading->trouble);
  }
  if (reading->notes[reading->next].first.keys.empty()) {
    return reading->on_done(Status(Code::kNotFound));
  }
  reading->chain.clear();
  reading->pieces = 0;
  ReadPiece(reading);
}

void SessionNotes::ReadPiece(const std::shared_ptr<Reading>& reading) {
  auto& [note, tier] = reading->notes[reading->next];
  if (reading->pieces == note.pieces.size() || reading->last_key_only) {
    note.keys.insert(note.keys.begin(), reading->chain.begin(), reading->chain.end());
    return reading->on_done(std::move(note));
  }
  if (parts_.read_from.empty()) return;  // Closed.
  const Key last = note.pieces[reading->pieces];
  tier->GetNote(reading->tenant, SessionPieceName(last),
                tasks_.Guard([this, reading, last](const Result<std::vector<std::byte>>& bytes) {
                  const Result<std::vector<Key>> keys =
                      bytes.ok() ? DecodeSessionPiece(*bytes, last)
                                 : Result<std::vector<Key>>(bytes.status());
                  if (!keys.ok()) {
                    if (!IsAnswer(keys.status())) reading->trouble = keys.status();
                    ++reading->next;
                    return ReadNext(reading);
                  }
                  reading->chain.insert(reading->chain.end(), keys->begin(), keys->end());
                  ++reading->pieces;
                  ReadPiece(reading);
                }));
}

}  // namespace aquifer
