// Copies committed blocks from DRAM to NVMe, behind everyone's back: paced by a budget, bounded in
// flight, and never in the way of a fetch. A block that waits for it is kept in DRAM, as long as
// not too much of the pool waits; beyond that it may be evicted unwritten, and Flush() says so.
//
// Where not all can be written (a budget, or a part that is to be written for the drive's sake),
// what is most likely to be asked for again is; the rest is set aside (set_aside.h).
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/task_scope.h"
#include "cache/residency/barriers.h"
#include "cache/residency/flush_waits.h"
#include "cache/residency/residency.h"
#include "cache/transfer/eraser.h"
#include "cache/transfer/set_aside.h"
#include "cache/transfer/unwritten.h"
#include "metrics/time_histogram.h"
#include "policy/admission/write_budget.h"
#include "policy/admission/write_threshold.h"
#include "tier/tier.h"

namespace aquifer {

struct WriteDownSettings {
  bool enabled = false;  // There is a tier to write to, now or later.
  WriteBudgetOptions budget;
  WriteThresholdOptions admission{.written_part = 1};
  uint64_t max_held_bytes = 0;  // Of DRAM that may wait to be written, over all tenants.
};

struct WriteDownStats {
  uint64_t written_blocks = 0;
  uint64_t written_bytes = 0;
  uint64_t failed_blocks = 0;   // Tried, and to be tried again.
  uint64_t refused_blocks = 0;  // Too large for the tier, or over the tenant's ceiling.
  TimeHistogram wait;           // Of a block, until it is handed to the tier.
  TimeHistogram write;          // Of a batch, at the tier.
};

class WriteDown {
 public:
  static constexpr size_t kMaxBatchOps = 32;  // What ends in one task: one to two us each.
  static constexpr size_t kMaxInFlightBatches = 48;

  WriteDown(const WriteDownSettings& settings, Residency* residency, Eraser* eraser,
            Executor* executor, Clock* clock);

  // Null while there is no tier to write to.
  void SetTarget(Tier* target);

  // The block was just committed. It is written after Pump(), or set aside.
  void Add(BlockRef ref);
  // The block was loaded from a durable tier, which keeps it. It is written as one that was just
  // committed, or else not at all: no flush needs it here.
  void Promote(BlockRef ref);
  // NVMe had to give up what DRAM still has: it is set aside, for a flush to find.
  void OnLost(BlockRef ref);
  // It was used, or somebody wants it kept: see SetAside.
  void OnUsed(BlockRef ref);
  void Want(BlockRef ref) { aside_.Want(ref); }
  // The block is on NVMe, and its expiry has changed, which the record there does not know. A new
  // record replaces it after Pump(); where DRAM has it not, or not any more, it is loaded first.
  void Renew(BlockRef ref);
  // What was asked for with `load` has ended.
  void OnLoaded(BlockRef ref, const Status& status);
  // A drive that came late has a record of a block whose write is under way. That replaces it; if
  // it fails, `on_older_left` says so, for nobody else knows of that record. One that was deleted
  // goes then: a deletion before would take what is being written, too.
  void NoteOlderRecord(const BlockId& id, bool deleted) { older_records_[id] |= deleted; }
  // It is being written, or what was dropped under that name still is: what the tier has of it when
  // that ends is decided then.
  bool Writes(const BlockId& id) const { return at_tier_.contains(id) || hanging_.contains(id); }

  // Starts what may be started.
  void Pump();
  // The same as a task of its own: preparing a batch takes as long as a slice of commits.
  void PumpSoon() { PumpAt(clock_->NowNanos()); }
  // So much was written to the tier by others: what waits here waits longer for that.
  void ChargeBudget(uint64_t bytes) { budget_.ChargeBytes(clock_->NowNanos(), bytes); }

