// Copies blocks from DRAM to one durable tier, behind everyone's back: paced by a budget, bounded
// in flight, and with one batch at a time while anybody loads from the tier. What is not in DRAM
// any more is loaded from NVMe first.
//
// A block that waits is kept in DRAM, as long as not too much of the pool waits; beyond that it may
// leave for NVMe, or be lost, and Flush() says so. What NVMe held over a restart is asked for first
// (Look), and written where the store lacks it: so what a crash left unwritten is written after it.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/task_scope.h"
#include "cache/residency/barriers.h"
#include "cache/residency/flush_waits.h"
#include "cache/residency/residency.h"
#include "cache/transfer/durable_loader.h"
#include "cache/transfer/eraser.h"
#include "cache/transfer/presence.h"
#include "cache/transfer/unwritten.h"
#include "policy/admission/write_budget.h"
#include "tier/durable/durable_tier.h"

namespace aquifer {

struct DurableWriterParts {
  DurableTier* tier = nullptr;
  uint8_t number = 0;  // Of the tier.
  Residency* residency = nullptr;
  Eraser* eraser = nullptr;
  Presence* presence = nullptr;
  const DurableLoader* loader = nullptr;  // Goes first.
  Executor* executor = nullptr;
  Clock* clock = nullptr;
  WriteBudgetOptions budget;
  uint64_t max_held_bytes = 0;  // Of DRAM that may wait to be written, over all tenants.
};

struct DurableWriterStats {
  uint64_t written_blocks = 0;
  uint64_t written_bytes = 0;
  uint64_t failed_blocks = 0;   // Tried, and to be tried again.
  uint64_t refused_blocks = 0;  // The tier will never take them.
};

class DurableWriter final : public LoadWaiter {
 public:
  explicit DurableWriter(const DurableWriterParts& parts);

  // The block is resident. It is written after Pump(), unless the tier has it.
  void Add(BlockRef ref);
  // The same for one that the tier may have, from an earlier life.
  void AddFound(BlockRef ref);
  // Its expiry has changed: what the tier has, or may have, gets the new one.
  void Renew(BlockRef ref);

  void Pump();
  // As a task of its own.
  void PumpSoon() { PumpAt(parts_.clock->NowNanos()); }
  // What waits may be evicted while the tier is out of service.
  void OnHealth(bool in_service);

  // `on_done` once everything of the tenant's that was added before is at the tier or cannot get
  // there. The budget does not hold it up. Losses are told once to each client.
  FlushWaits::Id Flush(uint16_t tenant, uint32_t client, std::function<void(Status)> on_done);
  // Of all tenants; only this one's losses are told.
  FlushWaits::Id FlushAll(uint16_t tenant, uint32_t client, std::function<void(Status)> on_done);
  void EndFlush(const FlushWaits::Id& flush) { flushes_.End(flush); }
  // What was lost before it came is none of its business.
  void AddClient(uint32_t client, uint16_t tenant);

  // `on_done` when every write that is at the tier now has been answered; kUnavailable when the
  // store still holds on to one of the tenant's.
  void Barrier(uint16_t tenant, std::function<void(Status)> on_done);

  // Nobody may ask the tier any more.
  void Close() { parts_.tier = nullptr; }

  // Called with a block that is to be written and is only on NVMe. OnLoaded() follows later.
  std::function<void(BlockRef, const LoadTicket&)> load;

  bool Waits(uint64_t /*run*/) const override { return true; }
  void OnLoaded(size_t op, BlockRef ref, const Status& status) override;

  const DurableWriterStats& stats() const { return stats_; }
  const Status& last_failure() const { return last_failure_; }
  size_t waiting() const { return sequence_of_.size(); }
  // Some of the tenant's that is to be durable waits, or was lost before it was.
  bool Owes(uint16_t tenant) const {
    return wanted_of_.contains(tenant) || parts_.residency->lost_undurable(tenant) > 0;
  }
  // Since when the one waits that has waited longest, of those that are to be durable; INT64_MAX:
  // none does.
  int64_t OldestNanos() const { return since_.empty() ? INT64_MAX : since_.begin()->second; }

