// The cache itself: match, fetch, place, write down, recover. One owner runs all of it, so there is
// no lock; long requests are cut into slices, so that no task holds the owner up for more than
// about 100 us. Everything outside comes through the CacheEnvironment.
//
// Clients attach with a sink that hears how their requests come along. The answers are written into
// the requests themselves, before the sink is told.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/mutex.h"
#include "cache/core_snapshot.h"
#include "cache/durable_tiers.h"
#include "cache/environment.h"
#include "cache/job_list.h"
#include "cache/residency/catalog.h"
#include "cache/residency/residency.h"
#include "cache/transfer/eraser.h"
#include "cache/transfer/late_disk.h"
#include "cache/transfer/loader.h"
#include "cache/transfer/write_down.h"
#include "policy/cost/prefill_model.h"
#include "policy/cost/tier_speed.h"
#include "policy/cost/worth.h"
#include "tier/dram/dram_tier.h"
#include "tier/nvme/nvme_tier.h"

namespace aquifer {

class Job;

struct CoreOptions {
  CacheOptions cache;
  uint64_t extent_bytes = uint64_t{64} << 20;
  uint32_t ready_extents = UINT32_MAX;  // Fault the whole pool in, in the background.
  uint32_t max_blocks = 0;              // 0: from the capacities.
  uint32_t max_requests_per_client = 1024;
  uint32_t max_hints_per_client = 1024;
  uint32_t max_leases_per_client = 1 << 20;
  uint32_t max_sessions = 100'000;
  SessionEndsBounds session_ends{};
  uint32_t max_layouts_per_tenant = 256;
  // Deletions that are remembered for drives that have not been read.
  uint32_t max_deletions_remembered = 1 << 17;
  uint32_t max_deletions_remembered_per_tenant = 1 << 15;
  int64_t tick_nanos = 50'000'000;
  int64_t idle_tick_nanos = 500'000'000;  // While nobody asks for anything, and nothing waits.
  int64_t reopen_nanos = 1'000'000'000;   // How often a drive that would not open is tried again.
  // Drives that have not opened by then come later: the cache starts without them.
  int64_t open_wait_nanos = 5'000'000'000;
};

using ClientNumber = uint32_t;

struct CoreCounters {
  uint64_t match_requests = 0;
  uint64_t match_keys = 0;
  uint64_t match_hits = 0;
  uint64_t fetch_hits_dram = 0;
  uint64_t fetch_hits_nvme = 0;
  uint64_t fetch_hits_durable = 0;
  uint64_t fetch_bytes_dram = 0;
  uint64_t fetch_bytes_nvme = 0;
  uint64_t fetch_bytes_durable = 0;
  uint64_t fetch_misses = 0;
  uint64_t fetch_late = 0;
  uint64_t fetch_failed = 0;
  uint64_t reserved = 0;
  uint64_t reserve_have = 0;
  uint64_t reserve_being_filled = 0;
  uint64_t reserve_refused = 0;
  std::array<uint64_t, kRefusals> refused_for{};  // Of those, by Refusal.
  uint64_t committed = 0;
  uint64_t committed_bytes = 0;
  uint64_t aborted = 0;
  uint64_t reported_corrupt = 0;  // By readers, with Release().
  uint64_t overdue = 0;           // Reservations.
  uint64_t overdue_leases = 0;
  uint64_t dropped_notes = 0;  // Hints and prefill reports of clients that sent too many at once.
  uint64_t prestaged = 0;
  // Of a tenant only: fetching against computing what was fetched, as the engines' own reports
  // tell.
  double saved_ms = 0;
  double lost_ms = 0;
};

class ClientSink {
 public:
  // On the owner. `completed` operations are answered; with `done` the cache has forgotten the
  // request.
  virtual void OnProgress(Request* request, size_t completed, bool done) = 0;
  // A lease or a reservation of the client has been held for longer than overdue_nanos.
  virtual void OnOverdue() {}