  // `on_done` once everything of the tenant that was added before is on NVMe or cannot get there;
  // what others have stored is neither waited for nor told of. Losses are told once to each
  // `client`. The budget does not hold a flush up.
  FlushWaits::Id Flush(uint16_t tenant, uint32_t client, std::function<void(Status)> on_done) {
    return AddFlush(tenant, {tenant, client, std::move(on_done)});
  }
  // The same for what any tenant has stored. Only this tenant's losses are told.
  FlushWaits::Id FlushAll(uint16_t tenant, uint32_t client, std::function<void(Status)> on_done) {
    return AddFlush(FlushWaits::kEveryone, {tenant, client, std::move(on_done)});
  }
  // A new client: what was lost before it came is none of its business.
  void AddClient(uint32_t client, uint16_t tenant);
  // The tier is out of service: what waits for it may be evicted, a slice after the other.
  void ReleaseHolds();
  // Its time is over: `on_done` will not run.
  void EndFlush(const FlushWaits::Id& flush) { flushes_.End(flush); }

  // What waits is written in the order of its value, once it has been sorted, a slice at a time:
  // there may not be time for all.
  void HottestFirst();

  // `on_done` when every write that is at the tier now has been answered; kUnavailable when a drive
  // still holds on to one of the tenant's.
  void Barrier(uint16_t tenant, std::function<void(Status)> on_done);

  // Called with a block that is to be renewed and not in DRAM. Never answers from inside.
  std::function<void(BlockRef)> load;
  std::function<void(const BlockName&)> on_older_left;

  const WriteDownStats& stats() const { return stats_; }
  // Why the last write that failed did.
  const Status& last_failure() const { return last_failure_; }
  // Blocks of any tenant that are waiting or being written.
  size_t waiting() const {
    return queue_.size() + by_value_.size() + loading_.size() + put_off_.size() + in_flight_blocks_;
  }
  const SetAside& aside() const { return aside_; }

 private:
  struct Item {
    BlockRef ref = kNoBlock;
    uint64_t sequence = 0;
    uint64_t name = 0;  // OrderName(): whether the ref still names the block that was added.
    uint16_t tenant = 0;
    uint64_t bytes = 0;
    uint64_t held_bytes = 0;  // Of held_bytes_, while it waits.
    int64_t since_nanos = 0;
  };
  struct WriteBatch {
    Batch<WriteOp> batch;
    std::vector<Item> items;
    std::vector<uint64_t> charged;  // 0 for a renewal, which is charged already.
    std::vector<uint16_t> tenants;
    uint64_t bytes = 0;
    uint64_t number = 0;
    int64_t submitted_nanos = 0;
    bool busy = false;   // From submission until no slot of it is in use any more.
    bool done = false;   // Only slots that a device holds on to keep it busy.
    size_t unquiet = 0;  // How many those are.
  };
  // A block that a drive which was given up may still be reading from its slot.
  struct HungBlock {
    uint32_t writes = 0;  // That hang.
    bool again = false;   // It is being written once more, elsewhere.
  };
  struct Valued {
    double value = 0;
    Item item;

    friend bool operator<(const Valued& a, const Valued& b) {
      return a.value != b.value ? a.value < b.value : a.item.sequence > b.item.sequence;
    }
  };

