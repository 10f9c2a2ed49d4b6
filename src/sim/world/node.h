// One simulated node: the real cache (core, index, policy, tiers, the NVMe log down to its Disk
// interface, durable tiers down to their BlobStore interface) on simulated time, drives, stores and
// memory. It can be crashed at any step; what its drives and stores hold outlives it. Several of
// these run on one Scheduler and share stores; there is no network between them yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/core.h"
#include "sim/world/lanes.h"
#include "sim/world/scheduler.h"
#include "sim/world/shared_stores.h"
#include "testing/memory_disk.h"
#include "testing/memory_extents.h"
#include "testing/seeded_random.h"

namespace aquifer {

struct SimulatedNodeOptions {
  CoreOptions core;
  MemoryDiskOptions disk;            // Its random is the node's own.
  bool reorder_until_sync = false;   // What a power loss finds unsynced may be lost in any order.
  int64_t owner_task_nanos = 2'000;  // At most so long each.
  int64_t worker_task_nanos = 20'000;
  uint64_t available_bytes = uint64_t{1} << 30;  // Of the host's memory.
  uint64_t seed = 1;
  uint32_t number = 0;              // Of several nodes.
  int64_t clock_ahead_seconds = 0;  // Of the calendar that the stores go by.
};

// A host's clocks: its calendar may be ahead of the others' or behind.
class HostClock final : public Clock {
 public:
  HostClock(const Clock* common, int64_t ahead_seconds)
      : common_(common), ahead_micros_(ahead_seconds * 1'000'000) {}

  int64_t NowNanos() const override { return common_->NowNanos(); }
  int64_t UnixMicros() const override { return common_->UnixMicros() + ahead_micros_; }
  void Shift(int64_t seconds) { ahead_micros_ += seconds * 1'000'000; }

 private:
  const Clock* const common_;
  int64_t ahead_micros_;
};

enum class Death : uint8_t { kProcess, kPower };

class SimulatedNode {
 public:
  // `stores` may be null, and outlives it.
  SimulatedNode(const SimulatedNodeOptions& options, Scheduler* scheduler,
                SharedStores* stores = nullptr);
  ~SimulatedNode();
  SimulatedNode(const SimulatedNode&) = delete;
  SimulatedNode& operator=(const SimulatedNode&) = delete;

  // Opens the cache; `on_ready` when it serves.
  void Start(std::function<void()> on_ready);
  // Nothing of it runs any more, and nothing it was told in this life is ever answered. Returns how
  // many requests were at the drives.
  uint64_t Die(Death death);
  bool alive() const { return core_ != nullptr; }
  bool ready() const { return ready_; }
  uint32_t life() const { return life_; }  // Counts starts.
  uint32_t number() const { return options_.number; }
  HostClock* clock() { return &clock_; }
  SimulatedKeys* keys() { return links_ == nullptr ? nullptr : links_->keys(); }  // May be null.

  // While it is alive. Calls to the core come from the owner: Post() them.
  Core* core() { return core_.get(); }
  void Post(Task task) { owner_->Post(std::move(task)); }
  void PostIn(int64_t nanos, Task task) {
    owner_->PostAt(scheduler_->now() + nanos, std::move(task));
  }

  // ---- The world around it. ----

  size_t drives() const { return options_.core.cache.nvme_directories.size(); }
  MemoryMedia* media(size_t drive) { return media_[drive].get(); }
  MemoryDisk* disk(size_t drive);  // Null while it is not open.
  void SetSlow(size_t drive, int64_t nanos);
  void FailOpening(bool on) { fail_opening_ = on; }
  bool opening_fails() const { return fail_opening_; }
  // While it is dead: another host takes its place, and its drives are empty.
  void ReplaceDrives();
  MemoryExtents* extents() { return &extents_; }
  // Names the extent that an address lies in; 0 where there is none. Names are not used twice.
  uint64_t ExtentOf(const std::byte* address) const;
  // A drive may still write to (kRead) or read from (kWrite) this memory.
  bool DrivesUse(IoKind kind, std::span<const std::byte> memory) const;
  const CacheOptions& options() const { return options_.core.cache; }

 private:
  class Mount;
  class TrackedExtent;
  class TrackedExtents;
  Result<std::unique_ptr<Disk>> OpenDrive(const std::string& directory);

  const SimulatedNodeOptions options_;
  Scheduler* const scheduler_;
  SharedStores* const stores_;
  HostClock clock_;
  SeededRandom random_;       // What the cache draws.
  SeededRandom disk_random_;  // What its drives do.
  MemoryExtents extents_;
  std::unique_ptr<TrackedExtents> tracked_extents_;  // What the cache sees of them.
  std::vector<std::shared_ptr<MemoryMedia>>
      media_;                    // Shared with the mounts, as MemoryDisk has it.
  std::vector<Mount*> mounted_;  // The core's. Null: not open.
  bool fail_opening_ = false;
  uint32_t life_ = 0;
  Scheduler::Party party_ = 0;  // This life's.
  bool ready_ = false;
  std::unique_ptr<OwnerLane> owner_;
  std::unique_ptr<WorkerLane> workers_;
  std::vector<std::unique_ptr<DriveLane>> drive_lanes_;
  std::unique_ptr<StoreLinks> links_;  // This life's.
  std::unique_ptr<Core> core_;
};

}  // namespace aquifer
