// Brings blocks from NVMe to DRAM. Several requests that want the same block
// share one read. A block that nobody waits for any more still arrives: it
// stays in DRAM as if it had been asked for.
//
// A read needs a slot first. Where none can be had the load waits for one, at
// most until the last deadline of those that want it. Loads wait in lanes, one
// for each drive, tenant and size of slot: what has to wait holds up only those
// who need the very same. For that reason a batch goes to one drive, and a
// drive has only its share of the batches under way.
//
// A read that is late may hang for long, and its slot with it. Its block is not
// read a second time before it has ended: who asks meanwhile waits for that.
// And what is being read, or hangs, never takes more than a part of memory, of
// which each drive has its share.
//
// A block may be waited for by thousands. They are told a slice at a time; who
// has left by then, or leaves while it loads, is forgotten little by little as
// others join.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "aquifer/checksum.h"
#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/task_scope.h"
#include "cache/residency/linked_queue.h"
#include "cache/residency/residency.h"
#include "metrics/time_histogram.h"
#include "policy/cost/tier_speed.h"
#include "tier/tier.h"

namespace aquifer {

// Whoever waits for a block. It outlives the loader, or lasts until it does not
// wait any more.
class LoadWaiter {
 public:
  // Whether it still wants what it asked for in its `run`: to stop waiting it
  // need only say no.
  virtual bool Waits(uint64_t run) const = 0;
  // At most once for each Load(), and only while it waits. With ok the block is
  // in DRAM now; lease it before returning.
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
  // At most `max_bytes` of slots are being read into, or wait for a read that
  // hangs; but for one block a drive.
  Loader(Residency* residency, TierSpeed* speed, Executor* executor, Clock* clock,
         uint64_t max_bytes);

  // The tier to read from; null while there is none.
  void SetSource(Tier* source) { source_ = source; }

  // `ref` is on NVMe and not in DRAM. Nothing is read before Pump().
  void Load(BlockRef ref, int64_t deadline_nanos, const LoadTicket& ticket);

  // Starts what can be started, a slice at a time. Call after Load(), and
  // whenever a slot may have become free.
  void Pump();

  const LoaderStats& stats() const { return stats_; }
  // Loads that have not arrived.
  size_t pending() const { return pending_; }

 private:
  struct Lane;
  struct Waiting {
    LoadTicket ticket;
    Waiting* next = nullptr;  // Of the same load, or of those that are free.
  };
  struct OneLoad {
    uint32_t number = 0;  // In loads_.
    BlockRef ref = kNoBlock;
    SlotId slot = kNoSlot;
    Checksum checksum;  // What NVMe had of it when its read began.
    int64_t asked_nanos = 0;
    int64_t deadline_nanos = 0;
    LinkedQueue<Waiting> waiters;
    Waiting* looked_at = nullptr;  // Of those, the last that was found to wait; null: none so far.
    bool queued = false;           // In its lane.
    bool reading = false;          // In a batch.
    size_t telling = 0;            // How often it is in telling_.
    bool stuck = false;            // It was late, and its drive still reads.
    Lane* lane = nullptr;
    OneLoad* next = nullptr;  // In its lane, or of those that are free.
  };
  // Loads that wait for a slot of the same kind and for the same drive, in the
  // order asked for.
  struct Lane {
    uint32_t device = 0;
    LinkedQueue<OneLoad> loads;
    bool queued = false;  // In ready_ or aside_.
    Lane* next = nullptr;
  };
  // Those whom a slice left to be told.
  struct Telling {
    OneLoad* load = nullptr;
    LinkedQueue<Waiting> waiters;
    Status status;
  };
  struct ReadBatch {
    Batch<ReadOp> batch;
    uint32_t device = 0;
    std::vector<OneLoad*> loads;
    std::vector<uint16_t> tenants;  // Of the slots that are still being read into.
    std::vector<SlotId> slots;
    size_t unquiet = 0;  // Operations whose slot the device may still write to.
    int64_t submitted_nanos = 0;
    uint64_t queued_bytes = 0;
    uint64_t bytes = 0;
  };
  struct Device {
    ReadBatch* filling = nullptr;  // Only within a slice.
    size_t batches = 0;            // Under way.
    uint64_t bytes = 0;            // Of slots that it reads into, hanging or not.
  };
  // What became of a lane's turn.
  enum class Turn : uint8_t {
    kTaken,    // The next of its loads may have one.
    kNoSlot,   // None is to be had now.
    kNoPlace,  // Its drive has enough to do.
  };

