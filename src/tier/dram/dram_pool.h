// Host memory: extents cut into slots, which the cache lends to engines without a copy. The pool
// knows which slots are taken, and of which block; what blocks are worth is for others to know.
//
// An extent belongs to one tenant for its whole life and holds slots of one size; a slot is a
// block's bytes rounded up to 4 KiB and never spans two extents. Capacity moves between tenants and
// sizes by whole extents: the cache retires one, moves or drops its blocks, and when the last slot
// is free the extent is closed and a fresh one may be made for somebody else.
//
// Extents are made and destroyed on workers, because both take milliseconds, and counted against
// the capacity from before the one until after the other. The pool's size is capped by
// `capacity_bytes` and, at every moment, by what the host and its cgroup can spare. At any time an
// extent is
//
//   being made -> ready (nobody's) -> assigned (a tenant's, for life) -> retired -> being destroyed
//
// An assigned extent is retired by the cache, which knows what its blocks are worth. One without a
// taken slot is worth nothing: the pool retires it itself when somebody else wants the room. A
// retired extent without a slot that other processes have mapped is asked back, and destroyed when
// the last of them has let go.
//
// Everything runs on the cache's executor; the pool has no lock. After construction nothing on the
// slot path allocates.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/executor.h"
#include "block/block_id.h"
#include "io/memory/extent.h"
#include "tier/index_table.h"

namespace aquifer {

struct DramPoolOptions {
  uint64_t capacity_bytes = 0;  // At least one extent.
  uint64_t extent_bytes = uint64_t{64} << 20;
  uint64_t keep_available_bytes = uint64_t{512} << 20;  // Left to the rest of the host.
  // Extents kept faulted in and ready ahead of need; UINT32_MAX: as many as the capacity allows.
  uint32_t ready_extents = 2;
  // The host's cores. The first extents of a large stock are made at once, and the others at a pace
  // that takes a thirty-second of the cores from what else runs there. 0: all at once.
  uint32_t paced_by_cores = 0;
  const Clock* pace_clock = nullptr;  // Says how long an extent took to make. Null: no time.
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

class DramPool {
 public:
  static Status Validate(const DramPoolOptions& options);

  // The options are valid. Makes nothing before the first Tick() or Allocate(). All outlive the
  // pool, the executor its workers' tasks too.
  DramPool(const DramPoolOptions& options, ExtentSource* source, WorkerPool* workers,
           Executor* executor);
  // What others have mapped keeps its contents: they may still be reading.
  ~DramPool();

  // --- Slots

  // A free slot of at least `bytes`. kNoSpace: the tenant has none and no extent can be had; evict
  // or retire something. kBusy: an extent is being faulted in; ask again soon.
  Result<SlotId> Allocate(const TenantId& tenant, uint64_t bytes);
  // The same from the extents that the tenant has: kNoSpace when those are full.
  Result<SlotId> AllocateOwned(const TenantId& tenant, uint64_t bytes);
  // How many those are, with the retired ones that are not closed yet.
  uint32_t ExtentsOf(const TenantId& tenant) const;

  // Valid while the slot is allocated.
  std::span<std::byte> SlotBytes(SlotId slot);
  uint32_t SlotExtent(SlotId slot) const { return extents_[IndexOf(slot)].name; }
  SlotPlace PlaceOf(SlotId slot) const;

  // The slot now holds a block: `bytes` of this tenant's, by the number that the caller knows the
  // block by.
  void Publish(SlotId slot, const TenantId& tenant, uint64_t bytes, uint32_t block);
  // It does no longer; the slot stays allocated to whoever still uses it.
  void Retract(SlotId slot);

  // Marks an allocated, unpublished slot whose memory someone may still touch. Counted and charged
  // until it is freed.
  void Quarantine(SlotId slot);
  // Gives the slot back; it must not be published. The last slot of a retired extent closes it.
  void Free(SlotId slot);

  // --- Extents

  // The assigned ones, in the order they were made.
  std::vector<ExtentInfo> Extents() const;
  // No slots: it is closed.
  ExtentInfo ExtentOf(uint32_t extent) const;
  // Calls `visit(slot, block)` for those of slots [begin, end) of an extent that are published, in
  // order. `visit` changes nothing here. Returns true if the extent has more slots.
  template <class Visit>
  bool VisitSlots(uint32_t extent, uint32_t begin, uint32_t end, Visit visit) const;
  // No slot of it is allocated any more; an empty one closes at once, unless it is mapped.
  void Retire(uint32_t extent);

  // Another process has the extent mapped, or has unmapped it. What is mapped is not closed:
  // `on_wanted_back` asks for it.
  void AddMapper(uint32_t extent);
  void RemoveMapper(uint32_t extent);