 protected:
  ~ClientSink() = default;
};

class Core final : private TierListener, private LoadWaiter {
 public:
  // Checks the options: kInvalid says what to change.
  static Result<std::unique_ptr<Core>> New(const CoreOptions& options,
                                           const CacheEnvironment& environment);
  // When nothing of it runs any more: the owner has stopped, or is stepped by hand.
  ~Core() override;

  // On the owner, once: `on_ready` when what NVMe held is known again, of those drives that can be
  // used soon enough. The others are tried again and come later, each on its own.
  void Start(std::function<void(Status)> on_ready);
  // Nothing is left to wait for at the drives and the stores; after that they may be closed.
  void CloseDisks();

  // On the owner: whose these are from now on, with their quotas and times to live; all of them, or
  // with kInvalid nothing changes. A tenant that is not among them any more has no floor and is
  // lent no more memory; its blocks go as others need room.
  Status SetTenants(const std::vector<TenantOptions>& tenants);

  // All of these on the owner. Who does not see all has its own tenant's figures from Stats().
  Result<ClientNumber> Attach(const ClientOptions& options, ClientSink* sink, bool sees_all = true);
  // The same for one who pins, prestages and evicts by keys alone (layout 0): the node's
  // administrator has registered no layout, and a key names one anyway.
  Result<ClientNumber> AttachAdministrator(const ClientOptions& options, ClientSink* sink);
  // Gives back all that the client holds, a slice at a time; its open requests are dropped without
  // a word. `on_done` when it holds nothing any more; may be empty.
  void Detach(ClientNumber client, std::function<void()> on_done = {});
  // The client is cut off, but may still touch what it was lent: its open requests are dropped
  // without a word, its reservations are void, a slice at a time, and all else stays lent until it
  // is given back or the client detached.
  void Disconnect(ClientNumber client);

  void RegisterLayout(ClientNumber client, RegisterLayoutRequest* request);
  void Match(ClientNumber client, MatchRequest* request);
  void Fetch(ClientNumber client, FetchRequest* request);
  void Reserve(ClientNumber client, ReserveRequest* request);
  void Commit(ClientNumber client, CommitRequest* request);
  void Flush(ClientNumber client, FlushRequest* request);
  void Pin(ClientNumber client, PinRequest* request);
  void Prestage(ClientNumber client, PrestageRequest* request);
  void Evict(ClientNumber client, EvictRequest* request);
  void Drain(ClientNumber client, DrainRequest* request);
  void Stats(ClientNumber client, StatsRequest* request);
  // These two take a slice from the front and return how many it was: the rest is another task's.
  [[nodiscard]] size_t Release(ClientNumber client, std::span<const ReleaseOp> leases);
  [[nodiscard]] size_t Abort(ClientNumber client, std::span<const ReservationId> reservations);
  void Hint(ClientNumber client, const SessionForecast& forecast, const Key& head);
  void ReportPrefill(ClientNumber client, const PrefillReport& report);
  // So many hints and reports never got here.
  void CountDroppedNotes(ClientNumber client, uint64_t count) {
    Count(clients_[client].tenant, &CoreCounters::dropped_notes, count);
  }
  void Cancel(ClientNumber client, Request* request);

  // ---- For those who run it ----

  CoreSnapshot Snapshot() const;
  // Up to `max` tenants from number `first` on; ask for at most kSnapshotSlice in one task.
  std::vector<TenantSnapshot> Tenants(size_t first, size_t max) const;
  // Up to `max` sessions of a tenant, in the order of their names, behind `after`. The same bound.
  std::vector<SessionSnapshot> Sessions(std::string_view tenant, const std::string& after,
                                        size_t max) const;
  // Adds up to `max` keys of the session's chain, deepest first, from `*next` on, which is empty at
  // the start: false when that was all.
  bool SessionKeys(std::string_view tenant, const std::string& session, size_t max,
                   std::optional<BlockName>* next, std::vector<Key>* keys) const;
  bool draining() const { return draining_; }
  static constexpr size_t kSnapshotSlice = 256;

  // ---- For those who lend memory to other processes ----

