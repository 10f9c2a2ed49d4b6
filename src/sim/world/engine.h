// One simulated inference engine: a client of the node that, turn after turn, recalls what it can
// of a conversation, computes the rest and stores it; and now and then pins, prestages, flushes,
// deletes, or gives hints. It does one thing at a time, tells the truth what it asks for and what
// it is told, and looks at every byte it is given.
//
// It may have a second rank, a client of its own, which stores with it: each writes its half of a
// block's heads.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "base/request_progress.h"
#include "cache/core.h"
#include "sim/world/conversations.h"
#include "sim/world/node.h"
#include "sim/world/scheduler.h"
#include "sim/world/trace.h"
#include "sim/world/truth.h"
#include "testing/seeded_random.h"

namespace aquifer {

// Loads that engines did because they were told that it pays, and that gave all they asked for.
struct AdvisedLoads {
  uint64_t loads = 0;
  uint64_t worse = 0;  // Took longer than recomputing would have, by what was said of it.
  double estimated_ms = 0;
  double took_ms = 0;
  double recompute_ms = 0;

  friend AdvisedLoads operator+(const AdvisedLoads& a, const AdvisedLoads& b) {
    return {.loads = a.loads + b.loads,
            .worse = a.worse + b.worse,
            .estimated_ms = a.estimated_ms + b.estimated_ms,
            .took_ms = a.took_ms + b.took_ms,
            .recompute_ms = a.recompute_ms + b.recompute_ms};
  }
};

// What the engines of a run did together, and what they met.
struct EngineCounts {
  uint64_t block_operations = 0;  // Keys in requests, and leases released.
  uint64_t requests = 0;
  uint64_t hits_dram = 0;
  uint64_t hits_nvme = 0;
  uint64_t hits_durable = 0;
  uint64_t misses = 0;
  uint64_t late = 0;
  uint64_t corrupt = 0;
  uint64_t failed = 0;
  uint64_t stored = 0;
  uint64_t refused = 0;
  uint64_t being_filled = 0;
  uint64_t voided = 0;  // Commits that came too late.
  uint64_t flushed = 0;
  uint64_t evicted = 0;
  AdvisedLoads advised;
};

// What the world lends to its engines.
struct EngineWorld {
  Scheduler* scheduler = nullptr;
  SimulatedNode* node = nullptr;
  Truth* truth = nullptr;
  Conversations* conversations = nullptr;
  Trace* trace = nullptr;
  EngineCounts* counts = nullptr;
  std::function<bool()> calm;         // No fault could excuse a miss.
  std::function<bool()> stores_calm;  // The same of a miss in the durable tiers.
  std::function<void()> on_promise;   // A flush or a deletion was answered with ok.
};

struct EngineOptions {
  uint32_t number = 0;
  uint32_t tenant = 0;
  std::string tenant_name;
  std::vector<Layout> layouts;
  uint32_t ranks = 1;  // Or two.
  int64_t think_nanos = 1'000'000;
  int64_t overdue_nanos = INT64_MAX;  // When a reservation is void.
  bool stores = false;                // There are durable tiers.
  bool listings_lag = false;          // Their names come late.
  uint64_t seed = 1;
};

class Engine final : private ClientSink {
 public:
  Engine(const EngineOptions& options, const EngineWorld& world);

  // The node serves.
  void Begin();
  // The node is gone, and with it all that this engine held or waited for.
  void NodeDied();
  // The client goes without a word, whatever it is doing, and comes back as another one.
  void Die();
  // Ends what it is doing and begins nothing new.
  void Stop() { stopping_ = true; }
  // When it last asked for something, was answered or gave something back, or the last of its pins
  // ends: with them goes what only they kept. INT64_MAX while it waits for an answer or holds
  // something.
  int64_t quiet_since() const {
    const bool quiet = attached_ && !dying_ && !awaiting_ && leases_.empty() && slots_.empty();
    return quiet ? std::max(acted_nanos_, pinned_until_nanos_) : INT64_MAX;
  }
  // Unix seconds: before that nothing expires that it gave a time to live.
  int64_t keeps_until() const { return keeps_until_; }
  uint32_t tenant() const { return options_.tenant; }
  bool idle() const { return doing_ == Doing::kNothing && !held_leases() && slots_.empty(); }

 private:
  enum class Doing : uint8_t {
    kNothing,
    kMatching,
    kFetching,
    kHolding,
    kReserving,
    kJoining,
    kFilling,
    kSharing,
    kCommitting,
    kLettingGo,
    kFlushing,
    kPinning,
    kPrestaging,
    kEvicting,
    kDraining,
  };
  // Memory that the core lent for a block.
  struct Lent {
    BlockNumber block = 0;
    uint64_t id = 0;  // A lease or a reservation.
    std::span<const std::byte> bytes;
  };
  struct Slot {
    Payload payload;
    ReservationId reservation = 0;
    ReservationId joined = 0;  // The second rank's; 0: it does not share in it.
    std::span<std::byte> bytes;
    bool filled = false;
  };
  struct Commitment {
    Payload payload;
    bool last = true;  // With it the block is whole.
  };