  // Still the block that was added, wherever it is.
  bool Same(const Item& item) const;
  // A deletion of the same block is under way, or its old record is still being written.
  bool Barred(BlockRef ref) const;
  bool OlderHangs(BlockRef ref, const BlockId& id) const;
  Item ItemOf(BlockRef ref, uint64_t sequence) const;
  void Enqueue(BlockRef ref, uint64_t sequence);
  // How much of what is stored can be written, by what waits already.
  double Affordable() const;
  // Up to a slice of what is set aside and a flush waits for.
  void TakeBackFlushed();
  using Queue = std::map<uint64_t, Item>;
  void Put(const Item& item);
  Queue::iterator TakeOut(Queue::iterator item);
  // It can be written no more from where it is: dropped, there already, or to be loaded first.
  void Discard(const Item& item);
  void TrimSome();
  void ReleaseSomeHolds();
  void SortSome();
  void PostToSelf(void (WriteDown::*step)());
  // It waits no more: its hold on DRAM ends.
  void Forget(const Item& item);
  // The write that was to replace an older record is over; it is `left` where that failed.
  void SettleOlder(const BlockId& id, const BlockName& name, bool left);
  // It is on NVMe, or will not get there: no flush waits for it any more.
  void Settle(const Item& item);
  uint64_t HoldLimit(uint16_t tenant) const;
  bool Current(const Item& item) const;
  // It is being written, and that has not been given up.
  bool Writing(BlockRef ref) const;
  // Its slot stays what it is from the first to the last of its writes, hanging or not.
  void BeginWrite(BlockRef ref);
  void EndWrite(BlockRef ref);
  void HangWrite(BlockRef ref);
  void EndHungWrite(BlockRef ref);
  WriteBatch* TakeBatch();
  Status AddTo(WriteBatch* write, const Item& item);
  void OnDone(WriteBatch* write);
  void OnWritten(WriteBatch* write, size_t i);
  void OnStored(WriteBatch* write, size_t i);
  void OnHung(WriteBatch* write, size_t i);
  void OnQuiescent(WriteBatch* write, size_t i);
  void Recycle(WriteBatch* write);
  // Not written: it waits again, in its old place.
  void Requeue(const Item& item);
  // The same after a while: the drive of its old record is out of service, or its tenant's key
  // cannot be had.
  void PutOff(const Item& item);
  void TakeUp(int64_t now);
  FlushWaits::Id AddFlush(uint16_t of, FlushWaits::Wait wait);
  // The first behind `sequence` in queue_ that somebody waits for.
  Queue::iterator NextFlushed(uint64_t sequence);
  void CheckFlushesLater();
  void CheckFlushes();
  void CheckBarriers();
  void CheckBarriersLater();
  void PumpAt(int64_t nanos);
  Status LostSinceLastFlush(uint16_t tenant, uint32_t client);

  const WriteDownSettings settings_;
  Residency* const residency_;
  Eraser* const eraser_;
  Executor* const executor_;
  Clock* const clock_;
  Tier* target_ = nullptr;
  WriteBudget budget_;
  const bool chooses_;                // Not all is to be written.
  Queue queue_;                       // By sequence.
  uint64_t queued_bytes_ = 0;         // Of those.
  std::map<int64_t, Item> put_off_;   // By when they go back to queue_.
  std::map<BlockRef, Item> loading_;  // To be renewed, and on its way to DRAM for that.
  Unwritten unwritten_;  // What waits, is set aside, is loaded first or is at the tier.
  SetAside aside_;
  uint64_t trim_cursor_ = 0;     // Up to here it has been looked at for stale ones.
  uint64_t release_cursor_ = 0;  // Up to here holds are released.
  bool releasing_ = false;
  bool sorting_ = false;          // Nothing is written until what waits is in its new order.
  uint64_t sort_end_ = 0;         // What was added later stays behind it.
  std::vector<Valued> by_value_;  // Taken out of queue_ to be sorted: a heap.
  uint64_t pump_from_ = 0;        // Where in queue_ the next Pump() goes on, after a slice.
  std::map<BlockId, bool> older_records_;  // That writes are to replace: deleted, or not.
  std::set<BlockId> at_tier_;              // In batches that are not done.
  std::map<BlockId, uint32_t> hanging_;    // In batches that are: writes that a drive holds on to.
  std::vector<std::unique_ptr<WriteBatch>> batches_;
  uint64_t next_batch_ = 1;
  size_t in_flight_blocks_ = 0;
  uint64_t held_bytes_ = 0;
  std::vector<uint64_t> held_by_;  // By tenant.
  int64_t paused_until_nanos_ = 0;
  int64_t timer_nanos_ = INT64_MAX;
  FlushWaits flushes_;
  TaskScope::Once flush_check_;
  Barriers barriers_;
  TaskScope::Once barrier_check_;
  Losses losses_;
  std::vector<uint64_t> hung_;  // By tenant: writes that a drive holds on to.
  std::map<BlockRef, HungBlock> hung_blocks_;
  WriteDownStats stats_;
  Status last_failure_;
  TaskScope tasks_{executor_};
};

}  // namespace aquifer