  // Where the slot of a lease or a reservation lies. Extent 0: there is no such loan.
  SlotPlace PlaceOf(ClientNumber client, uint64_t loan, bool reservation);
  // The extent as it is passed to another process, which from then on has it mapped, until
  // ReturnExtent().
  ExtentInfo OfferExtent(uint32_t extent);
  void ReturnExtent(uint32_t extent) { dram_->RemoveMapper(extent); }
  // Called with an extent that is to be closed: whoever has it mapped is to return it.
  std::function<void(uint32_t extent)> on_extent_wanted;

  // How the drives are, in the order in which they were given.
  std::vector<DriveStats> Drives() const;
  // The same of the durable tiers.
  std::vector<DurableStats> DurableTierStats() const;

  // Memory faulted in so far, for whoever waits for the pool to warm up.
  uint64_t extent_bytes() const {
    return dram_->dram_usage().extent_bytes - dram_->dram_usage().making_bytes;
  }
  bool pool_complete() const;
  // Faults the rest of the pool in, in the background: somebody is going to store.
  void WarmUp() { dram_->SetReadyExtents(UINT32_MAX); }

  // Of a layout that the client has registered; 0 when it has not.
  uint32_t TokensPerBlock(ClientNumber client, LayoutHandle handle) const {
    return HasLayout(client, handle) ? catalog_.layout(LayoutOf(client, handle)).tokens_per_block
                                     : 0;
  }

  // They do not change: any thread may ask.
  const CoreOptions& options() const { return options_; }

 private:
  // A request under way: jobs.h.
  friend class Job;
  friend class MatchJob;
  friend class FetchJob;
  friend class ReserveJob;
  friend class CommitJob;
  friend class FlushJob;
  friend class PinJob;
  friend class PrestageJob;
  friend class EvictJob;
  friend class DrainJob;
  friend class HintJob;

  struct LoanName {
    uint32_t loan = 0;  // 0: free.
    uint32_t generation = 0;
    uint32_t next_free = 0;
  };
  struct Client {
    bool attached = false;
    bool administrator = false;
    bool leaving = false;  // Detached, and what it holds is being given back.
    bool sees_all = false;
    uint16_t tenant = 0;
    uint32_t engine = 0;
    std::string engine_name;
    ClientSink* sink = nullptr;
    uint32_t requests = 0;
    uint32_t hints = 0;       // Being carried out.
    uint32_t leases = 0;      // Reservations included.
    uint32_t first_loan = 0;  // A list through loans_; 0 ends it.
    uint32_t void_next = 0;   // Whose turn it is to be looked at after Disconnect(); 0: nobody's.
    // What it knows layouts and loans by is of its own: numbers of the whole cache would tell it
    // what other tenants have and fetch.
    std::vector<uint16_t> layouts{};     // That it has registered; known by their places here.
    std::vector<LoanName> loan_names{};  // The first is nobody's.
    uint32_t free_loan_name = 0;         // A list; 0 ends it.
    uint32_t first_generation = 0;  // Of its names, at random: an earlier client's hardly is one.
    JobList jobs{};                 // Its requests and hints under way.
  };
  // A lease or a reservation, and with that a lease of the index's entry, so that it outlives
  // them; a refill's reservation holds its Refill instead.
  struct Loan {
    BlockRef ref = kNoBlock;
    uint32_t refill = 0;  // That it is a reservation of, and `ref` is kNoBlock then; 0: of none.
    ClientNumber client = 0;
    uint32_t name = 0;  // The client's for it.
    bool reservation = false;
    bool used = false;
    bool overdue = false;  // Counted as such.
    int64_t since_nanos = 0;
    uint32_t number = 0;
    uint32_t next = 0;  // In the client's list, or of the free ones.
    uint32_t previous = 0;
  };
  // A block that is being written by the ranks of one engine.
  struct Filling {
    BlockRef ref = kNoBlock;  // kNoBlock: it is free, or a Refill's.
    uint32_t engine = 0;
    LaneSums sums;
    uint32_t covered_heads = 0;
    std::vector<std::pair<uint32_t, uint32_t>> ranges;  // Sorted, disjoint.
    int64_t since_nanos = 0;
    int64_t touched_nanos = 0;  // When a rank last took or gave back a part of it.
  };
  // A block that only a drive out of service has, while it is stored again: the same, but into a
  // slot beside its entry (core_refill.cc).
  struct Refill {
    Filling filling;
    NewBlock block;
    SlotId slot = kNoSlot;          // kNoSlot: it is the block's by now.
    BlockRef published = kNoBlock;  // That block, held for the ranks that may still touch it.
    uint32_t loans = 0;
    bool open = false;  // Else it is over, and only waits for the ranks to let go.
  };
  struct Session {
    BlockName head;
    uint64_t order = 0;
    bool deleted = false;  // Since it was named; it may be that not all of it is gone yet.
  };

