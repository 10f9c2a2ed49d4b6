// The core with its threads: the owner, the workers and the drives. Open() and the node both run
// one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/executor.h"
#include "base/task_meter.h"
#include "cache/core.h"
#include "cache/environment.h"

namespace aquifer {

class RunningCore {
 public:
  struct Options {
    CacheOptions cache;
    // What the owner's thread looks after beside the core; outlives this. May be null.
    Waiter* waiter = nullptr;
    // Memory to be faulted in before Start() returns, if that does not take too long.
    uint64_t warm_bytes = uint64_t{512} << 20;
    // Extents that are faulted in ahead of need; by default the whole pool, in the background.
    uint32_t ready_extents = UINT32_MAX;
    uint32_t paced_by_cores = 0;  // As in DramPoolOptions.
    std::vector<DurableTierSource> durable_tiers{};
    Packer* packer = nullptr;  // Seals what is written to NVMe; outlives this. May be null.
  };

  // Returns when the core serves.
  static Result<std::unique_ptr<RunningCore>> Start(const Options& options);
  ~RunningCore();

  Core* core() { return core_.get(); }
  ThreadExecutor* owner() { return owner_.get(); }
  WorkerPool* workers() { return workers_.get(); }
  TaskMeter* meter() { return &meter_; }  // On the owner.

 private:
  RunningCore() = default;
  void WarmUp(uint64_t bytes);
  void Look(uint64_t bytes, int64_t until, const std::function<void()>& done);

  TaskMeter meter_;  // The owner's.
  std::vector<DurableTierSource> durable_tiers_;
  std::unique_ptr<ThreadExecutor> owner_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<Core> core_;
};

// Runs `task` on the owner and waits for it to call the function it is given.
void RunAndWait(Executor* owner,
                const std::function<void(const std::function<void()>& done)>& task);

}  // namespace aquifer