  // How many extents are faulted in ahead of need, from now on.
  void SetReadyExtents(uint32_t count);
  // Called now and then: notices memory pressure and starts faulting in what is wanted. Returns how
  // many bytes of extents must be retired for the pool to fit again.
  uint64_t Tick();
  // Half of how long the host's memory lasts whatever others do: who looks again then, and finds
  // what was known just after he looked the last time, is still in time.
  int64_t EaseNanos() const;

  const DramUsage& usage() const { return usage_; }
  // By name, for metrics and tests, in a fixed order.
  std::vector<std::pair<std::string, uint64_t>> Counters() const;
  // What each slot costs beside the memory that it is.
  static constexpr size_t kRecordBytes = 8;

  // `on_extent(bytes, added)` tells of every extent that is made or about to be closed, so that
  // disks can remember and forget the memory. Set before first use. Not called by the destructor:
  // disks go first.
  std::function<void(std::span<std::byte>, bool)> on_extent;
  // This extent is to be closed, and waits for its mappers. Once for each.
  std::function<void(uint32_t extent)> on_wanted_back;
  // The last mapper of one that was wanted back has returned it.
  std::function<void(uint32_t extent)> on_returned;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // At 10 ms for 64 MiB two workers fault in 13 GB/s; the others stay free for copies.
  static constexpr uint32_t kMaxMaking = 2;
  // So many are kept ready whatever it takes: 512 MiB, 0.14 s of a core in pages of 4 KiB.
  static constexpr uint32_t kReadyAtOnce = 8;
  // The others earn their making at every Tick(): a thirty-second of the time that each core has
  // between two, 50 ms apart. One extent takes 17 ms as a rule, and ten times as long where the
  // kernel must find huge pages first or the host is busy.
  static constexpr int64_t kCreditNanos = 50'000'000 / 32;
  static constexpr int64_t kLeastCostNanos = 16 * kCreditNanos;
  static constexpr int64_t kMostDebtNanos = 1'000'000'000;
  static constexpr uint32_t kFillLevels = 8;
  // Who has not returned an extent by then is stuck: others are asked too.
  static constexpr uint32_t kPatienceTicks = 20;
  static constexpr uint64_t kMostTakenPerNano = 20;  // By all processes of a host, in bytes.

  enum class SlotState : uint8_t {
    kFree = 0,
    kTaken,
    kPublished,    // Taken, and it holds a block.
    kQuarantined,  // Someone may still touch the memory; until Free().
  };
  // What is kept for each slot. All bits zero is a free slot that was never used.
  struct SlotRecord {
    SlotState state;
    uint32_t number;  // While published: the block. While free: the next free slot.
  };
  static_assert(sizeof(SlotRecord) == kRecordBytes);

  struct FreeRecords {
    void operator()(SlotRecord* records) const { std::free(records); }
  };

  struct ReadyExtent {
    uint32_t name = 0;
    std::shared_ptr<Extent> extent;
  };

  struct AssignedExtent {
    uint32_t name = 0;
    std::shared_ptr<Extent> extent;  // Shared: tasks are copied. Null: this place is empty.
    std::byte* memory = nullptr;
    uint32_t shelf = kNone;
    uint64_t slot_bytes = 0;
    uint32_t slots = 0;
    uint32_t used = 0;
    uint32_t touched = 0;         // Slots from here on were not used since it was empty.
    uint32_t first_free = kNone;  // Of those below `touched`.
    bool retired = false;
    uint32_t mappers = 0;          // Other processes that have it mapped.
    uint32_t returning_ticks = 0;  // Since it was asked back; 0: it was not.
    uint32_t level = kNone;        // In which list of its shelf it is; kNone: in none.
    uint32_t next = kNone;
    uint32_t previous = kNone;
    std::unique_ptr<SlotRecord[], FreeRecords> records;
  };

  // The extents of one tenant and slot size. Those with a free slot are in lists by how full they
  // are, in eighths; allocation takes from the fullest list, so that the emptiest extents drain and
  // are cheap to retire.
  struct Shelf {
    TenantId tenant;
    uint64_t slot_bytes = 0;
    uint32_t extents = 0;  // 0: this place is empty.
    std::array<uint32_t, kFillLevels> first{};
  };

  struct PoolCounters {
    uint64_t extents_made = 0;
    uint64_t extents_closed = 0;  // And destroyed.
    uint64_t extents_failed = 0;  // The source had no memory.
    uint64_t extents_short = 0;   // Not tried: the host could not spare the memory.
    uint64_t slots_allocated = 0;
    uint64_t slots_freed = 0;
  };

