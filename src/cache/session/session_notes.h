// The session directory: for each session of durable class a note in the durable tiers that count
// as durable (session_note.h). A note is written once the session's last block is durable itself,
// so that it never names more than a crash leaves, and not more often than once a second for a
// session.
//
// The chain is walked as soon as the session is named, while its blocks are here. What waits is
// bounded: past that the oldest is forgotten, and its old note stays.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/task_scope.h"
#include "cache/residency/catalog.h"
#include "cache/residency/flush_waits.h"
#include "cache/residency/residency.h"
#include "cache/session/session_note.h"
#include "tier/durable/durable_tier.h"

namespace aquifer {

struct SessionNotesParts {
  std::vector<DurableTier*> tiers;      // That count as durable, and are written to.
  std::vector<DurableTier*> read_from;  // The same, and those that others write to.
  Residency* residency = nullptr;
  Catalog* catalog = nullptr;
  Executor* executor = nullptr;
  Clock* clock = nullptr;
  // Adds up to `max` keys from `*next` up its chain, deepest first; false when there are no more,
  // and then `*whole` says whether the first block was reached.
  std::function<bool(size_t max, BlockName* next, std::vector<Key>* keys, bool* whole)> walk;
};

struct SessionNotesStats {
  uint64_t written = 0;
  uint64_t failed = 0;   // To be tried again.
  uint64_t skipped = 0;  // Not all of the chain was known, or too much waited.
};

class SessionNotes {
 public:
  explicit SessionNotes(SessionNotesParts parts);

  // The session ends with this block now. `own_class`: it is durable whatever its tenant's class,
  // so that the end is found by the block, too.
  void Want(const std::string& session, const BlockName& head, bool own_class = false);
  // It was deleted. `on_done` when a tier knows, or why none does yet: it is tried again. Never
  // from inside.
  void Forget(uint16_t tenant, const std::string& session, std::function<void(Status)> on_done);

  // Looks at some of what waits. Call now and then.
  void Pump();

  // `on_done` when the notes of that tenant (or FlushWaits::kEveryone) that were wanted before are
  // written, as far as they can be now; kUnavailable: no tier took one of them.
  void Flush(uint16_t of, std::function<void(Status)> on_done);

  // It was deleted, and no tier has been told so far.
  bool forgetting(uint16_t tenant, const std::string& session) const;

  // The newest that a tier has all of; `keys` is the whole chain then. kNotFound: none has, or it
  // was deleted; else nobody knows now.
  using OnRead = std::function<void(Result<SessionNote>)>;
  void Read(uint16_t tenant, const std::string& session, OnRead on_done);
  // The sessions of their own class that end with this block by their own notes. kNotFound: none;
  // else nobody knows now. Never from inside.
  using OnReadEnd = std::function<void(Result<SessionEnd>)>;
  void ReadEnd(const BlockName& end, OnReadEnd on_done);

  // Nobody may ask the tiers any more.
  void Close() {
    parts_.tiers.clear();
    parts_.read_from.clear();
  }

  const SessionNotesStats& stats() const { return stats_; }
  size_t waiting() const { return wanted_.size(); }
  bool waits(uint16_t tenant) const;  // One of the tenant's does.

 private:
  using Name = std::pair<uint16_t, std::string>;  // Tenant and session.
  struct Wanted {
    Name name;
    BlockName head;
    BlockName walk;         // The next key to collect.
    std::vector<Key> keys;  // Deepest first.
    bool walked = false;
    bool whole = false;
    bool forget = false;
    bool own_class = false;
    size_t putting = 0;    // Answers that are awaited.
    bool put = false;      // One was ok.
    bool failed = false;   // None was, the last time.
    bool changed = false;  // Since it was sent: it is wanted once more.
    int64_t since_nanos = 0;
    std::vector<std::function<void(Status)>> on_forgotten{};
  };

  struct FlushWait {
    uint16_t of = 0;
    uint64_t last = 0;  // What was wanted later is not waited for.
    std::function<void(Status)> on_done;

