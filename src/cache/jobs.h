// Requests under way. A job runs in slices on the owner, waits for loads, writes or the clock in
// between, and ends exactly once. Finished jobs are kept and used again, with the memory that they
// have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "cache/chain_inquiry.h"
#include "cache/core.h"
#include "cache/durable_tiers.h"
#include "cache/transfer/loader.h"

namespace aquifer {

class Job {
 public:
  virtual ~Job() = default;

  // Forgets its last use.
  virtual void Reset() {}
  // The next slice.
  virtual void Run() = 0;
  // The time that was asked for with WakeAt() has come.
  virtual void OnTimer() {}
  // The caller wants it settled: answer what is open with kLate, and End().
  virtual void Cancel() = 0;
  // The client is gone: wait for nothing more. Nobody is told.
  virtual void Drop() {}

  Request* request() const { return request_; }
  ClientNumber client() const { return client_; }

 protected:
  Job(Core* core, size_t kind) : core_(core), kind_(kind) {}

  Core& core() const { return *core_; }
  uint16_t tenant() const { return core_->clients_[client_].tenant; }
  void RunAgain();
  // At most once in a run.
  void WakeAt(int64_t nanos);
  void Report(size_t completed) { core_->Progress(client_, request_, completed, false); }
  // Completes the request, which is the caller's again; the job may go on without it.
  void Answer(size_t completed);
  // The last thing a job does: answers if it has not, and may be in use again when this returns.
  void End(size_t completed);
  // Tells whether a callback comes too late: the job was given up or has ended since, and may be in
  // use again.
  uint64_t run() const { return run_; }
  // When the caller made its call.
  int64_t begun_nanos() const { return begun_nanos_; }
  ChainNames NamesOf(const ChainSlice& chain) const;
  int64_t DeadlineIn(int64_t timeout_nanos) const {
    return Core::DeadlineIn(timeout_nanos, begun_nanos_);
  }
  bool IsOver(int64_t deadline_nanos) const {
    return deadline_nanos <= core_->environment_.clock->NowNanos();
  }

 private:
  friend class Core;
  friend class JobList;

  Core* const core_;
  const size_t kind_;
  Request* request_ = nullptr;
  ClientNumber client_ = 0;
  uint64_t run_ = 0;  // Which use of the job this is; 0: none, or one that was given up.
  bool given_up_ = false;
  Job* next_ = nullptr;  // In its client's list, or of those that were given up.
  Job* previous_ = nullptr;
  int64_t begun_nanos_ = 0;
  int64_t wake_nanos_ = kNoWake;
  uint64_t wake_run_ = 0;
  static constexpr int64_t kNoWake = INT64_MAX;
};

// A job that answers one kind of request. `kind` numbers the kinds, so that finished jobs are
// found.
template <class R, size_t kind>
class RequestJob : public Job {
 public:
  static constexpr size_t kKind = kind;

 protected:
  explicit RequestJob(Core* core) : Job(core, kind) {}
  R& asked() const { return static_cast<R&>(*request()); }
};

class MatchJob final : public RequestJob<MatchRequest, 0> {
 public:
  explicit MatchJob(Core* core) : RequestJob(core) {}

  void Reset() override;
  void Run() override;
  void OnTimer() override;
  void Cancel() override;

 private:
  // `cost` is the tier's place in costs_. False: there are too many runs.
  bool AddRun(size_t first, uint8_t cost, RunState state);
  void AddFillingRun(size_t first);
  BlockName NameOf(size_t i) const;  // Of the chain.
  void EndHere();
  // The durable tiers.
  bool WorthAsking();
  void LookFurther();
  DurablePlace PlaceOf(size_t i);
  void WaitForAnswer();
  void EstimateUpTo(size_t runs);
  void Finish();
  // Tells the eviction orders what was asked for; false when that was all.
  bool AskSlice();
  void TouchSlice();

  size_t matched_ = 0;
  std::vector<BlockRef> refs_;   // Of those, what is on this host.
  std::vector<uint64_t> names_;  // All that was asked for: the request may be gone by then.
  uint32_t tokens_per_block_ = 0;
  ChainSaving saving_;  // Of its blocks in DRAM.
  Residency::AskedOrders asked_orders_;
  std::array<TierCost, kMaxTiers> costs_;  // By the index's numbers for tiers.
  std::vector<uint8_t> run_costs_;         // Which of those, by run.
  ChainInquiry inquiry_;
  bool further_ = false;      // The durable tiers are being asked.
  bool waiting_ = false;      // For their answer.
  size_t further_begin_ = 0;  // Where that began.
  int64_t until_nanos_ = 0;   // So long it may take; 0: not asked yet.
  uint64_t timer_run_ = 0;    // The run that has asked to be woken.
  std::optional<PrefillCoefficients> prefill_;
  std::optional<WorthScan> worth_;
  size_t estimated_ = 0;   // Of the runs.
  bool touching_ = false;  // Answered; only recency is left to record.
};

class FetchJob final : public RequestJob<FetchRequest, 1>, public LoadWaiter {
 public:
  explicit FetchJob(Core* core) : RequestJob(core) {}