  // What a tenant said of its sessions; the oldest first.
  struct TenantSessions {
    std::map<std::string, Session> by_name;
    std::map<uint64_t, std::string> by_age;
    std::multiset<BlockName> heads;  // Of those that are not deleted.
  };

  Core(const CoreOptions& options, const CacheEnvironment& environment);
  Status Build();
  Result<std::unique_ptr<EvictionOrder>> NewOrder(uint32_t max_blocks, uint8_t tier) const;

  // For the tenant, and for all.
  void Count(uint16_t tenant, uint64_t CoreCounters::* what, uint64_t count = 1) {
    counters_.*what += count;
    counters_of_[tenant].*what += count;
  }
  // Of what the task under way has looked at.
  void CountEntries(uint64_t entries) {
    if (environment_.meter != nullptr) environment_.meter->Count(entries);
  }
  CacheStats StatsOfAll(uint16_t tenant) const;
  CacheStats StatsOf(uint16_t tenant) const;
  void AddDurable(bool sees_all, CacheStats* stats) const;
  void AddDurableCounters(CacheStats* stats) const;

  // TierListener, for NVMe.
  void OnLost(std::span<const BlockId> ids, Code why) override;
  std::unique_ptr<ReclaimChoice> OnReclaim() override;
  bool MayDrop(const BlockId& id) override;
  uint64_t NvmeToSpare(uint16_t tenant) const;
  void OnRewritten(uint64_t bytes) override { write_down_->ChargeBudget(bytes); }
  void OnFound() override;
  void OnHealth(bool in_service, const Status& why) override;

  // LoadWaiter, for blocks that were brought to DRAM only to be written anew.
  bool Waits(uint64_t) const override { return true; }
  void OnLoaded(size_t op, BlockRef ref, const Status& status) override;

  // NVMe.
  class SegmentChoice;
  Status BuildNvme();
  void OpenDrive(size_t drive);
  void OnOpened(size_t drive, Result<OpenedDisk> opened);
  void RecoverNvme();
  void OnRecovered(const Status& status);
  void TakeOver(const BlockMeta& meta);
  // False: it is not wanted.
  bool TakeOverAs(uint16_t tenant, uint16_t layout, const BlockMeta& meta);
  bool TakeOverKnown(BlockRef known, bool agrees, const BlockMeta& meta);
  bool AddFound(uint16_t tenant, uint16_t layout, const BlockMeta& meta);
  // It is filled, given up, or could not be written: what a drive has of it is next, in a task of
  // its own.
  void TakeOverBusy(const BlockName& name);
  // Deletes what a drive was found to have of it, and not what is being written of it now.
  void EraseFound(const BlockName& name);
  BlockId IdOf(const BlockName& name) const;
  // Every drive has been read and its blocks are in the index: none can come to light any more.
  bool nvme_known() const { return nvme_ == nullptr || found_all_; }
  // As far as is known, also before this has heard of all that the tier found.
  bool MayBeOnNvme(const BlockId& id) const {
    return !nvme_known() || (nvme_ != nullptr && nvme_->Probe(id).code() != Code::kNotFound);
  }
  void OnTakenOver();
  bool nvme_usable() const { return nvme_ready_ && nvme_->in_service(); }

  // Durable tiers.
  Status BuildDurable();
  // See SessionNotesParts::walk.
  bool WalkKeys(size_t max, BlockName* next, std::vector<Key>* keys, bool* whole) const;
  bool IsDurableTenant(uint16_t tenant) const {
    return catalog_.tenant(tenant).options.durability == Durability::kDurable;
  }