  // ClientSink: on the owner.
  void OnProgress(Request* request, size_t completed, bool done) override;
  void OnFetched(size_t from, size_t to);
  void OnReserved(size_t from, size_t to);
  void OnJoined(size_t from, size_t to);
  void OnCommitted(size_t from, size_t to);

  void Attach();
  ClientNumber AttachRank(std::vector<LayoutHandle>* handles);
  void WakeIn(int64_t nanos);
  void Think() { WakeIn(Pause()); }
  int64_t Pause();
  void Wake();
  template <class R>
  void Submit(void (Core::*call)(ClientNumber, R*), R* request, const char* what,
              int64_t timeout_nanos, uint32_t rank = 0);
  void Abort(uint32_t rank, std::vector<ReservationId> reservations);
  bool OneIn(uint64_t count) { return random_.Below(count) == 0; }
  // Maybe it will not wait to the end.
  void PlanCancel(Request* request);
  int64_t Timeout();
  ChainSlice Slice(size_t first, size_t count) const;
  bool held_leases() const { return !leases_.empty(); }

  void BeginTurn();
  void Recall();
  void SeeMatch();
  void SeeFetch();
  uint64_t* HitsIn(TierKind tier);
  void CountAdvised();
  void Touch(std::span<const BlockNumber> blocks) {
    world_.truth->Touched(blocks, world_.node->number());
  }
  void ReleaseSome();
  void Store();
  void SeeReserve();
  void Join();
  void SeeJoin();
  void BeginFilling();
  void Fill();
  void WriteShare(const Slot& slot, uint32_t rank);
  void Commit(uint32_t rank, bool last);
  void CommitRest();
  void GiveUp();
  void LetGo(uint32_t rank);
  void Care();
  void Flush();
  void Pin();
  void Prestage();
  void Evict();
  void Drain();
  void Hint();
  Durability NextDurability();
  void SeeSession();
  void SeeCare();
  void EndTurn();

  const EngineOptions options_;
  const EngineWorld world_;
  SeededRandom random_;

  bool attached_ = false;
  int64_t acted_nanos_ = 0;
  int64_t pinned_until_nanos_ = 0;
  int64_t keeps_until_ = INT64_MAX;
  bool dying_ = false;
  bool stopping_ = false;
  uint32_t incarnation_ = 0;               // Wakes of an earlier one are ignored.
  std::array<ClientNumber, 2> clients_{};  // By rank.
  uint64_t attached_moment_ = 0;
  std::array<std::vector<LayoutHandle>, 2> handles_;
  RegisterLayoutRequest layout_request_;

  Doing doing_ = Doing::kNothing;
  bool awaiting_ = false;  // An answer of the core.
  Truth::RequestNumber request_ = 0;
  size_t seen_ = 0;                // Operations of the request that the truth knows of.
  bool stores_were_calm_ = false;  // When it was sent.

  // The turn's conversation, as it was when the turn began.
  size_t conversation_ = 0;
  uint32_t layout_ = 0;
  uint16_t group_ = 0;
  std::vector<Key> keys_;
  Key root_;
  std::vector<BlockNumber> blocks_;
  size_t first_ = 0;  // Of the request's keys, in the conversation.

  MatchRequest match_;
  FetchRequest fetch_;
  ReserveRequest reserve_;
  ReserveRequest join_;
  CommitRequest commit_;
  FlushRequest flush_;
  PinRequest pin_;
  PrestageRequest prestage_;
  EvictRequest evict_;
  DrainRequest drain_;
  uint64_t sent_moment_ = 0;
  int64_t reserved_nanos_ = 0;        // When that was asked for.
  int64_t fetched_nanos_ = 0;         // The same.
  uint32_t first_rank_ = 0;           // To commit.
  std::vector<BlockNumber> pinned_;   // What pin_ names.
  std::vector<BlockNumber> evicted_;  // What evict_ surely names.

  std::vector<Lent> leases_;
  std::vector<Slot> slots_;             // Being filled.
  std::vector<ReservationId> unasked_;  // The second rank's alone: given back at once.
  std::vector<Commitment> commits_;     // One for each operation of commit_.
};

template <class R>
void Engine::Submit(void (Core::*call)(ClientNumber, R*), R* request, const char* what,
                    int64_t timeout_nanos, uint32_t rank) {
  awaiting_ = true;
  seen_ = 0;
  request_ = world_.truth->Asked(what, timeout_nanos, world_.node->number());
  stores_were_calm_ = world_.stores_calm();
  ++world_.counts->requests;
  RequestProgress::Begin(request);
  world_.node->Post(
      [this, call, request, rank] { (world_.node->core()->*call)(clients_[rank], request); });
}

}  // namespace aquifer