  // The load's number is in the entry's owner data, plus one.
  OneLoad* NewLoad(BlockRef ref);
  Lane* LaneOf(BlockRef ref);
  void Queue(OneLoad* load);
  void QueueFirst(OneLoad* load);
  void Join(OneLoad* load, const LoadTicket& ticket);
  void LookAtNextWaiter(OneLoad* load);
  // False: there are more to be told than this task may.
  bool Tell(OneLoad* load, LinkedQueue<Waiting>* waiters, const Status& status);
  void TellLater(OneLoad* load, LinkedQueue<Waiting>* waiters, const Status& status);
  void TellMoreLater();
  void TellSlice();
  // It is in nobody's hands: it goes on if somebody waits for it.
  void GoOnOrForget(OneLoad* load);
  void Settle(OneLoad* load, const Status& status);
  void LookAtStuck(OneLoad* load);
  void LookAtSomeStuck();
  bool Wanted(OneLoad* load);
  void PumpSlice();
  Turn StartOne(Lane* lane);
  bool HasPlace(const Device& device, uint64_t bytes) const;
  Status TakeSlot(OneLoad* load);
  void AddToBatch(OneLoad* load);
  ReadBatch* TakeBatch();
  void Submit(ReadBatch* read);
  void OnDone(ReadBatch* read);
  void OnRead(ReadBatch* read, size_t i);
  void EndReading(ReadBatch* read, size_t i);
  void FreeSlot(ReadBatch* read, size_t i);
  void OnQuiescent(ReadBatch* read, size_t i);
  void Recycle(ReadBatch* read);
  void RetrySoon();

  Residency* const residency_;
  TierSpeed* const speed_;
  Executor* const executor_;
  Clock* const clock_;
  const uint64_t max_bytes_;
  Tier* source_ = nullptr;
  std::deque<OneLoad> loads_;  // Grows without moving what is there.
  LinkedQueue<OneLoad> free_loads_;
  std::deque<Waiting> waiting_;  // The same.
  LinkedQueue<Waiting> free_waiting_;
  std::deque<Telling> telling_;
  size_t tells_left_ = 0;  // In this task.
  // By drive, tenant and bytes. As few as there are pools of slots at each
  // drive, and kept as those are.
  std::map<std::tuple<uint32_t, uint16_t, uint64_t>, Lane> lanes_;
  LinkedQueue<Lane> ready_;               // They take turns.
  LinkedQueue<Lane> aside_;               // They had theirs in vain, until somebody pumps again.
  std::vector<Device> devices_;           // As far as they have been heard of.
  std::map<uint16_t, uint64_t> reading_;  // By tenant: slots that are read into, hanging or not.
  std::set<uint32_t> stuck_;              // The numbers of stuck loads that somebody waits for.
  uint32_t stuck_cursor_ = 0;             // The next of them to look at.
  std::vector<std::unique_ptr<ReadBatch>> batches_;
  std::vector<ReadBatch*> free_batches_;
  size_t pending_ = 0;
  TaskScope::Once retry_;
  TaskScope::Once again_;
  TaskScope::Once tell_;
  bool tier_busy_ = false;  // Its queue was full: it is asked again with the next retry.
  bool pumping_ = false;
  LoaderStats stats_;
  TaskScope tasks_{executor_};
};

}  // namespace aquifer