  void Tick();
  void TickIn(int64_t nanos);
  // How long the next tick may be away, after one that found something to do or did not.
  int64_t NanosToTick(bool worked);
  // Jobs that want to be woken: one timer for all of them, and none for what has ended.
  void ArmWake();
  void OnWake();
  void Housekeep();
  bool ReturnLoans(size_t max);
  bool VoidReservations(size_t max);
  void GiveUpJobs(ClientNumber client);
  bool DropJobs(size_t max);
  // True: some reservations were overdue, and there may be more.
  bool LookForOverdue();
  // Make at most `*max` of them void, and take those off it.
  void VoidOverdueFillings(int64_t limit_nanos, size_t* max);
  void VoidOverdueRefills(int64_t limit_nanos, size_t* max);

  // Requests.
  template <class J, class R>
  void Begin(ClientNumber client, R* request, Status valid);
  template <class J>
  J* TakeJob(ClientNumber client, Request* request);
  void Progress(ClientNumber client, Request* request, size_t completed, bool done);
  // The handle is this client's.
  bool HasLayout(ClientNumber client, LayoutHandle handle) const {
    return handle != 0 && handle <= clients_[client].layouts.size();
  }
  // Of a handle that it has, or had.
  uint16_t LayoutOf(ClientNumber client, LayoutHandle handle) const {
    return clients_[client].layouts[handle - 1];
  }
  PrefillName PrefillNameOf(ClientNumber client, uint16_t layout) const {
    const Client& caller = clients_[client];
    return {.tenant = caller.tenant, .layout = layout, .engine = caller.engine};
  }
  Status CheckChain(ClientNumber client, const ChainSlice& chain) const;
  // The same where the keys alone are looked at.
  Status CheckNames(ClientNumber client, const ChainSlice& chain) const;
  // The chain, or else the session.
  Status CheckChainOrSession(ClientNumber client, const ChainSlice& chain,
                             const std::string& session) const;
  // So long after `from_nanos`.
  static int64_t DeadlineIn(int64_t timeout_nanos, int64_t from_nanos);

  // Loans.
  uint64_t NameLoan(Client* client, Loan* loan);
  uint64_t Lend(ClientNumber client, BlockRef ref, bool reservation);
  Loan* FindLoan(ClientNumber client, uint64_t id, bool reservation);
  void EndLoan(Loan* loan);
  void AbortLoan(Loan* loan);
  void VoidFilling(BlockRef ref);

  // Fillings.
  void BeginFilling(Filling* filling, uint32_t engine);
  void NewFilling(BlockRef ref, uint32_t engine);
  void FreeFilling(BlockRef ref);
  Filling& filling(BlockRef ref) { return fillings_[residency_->at(ref).owner_data - 1]; }
  // Who writes the block now, wherever to; null: nobody.
  const Filling* FillingOf(const BlockName& name) const;
  double FillWaitMs(const Filling& filling) const;
  void NoteFilled(const Filling& filling);
  void OnPublished(BlockRef ref);
  // Some rank may still commit a part of it.
  bool IsOpen(const Loan& loan) const;
  void VoidReservation(const Loan& loan);
  // Why nothing can be committed to it any more. `whole`: all of the block was.
  static Status WhyNotOpen(bool whole);
  // Where the block is, or is to be written to.
  SlotId SlotOf(const Loan& loan) const;

  // Refills, by their numbers from 1.
  Refill& refill_at(uint32_t number) { return refills_[number - 1]; }
  const Refill& refill_at(uint32_t number) const { return refills_[number - 1]; }
  uint32_t FindRefill(const BlockName& name) const;  // An open one; 0: there is none.
  uint32_t NewRefill(const NewBlock& block, uint32_t engine, SlotId slot);
  uint64_t LendRefill(ClientNumber client, uint32_t number);
  void EndRefillLoan(uint32_t number);
  void VoidRefill(uint32_t number);
  void CloseRefill(Refill* refill);
  void EndRefillIfUnused(uint32_t number);
  void CommitRefill(Loan* loan, CommitOp* op);
  Status PublishRefill(Refill* refill, const Checksum& checksum);
  void ShortenExpiry(BlockRef ref, uint32_t unix_seconds);
  void ChangeExpiry(BlockRef ref, uint32_t unix_seconds);
  // kUnavailable where the tenant (FlushWaits::kEveryone: any) has stored blocks again that a drive
  // has which may not be back yet. Forgets all of them once every drive is in service.
  Status FlushedDespiteRefills(uint16_t tenant);