  void Reset() override;
  void Run() override;
  void OnTimer() override { Cancel(); }
  void Cancel() override;
  bool Waits(uint64_t run) const override { return run == this->run(); }
  void OnLoaded(size_t op, BlockRef ref, const Status& status) override;

 private:
  // In a ticket's number: the load is a durable tier's.
  static constexpr size_t kFromDurable = size_t{1} << 63;

  void FetchSlice();
  void FetchOne(size_t i, BlockRef* ref);
  void FetchFurther(size_t i);
  void FetchUnanswered();
  void FetchElsewhere(size_t i, const Status& status);
  void PumpLoads();
  void LendOne(size_t i, BlockRef ref, TierKind tier);
  void SettleOne(size_t i, Status status);
  void SettleRestLate();
  void Advance();
  void RunOn();
  // What this fetch was worth.
  void CountSaved();

  size_t cursor_ = 0;
  size_t answered_ = 0;  // From the front.
  size_t reported_ = 0;
  size_t usable_ = 0;  // Blocks lent, from the front without a gap.
  uint32_t first_position_ = 0;
  size_t loading_ = 0;
  int64_t deadline_nanos_ = 0;
  bool in_slice_ = false;
  bool posted_ = false;  // Its next slice.
  bool timer_set_ = false;
  bool cancelled_ = false;        // What is open is late.
  bool refused_ = false;          // The caller was told that it has too many leases.
  size_t late_cursor_ = 0;        // How far that has been said.
  std::vector<uint8_t> settled_;  // As far as the slices have come.
  ChainInquiry inquiry_;
  std::deque<size_t> unanswered_;  // Durable tiers are asked for these.
};

class ReserveJob final : public RequestJob<ReserveRequest, 2> {
 public:
  explicit ReserveJob(Core* core) : RequestJob(core) {}

  void Reset() override;
  void Run() override;
  void Cancel() override;

 private:
  size_t cursor_ = 0;
};

class CommitJob final : public RequestJob<CommitRequest, 3> {
 public:
  explicit CommitJob(Core* core) : RequestJob(core) {}

  void Reset() override;
  void Run() override;
  void Cancel() override {}  // It never waits.

 private:
  size_t cursor_ = 0;
};

class FlushJob final : public RequestJob<FlushRequest, 4> {
 public:
  explicit FlushJob(Core* core) : RequestJob(core) {}

  void Reset() override {
    path_ = ChoosePath();
    flush_ = {};
    durable_flush_.clear();
    cursor_ = 0;
    others_ = 0;
    counting_ = false;
    timer_set_ = false;
    asked_again_ = unanswered_ = false;
  }
  void Run() override;
  void OnTimer() override { Cancel(); }
  void Cancel() override;
  void Drop() override;

 private:
  enum class Path : uint8_t {
    kNvme,      // Then to the durable tiers, where something of the tenant's is to be durable.
    kDurable,   // Only there.
    kSessions,  // The same, of what is to be durable; the tenant has more, and there is no drive.
  };
  Path ChoosePath() const;
  bool Usable() const;
  std::string WhyNot(TierKind tier);  // Why nothing can be flushed to it, and what to do.

  // Some of it is to be in a durable tier.
  bool WantsDurable() const;
  void FlushDurable();
  // Says whether that was all.
  void CountOthers();
  // Whose some of the tenant's blocks are is not known, which may decide whether they are durable.
  bool SomeUnanswered() const;
  void Finish(Status status);

  Path path_ = Path::kNvme;
  FlushWaits::Id flush_;
  DurableTiers::FlushId durable_flush_;
  BlockRef cursor_ = 0;  // In the index: blocks that nobody added are added, or the others counted.
  size_t others_ = 0;    // That are in memory alone.
  bool counting_ = false;
  bool timer_set_ = false;
  bool asked_again_ = false;
  bool unanswered_ = false;  // After that, too: it cannot be ok.
};

class PinJob final : public RequestJob<PinRequest, 5> {
 public:
  explicit PinJob(Core* core) : RequestJob(core) {}

  void Reset() override;
  void Run() override;
  void Cancel() override;

 private:
  size_t cursor_ = 0;
};

class PrestageJob final : public RequestJob<PrestageRequest, 6>, public LoadWaiter {
 public:
  explicit PrestageJob(Core* core) : RequestJob(core) {}

  void Reset() override;
  void Run() override;
  void OnTimer() override { Cancel(); }
  void Cancel() override;
  void Drop() override { LetGo(); }
  bool Waits(uint64_t run) const override { return run == this->run(); }
  void OnLoaded(size_t op, BlockRef ref, const Status& status) override;