  uint32_t IndexOf(SlotId slot) const { return slot >> slot_bits_; }
  uint32_t NumberOf(SlotId slot) const { return slot & ((uint32_t{1} << slot_bits_) - 1); }
  SlotId SlotAt(uint32_t index, uint32_t number) const { return index << slot_bits_ | number; }
  const SlotRecord& Record(SlotId slot) const;  // The slot is allocated.
  SlotRecord& Record(SlotId slot) {
    return const_cast<SlotRecord&>(std::as_const(*this).Record(slot));
  }

  uint32_t FindShelf(const TenantId& tenant, uint64_t slot_bytes) const;
  uint32_t MakeShelf(const TenantId& tenant, uint64_t slot_bytes);
  void LeaveShelf(AssignedExtent& extent);
  uint32_t FullestOpen(const Shelf& shelf) const;
  void Relist(uint32_t index);
  void Unlist(AssignedExtent& extent);

  SlotId TakeFrom(uint32_t index);
  uint32_t AssignReady(const TenantId& tenant, uint64_t slot_bytes);
  bool RetireAnEmptyOne(bool huge_pages_too);
  // It is retired and no slot of it is taken.
  void CloseOrAskBack(uint32_t index);
  void CloseAssigned(uint32_t index);
  bool OnTheirWay() const { return making_ > 0 || destroying() > 0 || returning_ > 0; }
  void Destroy(std::shared_ptr<Extent> extent);
  void OnDestroyed();
  void StartMaking();
  bool TakeCredit();
  void Charge(int64_t nanos);
  // Returns true if extents are wanted that only a later Tick() may begin to make.
  bool PacedByTicks() const;
  void OnMade(std::shared_ptr<Extent> extent, bool tried, bool alone, int64_t took_nanos);
  void TellOfExtent(std::span<std::byte> bytes, bool added) {
    if (on_extent) on_extent(bytes, added);
  }
  uint64_t destroying() const { return destroys_begun_ - counters_.extents_closed; }
  void SampleAvailable();
  uint64_t Shortage() const;

  const DramPoolOptions options_;
  ExtentSource* const source_;
  WorkerPool* const workers_;
  Executor* const executor_;
  const uint64_t max_extents_;
  const uint32_t slot_bits_;

  std::vector<AssignedExtent> extents_;   // SlotId's upper bits say where.
  std::vector<uint32_t> empty_places_;    // In extents_.
  std::map<uint32_t, uint32_t> by_name_;  // Extent name to its place, in the order made.
  std::map<TenantId, uint32_t> owned_;    // How many of extents_ each tenant has.
  std::vector<Shelf> shelves_;
  std::vector<uint32_t> empty_shelves_;
  IndexTable shelf_table_;
  std::deque<ReadyExtent> ready_;

  uint32_t next_name_ = 1;
  uint32_t ready_wanted_ = 0;  // How many are made ahead of need.
  uint32_t making_ = 0;
  int64_t credit_nanos_ = 0;  // Left to the making of extents that nobody waits for.
  uint32_t empty_ = 0;        // Assigned, but no slot is taken.
  uint32_t retired_ = 0;      // Still assigned, waiting for their slots or mappers.
  uint32_t returning_ = 0;    // Asked back not long ago.
  bool wanted_ = false;       // An allocation found no extent since the last one was made.
  bool backing_off_ = false;  // Nothing is made until the next Tick() or until memory came back.

  // The last answer of AvailableBytes(). Asked on a worker: it reads kernel files, for 0.3 ms.
  std::optional<uint64_t> available_bytes_;
  uint64_t destroyed_at_sample_ = 0;
  uint64_t destroys_begun_ = 0;
  bool sampling_ = false;

  DramUsage usage_;
  PoolCounters counters_;
  // What workers know before the owner does. Shared with their tasks, which may outlive the pool.
  struct AtWorkers {
    std::atomic<uint64_t> makers = 0;     // At work now, each taking up to an extent.
    std::atomic<uint64_t> destroyed = 0;  // Extents so far.
  };
  const std::shared_ptr<AtWorkers> at_workers_ = std::make_shared<AtWorkers>();
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // Its weak copies guard tasks.
};

Result<std::unique_ptr<DramPool>> NewDramPool(const DramPoolOptions& options, ExtentSource* source,
                                              WorkerPool* workers, Executor* executor);

template <class Visit>
bool DramPool::VisitSlots(uint32_t extent, uint32_t begin, uint32_t end, Visit visit) const {
  const auto found = by_name_.find(extent);
  if (found == by_name_.end()) return false;
  const AssignedExtent& assigned = extents_[found->second];
  for (uint32_t number = begin; number < std::min(end, assigned.touched); ++number) {
    const SlotRecord& record = assigned.records[number];
    if (record.state == SlotState::kPublished) visit(SlotAt(found->second, number), record.number);
  }
  return end < assigned.touched;
}

}  // namespace aquifer
