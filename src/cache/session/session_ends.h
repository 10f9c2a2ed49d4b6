// Where sessions end that are durable by a hint of their own: what is stored from there on is
// durable too, without another hint. An end that this process has not heard of, because it was
// restarted or the session comes from another node, is asked for in the durable tiers
// (SessionNotes), once for each chain that goes on from a block that they may have. While nobody
// can answer it is asked again, and no flush says that all is durable.
//
// Only an end counts, and a session has one: its last. A session that begins like a durable one
// branches off above its end and stays what its tenant's class says. Where several sessions end
// with the same block, what goes on from there without a hint is durable, since any of them is to
// be, but it is none's: nobody's name moves.
//
// All of it is bounded (SessionEndsBounds), and who has few of it is not pushed out by who has
// many. The next hint says again what was forgotten.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "cache/residency/residency.h"
#include "cache/session/session_notes.h"

namespace aquifer {

struct SessionEndsBounds {
  size_t max_ends = size_t{1} << 16;  // Past that the oldest is forgotten.
  // Ends that are asked about, and blocks that go on from those, which the ends themselves count
  // among. Past that the tenant with the most gives some up: such blocks are what its class says,
  // and count as lost before they were durable.
  size_t max_asked = 1024;
  size_t max_following = size_t{1} << 16;
};

struct SessionEndsParts {
  Residency* residency = nullptr;
  SessionNotes* notes = nullptr;
  Clock* clock = nullptr;
  std::function<void(BlockRef)> want;  // The block is to be durable: it was committed before.
  // The session ends there now, though no hint said so.
  std::function<void(const std::string& session, const BlockName& head)> on_moved;
  SessionEndsBounds bounds{};
};

class SessionEnds {
 public:
  explicit SessionEnds(SessionEndsParts parts) : parts_(std::move(parts)) {}
  ~SessionEnds() { *alive_ = false; }

  // By a hint: the session is durable, and ends there now.
  void Add(const std::string& session, const BlockName& head);
  // By a hint without a class: who only was taken to have gone on to there has not.
  void Claim(const std::string& session, const BlockName& head);
  // A block that is about to be published as its tenant's class says. `ask`: its parent may be an
  // end that only the durable tiers know of.
  void Follow(BlockRef ref, bool ask);
  void Forget(uint16_t tenant, const std::string& session);
  // All of a tenant's: at once what is being asked and noted, then its ends, up to `max` at a time.
  // False when that was all.
  void BeginForgetting(uint16_t tenant);
  bool ForgetSome(uint16_t tenant, size_t max);

  // Notes where sessions have moved to, and asks again where nobody could answer. Call now and
  // then, and before a flush.
  void Pump();

  // Whether a tier is being asked about the tenant's; and `on_done` once none is.
  bool asking(uint16_t tenant) const;
  void WhenAnswered(uint16_t tenant, std::function<void()> on_done);
  // Whose some of the tenant's blocks are is not known, whether or not a tier is being asked.
  bool unanswered(uint16_t tenant) const { return shares_.contains(tenant); }
  // What nobody could answer is asked again at once.
  void AskAgain(uint16_t tenant);
  bool idle() const { return moved_.empty() && asked_.empty(); }

 private:
  using Session = std::pair<uint16_t, std::string>;  // Tenant and name.
  struct End {
    std::set<std::string> sessions;
    // Others end here that have no name: what goes on from here is durable and nobody's. An end
    // with neither is known to be none, so that it is not asked about again.
    bool nameless = false;
    uint64_t order = 0;
  };
  struct Own {
    std::optional<BlockName> end;
    BlockName hinted{};              // Where its hint or its note last said that it ends.
    std::optional<BlockName> named;  // By a hint, and not stored yet: it goes on from `end`.
  };
  struct Asked {
    BlockName end;
    std::vector<BlockName> blocks;  // That go on from there, in the order of their commits.
    bool under_way = false;
    bool outdated = false;  // A session was deleted since: the answer may be of before.
    int64_t again_nanos = 0;
  };
  struct Share {
    size_t asked = 0;
    size_t following = 0;
  };

  BlockName ParentOf(BlockRef ref) const;
  bool IsStored(const BlockName& name) const;
  End& At(const BlockName& name);
  void Erase(const BlockName& name);
  // The session does not end there (any more).
  void Leave(const Session& session, const BlockName& name);
  void MoveTo(const Session& session, const BlockName& name);
  // Its only session goes on from `from` to `to`, without a hint.
  void GoOn(const Session& session, const BlockName& from, const BlockName& to);
  // False: no session is known to end above it.
  bool Continue(BlockRef ref);
  // False: there is none, for a tenant that has the most.
  bool MakeRoom(uint16_t tenant, bool to_ask);
  void GiveUpOneOf(uint16_t tenant);
  void AddFollowing(uint64_t number, const BlockName& name);
  void Ask(uint64_t number);
  void OnAnswer(uint64_t number, const Result<SessionEnd>& answer);
  // Whose of them it is still, as far as is known here.
  SessionEnd StillThere(const BlockName& name, const SessionEnd& answer) const;
  void OnFound(const Asked& asked, const SessionEnd& found);
  void Settle(uint64_t number);
  std::vector<uint64_t> AskedOf(uint16_t tenant) const;
  void TellAnswered();

  const SessionEndsParts parts_;
  std::map<BlockName, End> ends_;
  std::map<uint64_t, BlockName> by_order_;
  std::map<Session, Own> of_session_;
  uint64_t next_ = 1;
  std::map<Session, BlockName> moved_;  // And not noted.
  std::map<uint64_t, Asked> asked_;
  std::map<BlockName, uint64_t> asked_of_;  // By those ends, and by what goes on from them.
  std::map<uint16_t, Share> shares_;        // Of the two above, by tenant.
  std::vector<std::pair<uint16_t, std::function<void()>>> waiting_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aquifer
