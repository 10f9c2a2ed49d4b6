// The durable tiers of a core, all of them: what they have, loading from them, writing to them,
// deleting there, and how they are. One that errs or stalls is in nobody's way: it is asked for
// nothing until it is back in service.
//
// The index knows nothing of a block that only durable tiers have: it is asked for (presence.h) and
// gets its entry when it is loaded (durable_loader.h). Of a block that this host has, the entry
// says which of them have it too.
//
// Runs on the owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/task_scope.h"
#include "cache/residency/catalog.h"
#include "cache/residency/flush_waits.h"
#include "cache/residency/residency.h"
#include "cache/session/session_ends.h"
#include "cache/session/session_notes.h"
#include "cache/transfer/durable_loader.h"
#include "cache/transfer/durable_source.h"
#include "cache/transfer/durable_stats.h"
#include "cache/transfer/durable_writer.h"
#include "cache/transfer/eraser.h"
#include "cache/transfer/presence.h"
#include "policy/cost/tier_speed.h"
#include "tier/durable/durable_tier.h"

namespace aquifer {

struct DurableTiersParts {
  std::vector<DurableTierSource> sources{};
  Executor* owner = nullptr;
  WorkerPool* workers = nullptr;
  Clock* clock = nullptr;
  Random* random = nullptr;
  Residency* residency = nullptr;
  Catalog* catalog = nullptr;
  uint64_t dram_bytes = 0;
  // Brings a block that is only on NVMe to DRAM.
  std::function<void(BlockRef, const LoadTicket&)> load_from_nvme;
  // A block that is to be durable since it was committed is to be on NVMe as well.
  std::function<void(BlockRef)> want_on_nvme;
  // A block was loaded from a durable tier. NVMe may have it from now on, as policy says.
  std::function<void(BlockRef)> promote;
  SessionEndsBounds session_ends{};
  std::function<void(const std::string& session, const BlockName& head)> on_session_moved;
  // See SessionNotesParts.
  std::function<bool(size_t max, BlockName* next, std::vector<Key>* keys, bool* whole)> walk;
};

// Whether some tier has a block, and which one is the cheapest of those.
struct DurablePlace {
  Presence::Answer answer = Presence::Answer::kAbsent;
  uint8_t tier = 0;
};

class DurableTiers {
 public:
  // kInvalid: the sources are wrong, or a tier could not be made.
  static Result<std::unique_ptr<DurableTiers>> New(const DurableTiersParts& parts);
  ~DurableTiers();

  // The bits of an entry's residency that mean durable: not of a tier that is only read, since
  // nothing that is flushed here gets there.
  static uint8_t LastingBits(const std::vector<DurableTierSource>& sources);

  // --- Recall

  bool usable() const;  // One of them is in service.
  // As far as is remembered; what is being deleted is not there.
  DurablePlace Recall(const BlockId& id) const;
  // Asks all that are in service; `on_done` when they have said how much of the chain they have,
  // from its front. Never from inside.
  using Found = std::array<size_t, kMaxDurableTiers>;  // By tier.
  void Find(const ChainNames& chain, std::function<void(const Found&)> on_done);
  // By what they said then, where Recall() does not know: the first that has block `i`.
  DurablePlace PlaceIn(const Found& found, size_t i, const BlockId& id) const;
  void Load(uint8_t tier, const WantedBlock& block, int64_t deadline_nanos,
            const LoadTicket& ticket);
  void PumpLoads();
  TierCost Cost(uint8_t tier) const;

  // --- Writing

  // The block was just committed: it is written where it is to be.
  void OnCommitted(BlockRef ref);
  // It is to be durable, whatever its tenant's class.
  void Want(BlockRef ref);
  // A hint: the session ends with that block now. `own_class`: it is durable, whatever its tenant's
  // class, and so is what it goes on with.
  void NameSession(const std::string& session, const BlockName& head, bool own_class);
  // The same of a hint that says nothing of its class, and where its tenant's is none.
  void ClaimSession(const std::string& session, const BlockName& head) {
    ends_->Claim(session, head);
  }
  // It was deleted. See SessionNotes::Forget().
  void ForgetSession(uint16_t tenant, const std::string& session,
                     std::function<void(Status)> on_done);
  // Whether it is being asked whose some of the tenant's blocks are; and `on_done` when it is
  // known.
  bool asking(uint16_t tenant) const { return ends_->asking(tenant); }
  // The same where nobody could say so far; and asks once more.
  bool unanswered(uint16_t tenant) const { return ends_->unanswered(tenant); }
  void AskAgain(uint16_t tenant) { ends_->AskAgain(tenant); }
  void WhenAnswered(uint16_t tenant, std::function<void()> on_done) {
    ends_->WhenAnswered(tenant, std::move(on_done));
  }
  // Its expiry has changed.
  void OnExpiryChanged(BlockRef ref);
  void PumpSoon();
  // Something that is here may have to be written and was not added: after a start, when tenants
  // changed. The whole index is looked at once, a slice with each tick.
  void SweepSoon();
  bool sweeping() const { return sweeping_; }
  // A slice at once, for who waits for it. Whether there is more.
  bool SweepMore();
  // Adds what the tenant has, of any class, from `*cursor` on: false when that was all.
  bool AddAll(uint16_t tenant, BlockRef* cursor);
  // The same, counting what is not to be durable and is in no lasting tier.
  bool CountOthers(uint16_t tenant, BlockRef* cursor, size_t* others) const;