  // Adds the op's heads; `complete` when every head is there.
  static Status Cover(Filling* filling, uint32_t heads, const CommitOp& op, bool* complete);
  ReserveOp ReserveOne(ClientNumber client, const ReserveRequest& request, size_t i);
  NewBlock BlockToFill(ClientNumber client, const ReserveRequest& request, size_t i) const;
  void CommitOne(ClientNumber client, CommitOp* op);

  // So many seconds from now; a time that is too far off is the last there is.
  uint32_t UnixIn(int64_t seconds) const {
    return static_cast<uint32_t>(std::min<uint64_t>(
        uint64_t{NowUnix()} + static_cast<uint64_t>(std::max<int64_t>(seconds, 0)), UINT32_MAX));
  }
  uint32_t NowUnix() const { return static_cast<uint32_t>(environment_.clock->UnixSeconds()); }
  bool Readable(BlockRef ref) const;
  // DRAM has it, or a drive that is in service.
  bool Reachable(BlockRef ref) const;
  bool DriveServes(BlockRef ref) const;
  void RememberSession(const std::string& name, const BlockName& head);
  // It is being deleted: its blocks are nobody's because of it.
  void ForgetHead(uint16_t tenant, const std::string& name);
  bool IsSessionHead(const BlockName& name) const;
  void ForgetASession();
  void ForgetOldestOf(TenantSessions* sessions);
  // Some of a tenant's; false when none is left.
  bool ForgetSessions(uint16_t tenant, size_t max);
  const Session* FindSession(uint16_t tenant, const std::string& name) const;
  // A block that a job will come back to, by when the ref may name another.
  struct Noted {
    BlockRef ref = kNoBlock;
    uint16_t tenant = 0;
    uint64_t key_bits = 0;
  };
  Noted Note(BlockRef ref) const;
  // It is there, complete, and still the same.
  bool Holds(const Noted& noted) const;
  // A block of a chain; kNoBlock: it is gone, and only known by its key.
  using Visit = std::function<void(BlockRef ref, const Key& key, uint32_t position)>;
  // Calls `visit` with up to `max` blocks from `*next` up its chain, deepest first. False when that
  // was all; otherwise it goes on at `*next`.
  bool WalkUp(size_t max, BlockName* next, const Visit& visit) const;
  // Whether a walk may go on there from a block at that position: whoever makes keys up may have
  // made a circle of them.
  bool IsBefore(const BlockName& above, uint32_t position) const;
  // Other blocks than that one hang below it, which may itself be gone; without one, more than one.
  // What durable tiers alone have counts as far as it is known, what is gone and only still lent
  // does not. Nothing: those are too many to tell.
  std::optional<bool> HasOtherBelow(const BlockName& name, std::optional<Key> own) const;

  const CoreOptions options_;
  const CacheEnvironment environment_;
  std::vector<TenantOptions> tenants_;  // As SetTenants() was told.
  Catalog catalog_;
  std::unique_ptr<DramTier> dram_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Eraser> eraser_;
  std::unique_ptr<WriteDown> write_down_;
  std::unique_ptr<DurableTiers> durable_;  // Null: there are none.
  TierSpeed nvme_speed_;
  PrefillModels prefill_;
  WorthOptions worth_;