    bool Concerns(uint64_t number, uint16_t tenant) const {
      return number <= last && (of == tenant || of == FlushWaits::kEveryone);
    }
  };

  void WalkOn(uint64_t number);
  // Where its last block had not been stored when it was named: once more.
  void WalkIfStored(uint64_t number, Wanted* wanted);
  // Nobody stores its last block.
  bool Hopeless(const Wanted& wanted) const;
  // Its last block is durable, or it is to be forgotten.
  bool Ready(const Wanted& wanted) const;
  bool Rests(const Wanted& wanted) const;
  void Put(uint64_t number, Wanted* wanted);
  // A note as it is put to one tier: its pieces one after the other, then itself.
  struct Putting {
    uint64_t number = 0;
    DurableTier* tier = nullptr;
    TenantId tenant;
    std::string name;
    int64_t expiry_unix_seconds = 0;
    std::string end_name;  // Of the note of its end; empty: there is to be none, or it is there.
    std::string session;   // Which that is to say.
    SessionNote note;
    std::vector<Key> chain;
    size_t pieces = 0;  // That are there.
  };
  void PutNext(const std::shared_ptr<Putting>& putting);
  // Adds the session to those that the tier has for its last block.
  void PutEnd(const std::shared_ptr<Putting>& putting);
  void OnPut(uint64_t number, const Status& status);
  void BeginAnew(uint64_t number);
  void Tell(std::function<void(Status)> on_done, const Status& status);
  void TellForgotten(Wanted* wanted, const Status& status);
  void Settle(uint64_t number);
  void CheckFlushesLater();
  void CheckFlushes();
  Status VerdictFor(const FlushWait& wait) const;
  // A session as it is read.
  struct Reading {
    TenantId tenant;
    std::string session;
    size_t awaited = 0;  // Tiers that have not answered.
    // What they have, and where; the newest first once it is read on.
    std::vector<std::pair<SessionNote, DurableTier*>> notes;
    Status trouble;  // Of those that had no answer.
    bool chosen = false;
    bool last_key_only = false;  // No pieces.
    size_t next = 0;             // Of the notes.
    std::vector<Key> chain;      // Of the pieces that have come.
    size_t pieces = 0;
    OnRead on_done;
  };
  // An end as it is read.
  struct ReadingEnd {
    BlockName end;
    size_t awaited = 0;
    SessionEnd noted;  // By any tier.
    SessionEnd found;  // Of those, who has not gone on since.
    Status trouble;    // Of those that had no answer.
    OnReadEnd on_done;
  };
  void OnEnd(const std::shared_ptr<ReadingEnd>& reading);
  void OnSessionOfEnd(const std::shared_ptr<ReadingEnd>& reading, const std::string& session,
                      const Result<SessionNote>& note);
  void BeginReading(const std::shared_ptr<Reading>& reading);
  void OnNote(const std::shared_ptr<Reading>& reading, DurableTier* tier,
              const Result<std::vector<std::byte>>& bytes);
  void ChooseNote(const std::shared_ptr<Reading>& reading);
  void ReadNext(const std::shared_ptr<Reading>& reading);
  void ReadPiece(const std::shared_ptr<Reading>& reading);

  SessionNotesParts parts_;
  std::map<uint64_t, Wanted> wanted_;  // In the order of asking, at most one a session.
  std::map<Name, uint64_t> number_of_;
  std::map<Name, int64_t> put_nanos_;  // When its last note was written, for a second.
  // Pieces that are known to be there, a few thousand.
  std::set<std::pair<DurableTier*, Key>> known_pieces_;
  size_t keys_ = 0;  // Of all that wait.
  uint64_t next_ = 1;
  int64_t last_written_micros_ = 0;  // So that none has the time of the one before.
  uint64_t cursor_ = 0;
  std::vector<FlushWait> flushes_;  // Nobody rests meanwhile.
  TaskScope::Once flush_check_;
  SessionNotesStats stats_;
  TaskScope tasks_{parts_.executor};
};

}  // namespace aquifer
