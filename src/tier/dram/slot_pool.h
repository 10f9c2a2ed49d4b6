// The memory of the DRAM tier: extents, each of one tenant and one slot size, and the slots cut
// from them. It knows who holds a slot and not what lies in it; that is dram_tier.cc's part.
//
// Extents are made and destroyed on workers, because both take milliseconds, and counted against
// the capacity from before the one until after the other. At any time an extent is
//
//   being made -> ready (nobody's) -> assigned (a tenant's, for life) -> retired -> being destroyed
//
// An assigned extent is retired by the cache, which knows what its blocks are worth. One without a
// taken slot is worth nothing: the pool retires it itself when somebody else wants the room. A
// retired extent without a slot that other processes have mapped is asked back, and destroyed when
// the last of them has let go.
//
// Everything runs on the executor; the pool has no lock.
#pragma once

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
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "base/executor.h"
#include "block/block_id.h"
#include "block/block_meta.h"
#include "io/disk/disk.h"
#include "io/memory/extent.h"
#include "tier/dram/dram_tier.h"
#include "tier/index_table.h"

namespace aquifer {

enum class SlotState : uint8_t {
  kFree = 0,
  kTaken,
  kQuarantined,  // Someone may still touch the memory; until Free().
  kLeaving,      // Freed while a copy was using it; until the copy ends.
};

// What is kept for each slot. All bits zero is a free slot that was never used.
struct SlotRecord {
  SlotState state;
  bool published;
  bool written;        // By Tier::Write(): nobody but the tier will free it.
  uint32_t pins;       // Copies on workers that use the memory.
  uint32_t next_free;  // While free.
  uint64_t sequence;   // Counts publications; while published.
  BlockMeta meta;      // While published.
};

struct SlotPoolCounters {
  uint64_t extents_made = 0;
  uint64_t extents_closed = 0;  // And destroyed.
  uint64_t extents_failed = 0;  // The source had no memory.
  uint64_t extents_short = 0;   // Not tried: the host could not spare the memory.
  uint64_t slots_allocated = 0;
  uint64_t slots_freed = 0;
  uint64_t frees_deferred = 0;  // Freed while a copy was using the slot.
};

class SlotPool {
 public:
  // Not told of extents that go with the pool itself: who listens may be gone by then.
  using OnExtent = std::function<void(std::span<std::byte>, bool added)>;
  using OnWantedBack = std::function<void(uint32_t extent)>;
  using OnReturned = std::function<void(uint32_t extent)>;

  static Status Validate(const DramTierOptions& options);

  // Makes nothing before the first Tick() or Allocate().
  SlotPool(const DramTierOptions& options, ExtentSource* source, WorkerPool* workers,
           Executor* executor, OnExtent on_extent, OnWantedBack on_wanted_back,
           OnReturned on_returned);
  // What others have mapped keeps its contents: they may still be reading.
  ~SlotPool();

  Result<SlotId> Allocate(const TenantId& tenant, uint64_t bytes);
  Result<SlotId> AllocateOwned(const TenantId& tenant, uint64_t bytes);
  uint32_t ExtentsOf(const TenantId& tenant) const;
  void Quarantine(SlotId slot);
  void Free(SlotId slot);  // Takes effect when the last pin goes.

  // While pinned, the slot's memory is not handed to anybody else.
  void Pin(SlotId slot);
  void Unpin(SlotId slot);

  std::span<std::byte> Bytes(SlotId slot);
  const SlotRecord& Record(SlotId slot) const;  // The slot is allocated.
  SlotRecord& Record(SlotId slot) {
    return const_cast<SlotRecord&>(std::as_const(*this).Record(slot));
  }
  uint32_t ExtentOf(SlotId slot) const { return extents_[IndexOf(slot)].name; }
  bool ExtentRetired(SlotId slot) const { return extents_[IndexOf(slot)].retired; }
  const TenantId& TenantOf(SlotId slot) const;
  // Keeps the mapping alive while a worker uses it, even if the pool goes first.
  std::shared_ptr<Extent> Keep(SlotId slot) const { return extents_[IndexOf(slot)].extent; }

