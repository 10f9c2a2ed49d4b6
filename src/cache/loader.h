// Brings blocks from NVMe to DRAM. Several requests that want the same block share one read. A
// block that nobody waits for any more still arrives: it stays in DRAM as if it had been asked for.
//
// A read needs a slot first. Where none can be had the load waits for one, at most until the last
// deadline of those that want it.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "cache/residency.h"
#include "metrics/time_histogram.h"
#include "policy/tier_speed.h"
#include "tier/tier.h"

namespace aquifer {

// Whoever waits for a block. It outlives the loader, or lasts until it does not wait any more.
class LoadWaiter {
 public:
  // Whether it still wants what it asked for in its `run`: to stop waiting it need only say no.
  virtual bool Waits(uint64_t run) const = 0;
  // At most once for each Load(), and only while it waits. With ok the block is in DRAM now; lease
  // it before returning.
  virtual void OnLoaded(size_t op, BlockRef ref, const Status& status) = 0;

 protected:
  ~LoadWaiter() = default;
};

// Who wants a block, and as what.
struct LoadTicket {
  LoadWaiter* waiter = nullptr;
  uint64_t run = 0;
  size_t op = 0;
};

struct LoaderStats {
  uint64_t loads = 0;         // Blocks that arrived.
  uint64_t shared_loads = 0;  // Requests that joined a read under way.
  uint64_t failed_loads = 0;
  uint64_t late_loads = 0;
  uint64_t loaded_bytes = 0;
  TimeHistogram wait;  // Until a read is handed to the tier.
  TimeHistogram load;  // Until the block is in DRAM.
};

class Loader {
 public:
  Loader(Residency* residency, TierSpeed* speed, Executor* executor, Clock* clock);
  ~Loader();

  // The tier to read from; null while there is none.
  void SetSource(Tier* source) { source_ = source; }

  // `ref` is on NVMe and not in DRAM. Nothing is read before Pump().
  void Load(BlockRef ref, int64_t deadline_nanos, const LoadTicket& ticket);

  // Starts what can be started, a slice at a time. Call after Load(), and whenever a slot may have
  // become free.
  void Pump();

  const LoaderStats& stats() const { return stats_; }
  // Loads that have not arrived.
  size_t pending() const { return pending_; }

 private:
  struct OneLoad {
    BlockRef ref = kNoBlock;
    SlotId slot = kNoSlot;
    int64_t asked_nanos = 0;
    int64_t deadline_nanos = 0;
    std::vector<LoadTicket> waiters;
  };
  struct ReadBatch {
    Batch<ReadOp> batch;
    std::vector<uint32_t> loads;
    std::vector<uint16_t> tenants;  // Of the slots that are still being read into.
    std::vector<SlotId> slots;
    size_t unquiet = 0;  // Operations whose slot the device may still write to.
    int64_t submitted_nanos = 0;
    uint64_t queued_bytes = 0;
    uint64_t bytes = 0;
  };

  // The load's number is in the entry's owner data, plus one.
  uint32_t NewLoad(BlockRef ref);
  void Finish(uint32_t load, const Status& status);
  bool Wanted(const OneLoad& load) const;
  void PumpSlice();
  Status TakeSlot(OneLoad* load);
  ReadBatch* TakeBatch();
  void Submit(ReadBatch* read);
  void OnDone(ReadBatch* read);
  void OnRead(ReadBatch* read, size_t i);
  void OnQuiescent(ReadBatch* read, size_t i);
  void Recycle(ReadBatch* read);
  void RetrySoon();

  Residency* const residency_;
  TierSpeed* const speed_;
  Executor* const executor_;
  Clock* const clock_;
  Tier* source_ = nullptr;
  std::deque<OneLoad> loads_;  // Grows without moving what is there.
  std::vector<uint32_t> free_loads_;
  std::deque<uint32_t> queue_;  // Loads without a slot, in the order asked for.
  std::vector<std::unique_ptr<ReadBatch>> batches_;
  std::vector<ReadBatch*> free_batches_;
  size_t pending_ = 0;
  bool retry_posted_ = false;
  bool again_posted_ = false;
  bool tier_busy_ = false;  // Its queue was full: it is asked again with the next retry.
  size_t in_flight_batches_ = 0;
  bool pumping_ = false;
  LoaderStats stats_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // Timers outlive nobody.
};

}  // namespace aquifer
