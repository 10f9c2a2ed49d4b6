// Brings blocks from one durable tier to DRAM. Nobody here knows such a block: it gets its entry in
// the index when its bytes have come, with what the tier says of it. Several requests that want the
// same block share one read; one that nobody waits for any more still arrives.
//
// A read needs a slot first. Where none can be had the load waits for one, at most until the last
// deadline of those that want it; a tenant that has to wait holds up nobody else's loads.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/task_scope.h"
#include "cache/residency/catalog.h"
#include "cache/residency/residency.h"
#include "cache/transfer/loader.h"
#include "cache/transfer/presence.h"
#include "policy/cost/tier_speed.h"
#include "tier/durable/durable_tier.h"

namespace aquifer {

// A block as a request names it, and the layout that it must have.
struct WantedBlock {
  BlockName name;
  uint16_t layout = 0;
};

struct DurableLoaderParts {
  DurableTier* tier = nullptr;
  uint8_t number = 0;  // Of the tier.
  Residency* residency = nullptr;
  Catalog* catalog = nullptr;
  Presence* presence = nullptr;
  Executor* executor = nullptr;
  Clock* clock = nullptr;
  uint64_t max_bytes = 0;  // Of slots that are being read into, or wait for a read that hangs.
  // Called with each block that has arrived in DRAM and that NVMe does not have.
  std::function<void(BlockRef)> on_arrived;
};

class DurableLoader {
 public:
  explicit DurableLoader(const DurableLoaderParts& parts);

  // Nothing is read before Pump(). The ticket is answered once, never from inside.
  void Load(const WantedBlock& block, int64_t deadline_nanos, const LoadTicket& ticket);
  void Pump();
  // The block is deleted: what is being read of it is not to arrive.
  void Forget(const BlockId& id);
  // The same with all of the tenant's.
  void ForgetTenant(const TenantId& tenant);

  // Nobody may ask the tier any more.
  void Close() { parts_.tier = nullptr; }

  const LoaderStats& stats() const { return stats_; }
  const TierSpeed& speed() const { return speed_; }
  size_t pending() const { return loads_.size(); }

 private:
  struct OneLoad {
    BlockId id;
    WantedBlock block;
    uint64_t bytes = 0;  // Of the slot.
    int64_t asked_nanos = 0;
    int64_t deadline_nanos = 0;
    std::vector<LoadTicket> waiters;
    bool reading = false;
    bool forgotten = false;
    bool stuck = false;  // It was late, and the store still writes to its slot.
  };
  struct ReadBatch {
    Batch<ReadOp> batch;
    std::vector<BlockMeta> metas;  // As long as the batch can be.
    std::vector<BlockId> ids;
    std::vector<uint16_t> tenants;
    std::vector<SlotId> slots;
    size_t unquiet = 0;
    int64_t submitted_nanos = 0;
    uint64_t queued_bytes = 0;
    uint64_t bytes = 0;
  };

  bool Wanted(OneLoad* load);
  // What became of a load's turn.
  enum class Turn : uint8_t { kEnded, kReading, kNoSlot };
  Turn StartOne(OneLoad* load);
  ReadBatch* TakeBatch();
  void Submit(ReadBatch* read);
  void OnDone(ReadBatch* read);
  void OnRead(ReadBatch* read, size_t i);
  void OnQuiescent(ReadBatch* read, size_t i);
  void FreeSlot(ReadBatch* read, size_t i);
  void Recycle(ReadBatch* read);
  // The block's bytes have come. `*used`: the slot is the block's now; else it is still the
  // caller's.
  Result<BlockRef> Arrive(const OneLoad& load, const BlockMeta& meta, SlotId slot, bool* used);
  Status CheckMeta(const OneLoad& load, const BlockMeta& meta) const;
  void Settle(const BlockId& id, BlockRef ref, const Status& status);
  void RetrySoon();

  DurableLoaderParts parts_;
  TierSpeed speed_;
  std::map<BlockId, OneLoad> loads_;
  std::deque<BlockId> queue_;  // In the order asked for: chains from their roots on.
  std::vector<std::unique_ptr<ReadBatch>> batches_;
  std::vector<ReadBatch*> free_batches_;
  ReadBatch* filling_ = nullptr;  // Only within a slice.
  size_t reading_ops_ = 0;
  uint64_t reading_bytes_ = 0;  // Hanging or not.
  bool pumping_ = false;
  TaskScope::Once retry_;
  TaskScope::Once again_;
  int64_t busy_until_nanos_ = 0;  // The tier's queue was full.
  LoaderStats stats_;
  TaskScope tasks_{parts_.executor};
};

}  // namespace aquifer