 private:
  struct Item {
    BlockRef ref = kNoBlock;
    uint64_t sequence = 0;
    uint64_t name = 0;  // OrderName(): whether the ref still names the block that was added.
    uint16_t tenant = 0;
    int64_t since_nanos = 0;
    uint64_t held_bytes = 0;  // Of held_bytes_, while it waits.
    bool renew = false;
    bool look_first = false;
  };
  struct WriteBatch {
    Batch<WriteOp> batch;
    std::vector<Item> items;
    uint64_t bytes = 0;
    uint64_t number = 0;
    size_t unquiet = 0;
    bool busy = false;
    bool done = false;  // Only slots that the store holds on to keep it busy.
  };
  struct LookBatch {
    Batch<LookOp> batch;
    std::vector<std::pair<BlockRef, uint64_t>> items;  // With their sequences.
  };

  void Enqueue(BlockRef ref, bool renew, bool look_first);
  // Null: it does not wait, or is being written.
  Item* FindWaiting(BlockRef ref);
  // It waits; whether it is to be durable may be news.
  void NoteWanted(const Item& item);
  // The same of one that is being written.
  void NoteWritten(BlockRef ref, uint64_t sequence);
  // True: the block waits already. An older one that had the same ref is settled.
  bool JoinKnown(BlockRef ref, bool renew);
  bool Same(const Item& item) const;
  // Where it is in DRAM, and not too much waits there, it stays; so does one of each tenant always.
  void Hold(Item* item);
  // It waits no more: its hold on DRAM ends.
  void Unhold(Item* item);
  // It is at the tier, or will not get there.
  void Settle(Item item);
  void Requeue(Item item);
  std::map<uint64_t, Item>::iterator NextFlushed(uint64_t sequence);
  bool TakeBudget(int64_t now, const Item& item, uint64_t bytes);
  // What can be done with it now.
  enum class Next : uint8_t { kSettle, kSkip, kLook, kLoad, kWrite };
  Next NextFor(const Item& item) const;
  size_t BatchesAllowed() const;
  void Take(const Item& item, WriteBatch* write);
  std::optional<Item> TakeFromAside(BlockRef ref, uint64_t sequence);
  WriteBatch* TakeBatch();
  void Submit(WriteBatch* write);
  void SubmitLook(const std::vector<Item>& items);
  void OnLooked(LookBatch* look);
  void OnDone(WriteBatch* write);
  void OnWritten(WriteBatch* write, size_t i);
  void OnStored(const Item& item, const WriteOp& op);
  void OnQuiescent(WriteBatch* write, size_t i);
  void EraseIfDeleted(BlockRef ref, const BlockId& id);
  void Recycle(WriteBatch* write);
  void ReleaseSomeHolds();
  void Pause(const Status& why);
  void PumpAt(int64_t nanos);
  FlushWaits::Id AddFlush(uint16_t of, FlushWaits::Wait wait);
  void CheckFlushesLater();
  void CheckFlushes();
  Status LostSinceLastFlush(uint16_t tenant, uint32_t client);
  void CheckBarriers();
  void CheckBarriersLater();

  DurableWriterParts parts_;
  WriteBudget budget_;
  std::map<uint64_t, Item> queue_;  // By sequence.
  std::map<BlockRef, Item> aside_;  // Being looked for, or on their way from NVMe to DRAM.
  size_t loading_ = 0;              // Of those, the latter.
  std::map<BlockRef, uint64_t> sequence_of_;  // Of everything that is not settled.
  // The same by sequence, of what is to be durable: since when it waits.
  std::map<uint64_t, int64_t> since_;
  std::map<uint16_t, size_t> wanted_of_;  // How many of those each tenant has.
  Unwritten unwritten_;
  std::vector<std::unique_ptr<WriteBatch>> batches_;
  std::map<LookBatch*, std::unique_ptr<LookBatch>> looks_;  // lookup only: never walked
  uint64_t next_batch_ = 1;
  uint64_t held_bytes_ = 0;
  std::vector<uint64_t> held_by_;  // By tenant.
  int64_t paused_until_nanos_ = 0;
  int64_t timer_nanos_ = INT64_MAX;
  uint64_t pump_from_ = 0;
  uint64_t release_cursor_ = 0;  // Up to here holds are released.
  bool releasing_ = false;
  bool pumping_ = false;
  FlushWaits flushes_;
  TaskScope::Once flush_check_;
  Barriers barriers_;
  TaskScope::Once barrier_check_;
  Losses losses_;
  std::vector<uint64_t> hung_;  // By tenant: writes that the store holds on to.
  DurableWriterStats stats_;
  Status last_failure_;
  TaskScope tasks_{parts_.executor};
};

}  // namespace aquifer
