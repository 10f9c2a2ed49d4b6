#include "cache/running_core.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/detached_task.h"
#include "base/mutex.h"
#include "cache/environment.h"

namespace aquifer {
namespace {

constexpr int64_t kWarmNanos = 5'000'000'000;
constexpr int64_t kWarmLookNanos = 1'000'000;

DiskEngine EngineOf(NvmeEngine engine) {
  switch (engine) {
    case NvmeEngine::kAuto:
      return DiskEngine::kAuto;
    case NvmeEngine::kUring:
      return DiskEngine::kUring;
    case NvmeEngine::kThreads:
      return DiskEngine::kThreads;
  }
  return DiskEngine::kAuto;
}

}  // namespace

void RunAndWait(Executor* owner,
                const std::function<void(const std::function<void()>& done)>& task) {
  Mutex mutex;
  Condition changed;
  bool finished = false;  // Guarded by mutex.
  owner->Post([&] {
    task([&] {
      const MutexLock lock(&mutex);
      finished = true;
      changed.NotifyOne();
    });
  });
  const MutexLock lock(&mutex);
  while (!finished) changed.Wait(&mutex);
}

Result<std::unique_ptr<RunningCore>> RunningCore::Start(const Options& options) {
  std::unique_ptr<RunningCore> running(new RunningCore());
  running->owner_ =
      NewThreadExecutor({.name = "aq-owner",
                         .after_task = [meter = &running->meter_] { meter->EndTask(); },
                         .waiter = options.waiter},
                        SystemClock());
  running->workers_ = NewThreadWorkerPool(
      static_cast<int>(std::clamp(options.cache.worker_threads, 1u, kMaxWorkerThreads)),
      "aq-worker");  // What is beyond, the core refuses.
  ThreadExecutor* const owner = running->owner_.get();
  CacheEnvironment environment;
  environment.clock = SystemClock();
  environment.random = SystemRandom();
  environment.owner = owner;
  environment.workers = running->workers_.get();
  environment.extents = SystemExtentSource();
  environment.open_disk =
      [owner, engine = EngineOf(options.cache.nvme_engine)](const std::string& directory) {
        return OpenDisk({.directory = directory, .engine = engine}, owner);
      };
  environment.run_opening = [workers = running->workers_.get()](const std::string&, Task open) {
    if (!RunDetached("aq-open", open)) workers->Run(open);
  };
  running->durable_tiers_ = options.durable_tiers;
  environment.durable_tiers = options.durable_tiers;
  environment.packer = options.packer;
  environment.meter = &running->meter_;
  environment.owner_longest_task = [owner] { return owner->stats().longest_task_nanos; };
  AQ_ASSIGN_OR_RETURN(running->core_, Core::New({.cache = options.cache,
                                                 .ready_extents = options.ready_extents,
                                                 .paced_by_cores = options.paced_by_cores},
                                                environment));
  Core* const core = running->core_.get();
  Status started;
  RunAndWait(owner, [core, &started](const std::function<void()>& done) {
    core->Start([&started, done](Status status) {
      started = std::move(status);
      done();
    });
  });
  if (!started.ok()) return started;
  running->WarmUp(std::min(options.warm_bytes, options.cache.dram_bytes));
  owner->ResetLongest();
  return running;
}

RunningCore::~RunningCore() {
  // First the owner, so that nothing new begins; then whoever touches memory; then the memory.
  owner_->Stop();
  if (core_ != nullptr) core_->CloseDisks();
  for (const DurableTierSource& tier : durable_tiers_) {
    if (tier.close) tier.close();
  }
  workers_.reset();
  core_.reset();
}

void RunningCore::WarmUp(uint64_t bytes) {
  const int64_t until = SystemClock()->NowNanos() + kWarmNanos;
  RunAndWait(owner_.get(),
             [this, bytes, until](const std::function<void()>& done) { Look(bytes, until, done); });
}

void RunningCore::Look(uint64_t bytes, int64_t until, const std::function<void()>& done) {
  const int64_t now = SystemClock()->NowNanos();
  if (core_->extent_bytes() >= bytes || core_->pool_complete() || now >= until) return done();
  owner_->PostAt(now + kWarmLookNanos, [this, bytes, until, done] { Look(bytes, until, done); });
}

}  // namespace aquifer
