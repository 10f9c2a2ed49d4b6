// Everything of the outside world that the cache touches, injected, so that tests and the simulator
// can replace it whole.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/executor.h"
#include "base/task_meter.h"
#include "io/disk/disk.h"
#include "io/memory/extent.h"
#include "tier/durable/durable_tier.h"
#include "tier/packing/packer.h"

namespace aquifer {

// What a durable tier stands on. All of it outlives the tier.
struct DurableTierParts {
  Executor* owner = nullptr;  // The tier's executor.
  WorkerPool* workers = nullptr;
  Clock* clock = nullptr;
  Random* random = nullptr;
  TierListener* listener = nullptr;
};

// Which blocks are written to a durable tier.
enum class DurableWrites : uint8_t {
  kNothing,  // It serves what others wrote.
  kDurable,  // Those of durable class.
  kAll,      // All that are stored: the tier is a cache that nodes share.
};

struct DurableTierSource {
  std::string name{};  // As the configuration calls it; each once.
  // Makes the tier. A store that cannot be reached is no error: the tier is out of service then,
  // and probes it. An error keeps the cache from starting.
  std::function<Result<std::unique_ptr<DurableTier>>(const DurableTierParts&)> make;
  // Ends everything that the tier's store still does, which may touch the memory of blocks; may be
  // empty. Called when the tier is gone, before that memory is.
  std::function<void()> close{};
  DurableWrites writes = DurableWrites::kDurable;
  // Whether what it has counts as durable. Not where the store may drop it, as Redis may. A tier
  // that nothing is written to makes nothing durable all the same.
  bool lasting = true;
  uint64_t write_bytes_per_second = 0;  // 0: no limit. What is flushed is written beyond it.
};

// An entry of the index has a bit for each.
inline constexpr size_t kMaxDurableTiers = 5;

struct CacheEnvironment {
  Clock* clock = nullptr;
  Random* random = nullptr;
  Executor* owner = nullptr;      // Runs everything that decides.
  WorkerPool* workers = nullptr;  // Runs everything that touches payload.
  ExtentSource* extents = nullptr;
  // Opens the drive in a directory; called again, now and then, when it failed. It may hang, and
  // may be called when the cache is gone already. Completions run on `owner`.
  std::function<Result<std::unique_ptr<Disk>>(const std::string& directory)> open_disk;
  // Runs what opens a directory, beside everything else; empty: `workers` do.
  std::function<void(const std::string& directory, Task open)> run_opening;
  // In the order in which they are asked where all else is equal; at most kMaxDurableTiers.
  std::vector<DurableTierSource> durable_tiers;
  // Seals what is written to NVMe; null: blocks are written as they are. Outlives `workers`' tasks.
  Packer* packer = nullptr;
  // Counts what each task of `owner` looks at; may be null. Whoever runs the owner ends its tasks.
  TaskMeter* meter = nullptr;
  // Nanoseconds that the owner's longest task took; may be empty.
  std::function<int64_t()> owner_longest_task;
};

}  // namespace aquifer