  // Slots of the assigned extents together: how many blocks there can be.
  uint64_t total_slots() const { return total_slots_; }

  std::vector<ExtentInfo> Extents() const;   // Assigned ones.
  ExtentInfo InfoOf(uint32_t extent) const;  // No slots: it is closed.
  // Calls `visit(slot, record)` for those of slots [begin, end) of an extent that are published, in
  // order. False: it has no more slots.
  template <class Visit>
  bool VisitPublished(uint32_t extent, uint32_t begin, uint32_t end, Visit visit) const;
  void Retire(uint32_t extent);
  SlotPlace PlaceOf(SlotId slot) const;
  void AddMapper(uint32_t extent);
  void RemoveMapper(uint32_t extent);

  void SetReadyExtents(uint32_t count);
  uint64_t Tick();
  int64_t EaseNanos() const;

  const DramUsage& usage() const { return usage_; }
  const SlotPoolCounters& counters() const { return counters_; }

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

  struct FreeRecords {
    void operator()(SlotRecord* records) const { std::free(records); }
  };

  struct ReadyExtent {
    uint32_t name = 0;
    std::shared_ptr<Extent> extent;
  };

  struct AssignedExtent {
    uint32_t name = 0;
    std::shared_ptr<Extent> extent;  // Shared with copies on workers. Null: this place is empty.
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

  uint32_t IndexOf(SlotId slot) const { return slot >> slot_bits_; }
  uint32_t NumberOf(SlotId slot) const { return slot & ((uint32_t{1} << slot_bits_) - 1); }
  SlotId SlotAt(uint32_t index, uint32_t number) const { return index << slot_bits_ | number; }

  uint32_t FindShelf(const TenantId& tenant, uint64_t slot_bytes) const;
  uint32_t MakeShelf(const TenantId& tenant, uint64_t slot_bytes);
  void LeaveShelf(AssignedExtent& extent);
  uint32_t FullestOpen(const Shelf& shelf) const;
  void Relist(uint32_t index);
  void Unlist(AssignedExtent& extent);

  SlotId TakeFrom(uint32_t index);
  uint32_t AssignReady(const TenantId& tenant, uint64_t slot_bytes);
  void FreeNow(SlotId slot);
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
  uint64_t destroying() const { return destroys_begun_ - counters_.extents_closed; }
  void SampleAvailable();
  uint64_t Shortage() const;

  const DramTierOptions options_;
  ExtentSource* const source_;
  WorkerPool* const workers_;
  Executor* const executor_;  // Outlives the pool and the workers' tasks.
  const OnExtent on_extent_;
  const OnWantedBack on_wanted_back_;
  const OnReturned on_returned_;
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
  uint64_t total_slots_ = 0;

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
  SlotPoolCounters counters_;
  // What workers know before the owner does. Shared with their tasks, which may outlive the pool.
  struct AtWorkers {
    std::atomic<uint64_t> makers = 0;     // At work now, each taking up to an extent.
    std::atomic<uint64_t> destroyed = 0;  // Extents so far.
  };
  const std::shared_ptr<AtWorkers> at_workers_ = std::make_shared<AtWorkers>();
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // Its weak copies guard tasks.
};

template <class Visit>
bool SlotPool::VisitPublished(uint32_t extent, uint32_t begin, uint32_t end, Visit visit) const {
  const auto found = by_name_.find(extent);
  if (found == by_name_.end()) return false;
  const AssignedExtent& assigned = extents_[found->second];
  for (uint32_t number = begin; number < std::min(end, assigned.touched); ++number) {
    const SlotRecord& record = assigned.records[number];
    if (record.published) visit(SlotAt(found->second, number), record);
  }
  return end < assigned.touched;
}

}  // namespace aquifer
