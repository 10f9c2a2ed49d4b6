// Host memory: extents cut into slots. Beside the Tier interface, which copies, it hands out the
// slots themselves, so that the cache can lend them to engines without a copy.
//
// An extent belongs to one tenant for its whole life and holds slots of one size; a slot is a
// block's bytes rounded up to 4 KiB and never spans two extents. Capacity moves between tenants and
// sizes by whole extents: the cache retires one, moves or drops its blocks, and when the last slot
// is free the extent is closed and a fresh one may be made for somebody else.
//
// Extents are faulted in on workers before they are used. The pool's size is capped by
// `capacity_bytes` and, at every moment, by what the host and its cgroup can spare.
//
// Runs on the cache's executor only. After construction nothing on the slot path allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "block/block_id.h"
#include "io/memory/extent.h"
#include "tier/tier.h"

namespace aquifer {

struct DramTierOptions {
  uint64_t capacity_bytes = 0;  // At least one extent.
  uint64_t extent_bytes = uint64_t{64} << 20;
  uint64_t keep_available_bytes = uint64_t{512} << 20;  // Left to the rest of the host.
  // Extents kept faulted in and ready ahead of need; UINT32_MAX: as many as the capacity allows.
  uint32_t ready_extents = 2;
  // The host's cores. The first extents of a large stock are made at once, and the others at a pace
  // that takes a thirty-second of the cores from what else runs there. 0: all at once.
  uint32_t paced_by_cores = 0;
  const Clock* pace_clock = nullptr;  // Says how long an extent took to make. Null: no time.
  uint32_t max_queued_ops = 4096;     // For Read() and Write().
  uint64_t hash_seed = 0;             // Nobody else's to know.
};

// Names a slot of the pool; small and dense enough to be kept in the index.
using SlotId = uint32_t;
inline constexpr SlotId kNoSlot = UINT32_MAX;

struct ExtentInfo {
  uint32_t extent = 0;  // Names it; not reused while the process lives.
  TenantId tenant;
  uint64_t slot_bytes = 0;
  uint32_t slots = 0;
  uint32_t used_slots = 0;
  bool retired = false;
  uint64_t bytes = 0;
  int descriptor = -1;  // To pass to the owner's connections.
};

struct SlotPlace {
  uint32_t extent = 0;
  uint64_t offset = 0;
};

struct DramUsage {
  uint64_t extent_bytes = 0;       // Memory taken by all extents, ready ones included.
  uint64_t making_bytes = 0;       // Of those, in extents that are being faulted in.
  uint64_t slot_bytes = 0;         // In slots that are taken.
  uint64_t quarantined_bytes = 0;  // Of those, in quarantine.
};

class DramTier : public Tier {
 public:
  // A free slot of at least `bytes`. kNoSpace: the tenant has none and no extent can be had; evict
  // or retire something. kBusy: an extent is being faulted in; ask again soon.
  virtual Result<SlotId> Allocate(const TenantId& tenant, uint64_t bytes) = 0;

  // The same from the extents that the tenant has: kNoSpace when those are full.
  virtual Result<SlotId> AllocateOwned(const TenantId& tenant, uint64_t bytes) = 0;
  // How many those are, with the retired ones that are not closed yet.
  virtual uint32_t ExtentsOf(const TenantId& tenant) const = 0;

  // Valid while the slot is allocated.
  virtual std::span<std::byte> SlotBytes(SlotId slot) = 0;
  virtual uint32_t SlotExtent(SlotId slot) const = 0;

  // The slot now holds this block: the Tier interface sees it from here on.
  virtual void Publish(SlotId slot, const BlockMeta& meta) = 0;
  // It is seen no longer; the slot stays allocated to whoever still uses it.
  virtual void Retract(SlotId slot) = 0;
  virtual SlotId Find(const BlockId& id) const = 0;

  // Marks an allocated, unpublished slot whose memory someone may still touch. Counted and charged
  // until it is freed.
  virtual void Quarantine(SlotId slot) = 0;

  // Gives the slot back; it must not be published. The last slot of a retired extent closes it.
  virtual void Free(SlotId slot) = 0;

  // Extents in the order they were made.
  virtual std::vector<ExtentInfo> Extents() const = 0;
  // No slots: it is closed.
  virtual ExtentInfo ExtentOf(uint32_t extent) const = 0;
  // The blocks that are published in slots [begin, end) of an extent; false: it has no more slots.
  virtual bool VisitSlots(uint32_t extent, uint32_t begin, uint32_t end,
                          const std::function<void(SlotId, const BlockId&)>& visit) const = 0;
  // No slot of it is allocated any more; an empty one closes at once, unless it is mapped.
  virtual void Retire(uint32_t extent) = 0;

  virtual SlotPlace PlaceOf(SlotId slot) const = 0;
  // Another process has the extent mapped, or has unmapped it. What is mapped is not closed:
  // `on_wanted_back` asks for it.
  virtual void AddMapper(uint32_t extent) = 0;
  virtual void RemoveMapper(uint32_t extent) = 0;

  // How many extents are faulted in ahead of need, from now on.
  virtual void SetReadyExtents(uint32_t count) = 0;
  // Called now and then: notices memory pressure and starts faulting in what is wanted. Returns how
  // many bytes of extents must be retired for the pool to fit again.
  virtual uint64_t Tick() = 0;
  // Half of how long the host's memory lasts whatever others do: who looks again then, and finds
  // what was known just after he looked the last time, is still in time.
  virtual int64_t EaseNanos() const = 0;

  virtual DramUsage dram_usage() const = 0;

  // `on_extent(bytes, added)` tells of every extent that is made or about to be closed, so that
  // disks can remember and forget the memory. Set before first use. Not called by the destructor:
  // disks go first.
  std::function<void(std::span<std::byte>, bool)> on_extent;
  // This extent is to be closed, and waits for its mappers. Once for each.
  std::function<void(uint32_t extent)> on_wanted_back;
  // The last mapper of one that was wanted back has returned it.
  std::function<void(uint32_t extent)> on_returned;
};

Result<std::unique_ptr<DramTier>> NewDramTier(const DramTierOptions& options, ExtentSource* source,
                                              WorkerPool* workers, Executor* executor,
                                              Clock* clock);

}  // namespace aquifer