  std::vector<std::span<std::byte>> extents_;     // For disks that open later.
  std::vector<std::unique_ptr<LateDisk>> disks_;  // One a directory.
  std::set<size_t> unanswered_;                   // Drives whose first opening has not ended.
  bool recovering_ = false;                       // It has begun.
  struct Openings {
    Mutex mutex;
    Executor* owner AQ_GUARDED_BY(mutex) = nullptr;  // Null: nobody waits for them any more.
  };
  // Shared with openings under way, which may outlast everything here.
  std::shared_ptr<Openings> openings_ = std::make_shared<Openings>();
  std::unique_ptr<NvmeTier> nvme_;
  bool nvme_ready_ = false;
  Status nvme_status_;
  std::function<void(Status)> on_ready_;

  bool finding_ = false;      // The tier's blocks are being taken over.
  bool find_again_ = false;   // There are more since that began.
  bool finding_all_ = false;  // Every drive had been read when it began.
  bool found_all_ = false;    // And it has ended.
  // All of their blocks were deleted while a drive had not been read.
  std::set<uint16_t> forgotten_tenants_;
  // The whole index is being looked through for what is theirs, to be deleted. Once for each.
  std::set<uint16_t> sweeping_;
  // NVMe has records of theirs that the index had no room for.
  std::set<uint16_t> unindexed_;
  // What was being filled or written when a drive was found to have it, until that is taken over or
  // deleted.
  std::set<BlockName> found_busy_;
  // Blocks that the tier was told it may drop, and has not reported as lost yet: they do not count
  // towards their tenant's floor any more.
  struct Dropping {
    uint16_t tenant = 0;
    uint64_t bytes = 0;
  };
  std::map<BlockId, Dropping> dropping_;
  std::map<uint16_t, uint64_t> dropping_bytes_;  // By tenant.

  struct Leaving {
    ClientNumber client = 0;
    std::function<void()> on_done;
  };

  // Hears for those who are cut off.
  struct Nobody final : ClientSink {
    void OnProgress(Request*, size_t, bool) override {}
  };
  Nobody nobody_;

  std::vector<Client> clients_;
  std::deque<Leaving> leaving_;
  std::deque<ClientNumber> disconnected_;  // Whose reservations are being voided.
  struct Engine {
    uint32_t number = 0;
    uint32_t clients = 0;
  };
  std::map<std::string, Engine> engines_;  // Those that have clients.
  uint32_t next_engine_ = 1;
  uint64_t next_nameless_ = 1;
  std::deque<Loan> loans_;  // Grows without moving what is there.
  uint32_t free_loan_ = 0;
  uint64_t lent_ = 0;  // Loans in use.
  size_t overdue_cursor_ = 0;
  size_t filling_cursor_ = 0;
  size_t refill_cursor_ = 0;
  std::deque<Filling> fillings_;
  std::vector<uint32_t> free_fillings_;
  std::deque<Refill> refills_;
  std::vector<uint32_t> free_refills_;
  std::map<BlockName, uint32_t> open_refills_;
  // Tenants that have stored blocks again since all drives were last seen in service.
  std::set<uint16_t> tenants_stored_again_;
  double average_fill_ms_ = 20;
  std::map<uint16_t, TenantSessions> sessions_;  // By tenant.
  size_t session_count_ = 0;
  uint64_t next_session_ = 1;

  std::vector<std::unique_ptr<Job>> jobs_;  // Every job there is, running or spare.
  size_t running_jobs_ = 0;
  JobList given_up_jobs_;                      // Their clients are gone.
  std::vector<std::vector<Job*>> spare_jobs_;  // By kind.
  uint64_t next_run_ = 1;
  uint64_t run_at_tick_ = 0;  // next_run_ when the last tick was.
  // Of the tick that is to come; others were put off, or brought forward.
  uint64_t tick_number_ = 0;
  bool resting_ = false;                                // It comes late.
  std::map<std::pair<int64_t, uint64_t>, Job*> wakes_;  // By time and run.
  int64_t armed_nanos_ = INT64_MAX;
  bool draining_ = false;
  bool housekeeping_ = false;
  CoreCounters counters_;
  std::vector<CoreCounters> counters_of_;  // By tenant, of those that have had a client.
  std::array<TimeHistogram, kTimedRequests + 1> request_times_;  // By the kind of job.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace aquifer
