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
#include "cache/transfer/durable_source.h"
#include "io/disk/disk.h"
#include "io/memory/extent.h"
#include "tier/packing/packer.h"

namespace aquifer {

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