  // A flush under way, by lasting tier.
  using FlushId = std::vector<FlushWaits::Id>;
  // `on_done` with ok once one lasting tier has everything of the tenant's that was to be written
  // before, session notes included; else why none has. Of `everyone`: whatever any tenant has.
  // Never from inside.
  FlushId Flush(uint16_t tenant, uint32_t client, bool everyone,
                std::function<void(Status)> on_done);
  void EndFlush(const FlushId& flush);
  void AddClient(uint32_t client, uint16_t tenant);
  bool has_lasting() const { return !lasting_.empty(); }
  // Some of what the tenant has is of durable class, and no lasting tier has it or its note yet.
  bool Owes(uint16_t tenant) const;
  bool lasting_usable() const;
  // One that is in service may have notes of sessions.
  bool notes_usable() const;
  std::string WhyNotUsable() const;
  Status last_failure() const;

  // --- Deleting

  // From all of them, and nothing that is being loaded arrives. False: too many deletions wait.
  [[nodiscard]] bool Erase(const BlockId& id);
  // Everything that the tenant has there. From Begin to End nothing of it is found or arrives.
  void BeginErasingAll(uint16_t tenant);
  // Where its sessions end, before its blocks go; false when that was all.
  bool ForgetSomeEnds(uint16_t tenant, size_t max) { return ends_->ForgetSome(tenant, max); }
  void EraseAll(uint16_t tenant, std::function<void(Status)> on_done);
  void EndErasingAll(uint16_t tenant);
  // `on_done` when everything of the tenant's that was to be deleted is: or why it is not yet.
  void Barrier(uint16_t tenant, std::function<void(Status)> on_done);

  SessionNotes& notes() { return *notes_; }

  void Tick();
  bool idle() const;  // Nothing waits for a tick.
  // Nothing is left to wait for at the stores; nobody may ask them any more.
  void Close();

  size_t size() const { return tiers_.size(); }
  std::vector<DurableStats> Stats() const;

 private:
  // One tier and what serves it, in the order in which they need each other.
  struct One final : TierListener {
    // It will not serve these any more. What is here and is to be durable is written once more.
    void OnLost(std::span<const BlockId> ids, Code why) override;
    std::unique_ptr<ReclaimChoice> OnReclaim() override { return nullptr; }
    void OnHealth(bool in_service, const Status& why) override;

    DurableTierSource source;
    Status last_why;  // The last time that it was out of service.
    DurableTiers* all = nullptr;
    uint8_t number = 0;
    std::unique_ptr<DurableTier> tier;  // Null after Close().
    std::unique_ptr<Presence> presence;
    std::unique_ptr<DurableLoader> loader;
    std::unique_ptr<Eraser> eraser;
    std::unique_ptr<DurableWriter> writer;

    bool usable() const { return tier != nullptr && tier->in_service(); }
    Status WhyNot() const { return usable() || tier == nullptr ? last_why : tier->why(); }
  };
  // Several answers that become one.
  struct Joined {
    size_t open = 0;
    Status status;
    std::function<void(Status)> on_done;
  };

  explicit DurableTiers(const DurableTiersParts& parts);
  Status Build();
  Status MakeTier(const DurableTierSource& source);
  bool IsDurable(BlockRef ref) const;
  // The durable tiers may know a session that ends where this block goes on.
  bool MayGoOn(BlockRef ref) const;
  void AddWhereWanted(BlockRef ref, bool durable);
  // A slice of the index from `*cursor` on, whatever is resident; false when that was all.
  template <class Visit>
  bool VisitSome(BlockRef* cursor, Visit visit) const;
  void OnFlushed(uint16_t of, const std::shared_ptr<Joined>& joined, const Status& status);
  static void OnJoined(const std::shared_ptr<Joined>& joined, const Status& status);

  const DurableTiersParts parts_;
  std::vector<std::unique_ptr<One>> tiers_;
  std::vector<One*> lasting_;  // That are written to: what they have is durable.
  std::unique_ptr<SessionNotes> notes_;
  std::unique_ptr<SessionEnds> ends_;
  std::multiset<TenantId> erasing_;  // All of theirs is being erased.
  bool sweeping_ = false;
  BlockRef sweep_cursor_ = 0;
  TaskScope tasks_{parts_.owner};
};

}  // namespace aquifer
