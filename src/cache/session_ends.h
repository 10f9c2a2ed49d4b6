// Where sessions end that are durable by a hint of their own: what is stored from there on is
// durable too, without another hint. An end that this process has not heard of, because it was
// restarted or the session comes from another node, is asked for in the durable tiers
// (SessionNotes), once for each chain that goes on from a block that they may have.
//
// Only an end counts. A session that begins like a durable one branches off above its end and
// stays what its tenant's class says.
//
// All of it is bounded: past that the oldest is forgotten, and the next hint says it again.
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
#include "cache/residency.h"
#include "cache/session_notes.h"

namespace aquifer {

struct SessionEndsParts {
  Residency* residency = nullptr;
  SessionNotes* notes = nullptr;
  Clock* clock = nullptr;
  std::function<void(BlockRef)> want;  // The block is to be durable: it was committed before.
};

class SessionEnds {
 public:
  explicit SessionEnds(SessionEndsParts parts) : parts_(std::move(parts)) {}
  ~SessionEnds() { *alive_ = false; }

  // By a hint: the session is durable, and ends there now.
  void Add(const std::string& session, const BlockName& head);
  // A block that is about to be published as its tenant's class says. `ask`: its parent may be an
  // end that only the durable tiers know of.
  void Follow(BlockRef ref, bool ask);
  void Forget(uint16_t tenant, const std::string& session);
  void ForgetTenant(uint16_t tenant);

  // Notes where sessions have moved to, and asks again where nobody could answer. Call now and
  // then, and before a flush.
  void Pump();

  // Whether a tier is being asked about the tenant's; and `on_done` once none is.
  bool asking(uint16_t tenant) const;
  void WhenAnswered(uint16_t tenant, std::function<void()> on_done);
  bool idle() const { return moved_.empty() && asked_.empty(); }

 private:
  using Session = std::pair<uint16_t, std::string>;  // Tenant and name.
  struct End {
    Session session;      // Without a name: nobody's, so that it is not asked again.
    bool hinted = false;  // Stays: a session may go on from there more than once.
    uint64_t order = 0;
  };
  struct Asked {
    BlockName end;
    std::vector<BlockName> blocks;  // That go on from there, in the order of their commits.
    bool under_way = false;
    int tries = 0;
    int64_t again_nanos = 0;
  };

  BlockName ParentOf(BlockRef ref) const;
  void Insert(const BlockName& name, const Session& session, bool hinted);
  void Erase(const BlockName& name);
  // False: no session is known to end above it.
  bool Continue(BlockRef ref);
  void Ask(uint64_t number);
  void OnAnswer(uint64_t number, const Result<std::string>& session);
  void Settle(uint64_t number);
  void SettleAll(uint16_t tenant);
  void TellAnswered();

  const SessionEndsParts parts_;
  std::map<BlockName, End> ends_;
  std::map<uint64_t, BlockName> by_order_;
  std::map<Session, std::set<BlockName>> of_session_;
  uint64_t next_ = 1;
  std::map<Session, BlockName> moved_;  // And not noted.
  std::map<uint64_t, Asked> asked_;
  std::map<BlockName, uint64_t>
      asked_of_;  // Ends that are asked about, and what goes on from them.
  std::vector<std::pair<uint16_t, std::function<void()>>> waiting_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aquifer