 private:
  void LetGo();
  // A slice of the session's chain; false when it is all there.
  bool Collect();
  // The same where durable tiers may have what is gone from here.
  bool CollectKeys();
  void StageKeys(uint16_t layout);
  size_t count() const;
  BlockRef Block(size_t i) const;
  void StageOne(BlockRef ref);
  // Whether one more block may be loaded ahead.
  bool Charge(uint64_t bytes);
  // The durable tiers: a session of which only they know, and blocks.
  void ReadNote();
  void OnNote(const Result<SessionNote>& note);
  void StageFurther(size_t i);
  void StageUnanswered();
  void PumpLoads();
  void MaybeEnd();
  void Finish();

  BlockName walk_;                   // The next of the session's blocks to be collected.
  std::deque<Core::Noted> blocks_;   // The session's, deepest first.
  ChainSlice chain_;                 // What is staged, where it is given by keys.
  uint16_t layout_ = 0;              // Of that.
  SessionNote note_;                 // Whose keys those are, where it is not the caller.
  std::optional<uint16_t> learned_;  // The note's layout, which is held.
  bool reading_note_ = false;
  bool noteless_ = false;  // There is none: what is here is all.
  ChainInquiry inquiry_;
  std::deque<size_t> unanswered_;  // Durable tiers are asked for these.
  size_t cursor_ = 0;              // From the root on.
  size_t open_ = 0;
  uint64_t block_bytes_ = 0;  // Charged for each of the open ones.
  bool capped_ = false;       // Not all may be loaded ahead.
  int64_t deadline_nanos_ = 0;
  bool in_slice_ = false;
  bool collected_ = false;
  bool timer_set_ = false;
};

class EvictJob final : public RequestJob<EvictRequest, 7> {
 public:
  explicit EvictJob(Core* core) : RequestJob(core) {}

  void Reset() override;
  void Run() override;
  void Cancel() override {}  // A deletion is carried out.
  void Drop() override;

 private:
  // A slice of what is to go; false when that was all.
  bool DropSlice();
  bool DropEverythingSlice();
  bool DropSessionSlice();
  bool LookBelow();
  void DropBelow();
  bool DropNextOfSession();
  bool DropChainSlice();
  bool DropOne(BlockRef ref);
  void DropUnindexed();
  void Erase(const BlockId& id);
  void EraseElsewhere(const BlockName& name);
  bool EraseFoundBusy();
  void WaitForTiers();
  void WaitForDurable(const Status& status);
  void EndSweep();
  // What the durable tiers have of the tenant's may be found again.
  void Reopen();
  void Finish(Status status);

  BlockName walk_;          // The next of the session's blocks.
  std::optional<Key> own_;  // The one below that; nothing at its end.
  // What hangs below its last one: not looked at yet, and to be dropped, each below those before.
  std::vector<BlockName> unseen_;
  std::vector<BlockName> below_;
  size_t cursor_ = 0;
  size_t evicted_ = 0;
  bool sweeping_ = false;    // In Core::sweeping_.
  bool closed_ = false;      // The tenant's blocks are not found in the durable tiers.
  bool lost_track_ = false;  // It is not known what came before walk_.
  bool unsure_ = false;      // More of what it deletes may come to light.
  size_t unremembered_ = 0;  // That a drive may hold which has not been read.
};

class DrainJob final : public RequestJob<DrainRequest, 8> {
 public:
  explicit DrainJob(Core* core) : RequestJob(core) {}

  void Reset() override {
    timer_set_ = false;
    flush_ = {};
    durable_flush_.clear();
  }
  void Run() override;
  void OnTimer() override { Cancel(); }
  void Cancel() override;
  void Drop() override;

 private:
  void DrainNvme();
  void DrainDurable(const Status& nvme);
  void FinishAfter(const Status& written);
  void Finish(Status status);

  bool timer_set_ = false;
  FlushWaits::Id flush_;
  DurableTiers::FlushId durable_flush_;
};

// What a caller said about a session. Nobody waits for it, so it has no request.
class HintJob final : public Job {
 public:
  static constexpr size_t kKind = 9;
  explicit HintJob(Core* core) : Job(core, kKind) {}

  void Begin(const SessionForecast& forecast, const BlockName& head);
  void Run() override;
  void Cancel() override {}
  void Drop() override;

 private:
  // kNoBlock: the block is gone, and only known by its key.
  void ApplyTo(BlockRef ref, const Key& key);
  // Other chains go on from it too.
  bool IsShared(const Key& key) const;
  void Apply(BlockRef ref);
  uint32_t ExpiryOf(BlockRef ref) const;

  int8_t priority_ = 0;
  SessionHint outlook_ = SessionHint::kNone;
  int64_t ttl_seconds_ = 0;
  bool durable_ = false;      // The session's blocks are to be.
  bool shared_ = false;       // From here up they are other chains', too.
  std::optional<Key> below_;  // The session's block below walk_; nothing at its end.
  BlockName walk_;            // The next of the session's blocks, deepest first.
};

inline constexpr size_t kJobKinds = 10;

}  // namespace aquifer
