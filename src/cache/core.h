// The cache itself: match, fetch, place, write down, recover. One owner runs all of it, so there is
// no lock; long requests are cut into slices, so that no task holds the owner up for more than
// about 100 us. Everything outside comes through the CacheEnvironment.
//
// Core makes the parts and connects them; each request is checked here and becomes a job of a file
// in cache/request/. Clients attach with a sink that hears how their requests come along. The
// answers are written into the requests themselves, before the sink is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/task_scope.h"
#include "cache/cache_report.h"
#include "cache/core_options.h"
#include "cache/core_snapshot.h"
#include "cache/environment.h"
#include "cache/request/cache_context.h"
#include "tier/dram/dram_pool.h"

namespace aquifer {

class Core final {
 public:
  // Checks the options: kInvalid says what to change.
  static Result<std::unique_ptr<Core>> New(const CoreOptions& options,
                                           const CacheEnvironment& environment);
  // When nothing of it runs any more: the owner has stopped, or is stepped by hand.
  ~Core();

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
    meters_.Count(clients_.at(client).tenant, &CacheCounters::dropped_notes, count);
  }
  void Cancel(ClientNumber client, Request* request);

  // ---- For those who run it ----

  CoreSnapshot Snapshot() const { return report_->Snapshot(); }
  // See CacheReport. Ask for at most kSnapshotSlice in one task.
  std::vector<TenantSnapshot> Tenants(size_t first, size_t max) const {
    return report_->Tenants(first, max);
  }
  std::vector<SessionSnapshot> Sessions(std::string_view tenant, const std::string& after,
                                        size_t max) const {
    return report_->Sessions(tenant, after, max);
  }
  bool SessionKeys(std::string_view tenant, const std::string& session, size_t max,
                   std::optional<BlockName>* next, std::vector<Key>* keys) const {
    return report_->SessionKeys(tenant, session, max, next, keys);
  }
  bool draining() const { return context_->draining; }
  // Blocks are stored again after a drain. A drain that is under way still ends as it would.
  void Undrain() { context_->draining = false; }
  // Returns true if a client, a block or the configuration has named this tenant.
  bool HasTenant(std::string_view name) const {
    return context_->catalog.FindTenant(name).has_value();
  }
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
  std::vector<DriveStats> Drives() const { return drives_->Stats(); }
  // The same of the durable tiers.
  std::vector<DurableStats> DurableTierStats() const {
    return durable_ == nullptr ? std::vector<DurableStats>{} : durable_->Stats();
  }

  // Memory faulted in so far, for whoever waits for the pool to warm up.
  uint64_t extent_bytes() const {
    return dram_->usage().extent_bytes - dram_->usage().making_bytes;
  }
  bool pool_complete() const;
  // Faults the rest of the pool in, in the background: somebody is going to store.
  void WarmUp() { dram_->SetReadyExtents(UINT32_MAX); }

  // Of a layout that the client has registered; 0 when it has not.
  uint32_t TokensPerBlock(ClientNumber client, LayoutHandle handle) const {
    if (!clients_.HasLayout(client, handle)) return 0;
    return catalog_.layout(clients_.LayoutOf(client, handle)).tokens_per_block;
  }

  // They do not change: any thread may ask.
  const CoreOptions& options() const { return options_; }

 private:
  Core(const CoreOptions& options, const CacheEnvironment& environment);
  // Make the parts, in the order in which they need each other.
  Status Build();
  Status BuildDram();
  Status BuildResidency();
  void BuildWriteDown();
  Status BuildDurable();
  Status BuildDrives();
  void BuildRequests();
  Result<std::unique_ptr<EvictionOrder>> NewOrder(uint32_t max_blocks, uint8_t tier) const;

  void Tick();
  void TickIn(int64_t nanos);
  // How long the next tick may be away, after one that found something to do or did not.
  int64_t NanosToTick(bool worked);
  void PumpLoads() {
    if (loader_->pending() > 0) loader_->Pump();
  }

  // Requests.
  template <class J>
  J* Take(ClientNumber client, Request* request);
  template <class J, class R>
  void Begin(ClientNumber client, R* request, Status valid);
  Status CheckChain(ClientNumber client, const ChainSlice& chain) const;
  // The same where the keys alone are looked at.
  Status CheckNames(ClientNumber client, const ChainSlice& chain) const;
  // The chain, or else the session.
  Status CheckChainOrSession(ClientNumber client, const ChainSlice& chain,
                             const std::string& session) const;

  const CoreOptions options_;
  const CacheEnvironment environment_;
  std::vector<TenantOptions> tenants_;  // As SetTenants() was told.
  Catalog catalog_;
  CacheMeters meters_;
  CacheCosts costs_;
  ClientTable clients_;
  std::unique_ptr<DramPool> dram_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<FillTable> fills_;
  std::unique_ptr<LoanBook> loans_;
  std::unique_ptr<SessionTable> sessions_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Eraser> eraser_;
  std::unique_ptr<WriteDown> write_down_;
  std::unique_ptr<DurableTiers> durable_;  // Null: there are none.
  std::unique_ptr<DriveSet> drives_;
  std::unique_ptr<RequestScheduler> scheduler_;
  std::unique_ptr<CacheContext> context_;
  std::unique_ptr<CacheReport> report_;

  // Of the tick that is to come; others were put off, or brought forward.
  uint64_t tick_number_ = 0;
  uint64_t begun_at_tick_ = 0;  // Jobs, when the last tick was.
  bool resting_ = false;        // The next tick comes late.
  TaskScope tasks_;
};

}  // namespace aquifer
