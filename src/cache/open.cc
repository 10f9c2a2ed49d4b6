// Open(): the cache inside this process.
#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "base/detached_task.h"
#include "cache/completion_queue.h"
#include "cache/core.h"
#include "cache/environment.h"
#include "cache/request_progress.h"

namespace aquifer {
namespace {

// How much of the pool is faulted in before Open() returns, and how long that may take.
constexpr uint64_t kWarmBytes = uint64_t{512} << 20;
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

// Runs `task` on the owner and waits for it to call the function it is given.
void RunAndWait(Executor* owner, const std::function<void(std::function<void()> done)>& task) {
  std::mutex mutex;
  std::condition_variable changed;
  bool finished = false;
  owner->Post([&] {
    task([&] {
      const std::lock_guard lock(mutex);
      finished = true;
      changed.notify_one();
    });
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&finished] { return finished; });
}

// The threads and the core that all clients in this process share. The last client closes it,
// hence the shared_ptr.
class Embedded {
 public:
  static Result<std::shared_ptr<Embedded>> Start(const CacheOptions& options) {
    auto embedded = std::make_shared<Embedded>();
    embedded->owner_ = NewThreadExecutor(
        {.name = "aq-owner", .after_task = [meter = &embedded->meter_] { meter->EndTask(); }},
        SystemClock());
    embedded->workers_ =
        NewThreadWorkerPool(static_cast<int>(std::max(1u, options.worker_threads)), "aq-worker");
    CacheEnvironment environment;
    environment.clock = SystemClock();
    environment.random = SystemRandom();
    environment.owner = embedded->owner_.get();
    environment.workers = embedded->workers_.get();
    environment.extents = SystemExtentSource();
    environment.open_disk = [owner = embedded->owner_.get(),
                             engine = EngineOf(options.nvme_engine)](const std::string& directory) {
      return OpenDisk({.directory = directory, .engine = engine}, owner);
    };
    environment.run_opening = [workers = embedded->workers_.get()](const std::string&, Task open) {
      if (!RunDetached("aq-open", open)) workers->Run(open);
    };
    environment.meter = &embedded->meter_;
    environment.owner_longest_task = [owner = embedded->owner_.get()] {
      return owner->stats().longest_task_nanos;
    };
    AQ_ASSIGN_OR_RETURN(embedded->core_, Core::New({.cache = options}, environment));
    Core* const core = embedded->core_.get();
    Status started;
    RunAndWait(embedded->owner_.get(), [core, &started](const std::function<void()>& done) {
      core->Start([&started, done](Status status) {
        started = std::move(status);
        done();
      });
    });
    if (!started.ok()) return started;
    embedded->WarmUp(std::min(kWarmBytes, options.dram_bytes));
    embedded->owner_->ResetLongest();
    return embedded;
  }

  ~Embedded() {
    // First the owner, so that nothing new begins; then whoever touches memory; then the memory.
    owner_->Stop();
    if (core_ != nullptr) core_->CloseDisks();
    workers_.reset();
    core_.reset();
  }

  Core* core() { return core_.get(); }
  ThreadExecutor* owner() { return owner_.get(); }

 private:
  void WarmUp(uint64_t bytes) {
    const int64_t until = SystemClock()->NowNanos() + kWarmNanos;
    RunAndWait(owner_.get(),
               [this, bytes, until](std::function<void()> done) { Look(bytes, until, done); });
  }

  void Look(uint64_t bytes, int64_t until, std::function<void()> done) {
    const int64_t now = SystemClock()->NowNanos();
    if (core_->extent_bytes() >= bytes || core_->pool_complete() || now >= until) return done();
    owner_->PostAt(now + kWarmLookNanos, [this, bytes, until, done] { Look(bytes, until, done); });
  }

  TaskMeter meter_;  // The owner's.
  std::unique_ptr<ThreadExecutor> owner_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<Core> core_;
};

// One client. Calls become tasks on the owner; what they capture fits std::function's own memory,
// so that a call allocates nothing.
class LocalCache final : public Cache, public ClientSink {
 public:
  static Result<std::unique_ptr<Cache>> New(std::shared_ptr<Embedded> embedded,
                                            const ClientOptions& options) {
    AQ_ASSIGN_OR_RETURN(auto queue, CompletionQueue::New());
    std::unique_ptr<LocalCache> cache(new LocalCache(std::move(embedded), std::move(queue)));
    Status status;
    RunAndWait(cache->owner(), [&](const std::function<void()>& done) {
      Result<ClientNumber> client = cache->core()->Attach(options, cache.get());
      status = client.status();
      if (client.ok()) cache->client_ = *client;
      cache->attached_ = client.ok();
      done();
    });
    if (!status.ok()) return status;
    return std::unique_ptr<Cache>(std::move(cache));
  }

  ~LocalCache() override {
    if (!attached_) return;
    RunAndWait(owner(), [this](const std::function<void()>& done) {
      *alive_ = false;
      core()->Detach(client_, done);
    });
  }

  Result<std::unique_ptr<Cache>> Join(const ClientOptions& options) override {
    return New(embedded_, options);
  }

  void RegisterLayout(RegisterLayoutRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->RegisterLayout(client_, request); });
  }
  void Match(MatchRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Match(client_, request); });
  }
  void Fetch(FetchRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Fetch(client_, request); });
  }
  void Reserve(ReserveRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Reserve(client_, request); });
  }
  void Commit(CommitRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Commit(client_, request); });
  }
  void Flush(FlushRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Flush(client_, request); });
  }
  void Pin(PinRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Pin(client_, request); });
  }
  void Prestage(PrestageRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Prestage(client_, request); });
  }
  void Evict(EvictRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Evict(client_, request); });
  }
  void Drain(DrainRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Drain(client_, request); });
  }
  void Stats(StatsRequest* request) override {
    RequestProgress::Begin(request);
    owner()->Post([this, request] { core()->Stats(client_, request); });
  }
  void Cancel(Request* request) override {
    owner()->Post([this, request] { core()->Cancel(client_, request); });
  }

  void Release(std::span<const ReleaseOp> leases) override {
    const std::lock_guard lock(mutex_);
    const bool posted = !releases_.empty();
    releases_.insert(releases_.end(), leases.begin(), leases.end());
    if (!posted && !releases_.empty()) PostRelease();
  }
  void Abort(std::span<const ReservationId> reservations) override {
    PostAbort(std::make_shared<const std::vector<ReservationId>>(reservations.begin(),
                                                                 reservations.end()),
              0);
  }
  void Hint(const SessionForecast& forecast) override {
    if (forecast.chain.keys.empty()) return;
    owner()->Post(
        [this, forecast = SessionForecast(forecast), head = forecast.chain.keys.back()]() mutable {
          forecast.chain.keys = {};  // The caller's memory.
          core()->Hint(client_, forecast, head);
        });
  }
  void ReportPrefill(const PrefillReport& report) override {
    owner()->Post([this, report] { core()->ReportPrefill(client_, report); });
  }

  size_t Poll() override { return queue_->Drain(); }
  int event_fd() const override { return queue_->event_fd(); }
  bool Wait(const Request& request, int64_t timeout_nanos) override {
    return queue_->Wait(request, timeout_nanos, *SystemClock());
  }

  void OnProgress(Request* request, size_t completed, bool done) override {
    queue_->Push(request, completed, done);
  }

 private:
  LocalCache(std::shared_ptr<Embedded> embedded, std::unique_ptr<CompletionQueue> queue)
      : embedded_(std::move(embedded)), queue_(std::move(queue)) {}

  Core* core() { return embedded_->core(); }
  ThreadExecutor* owner() { return embedded_->owner(); }

  void PostRelease() {
    owner()->Post([this, alive = alive_] {
      if (*alive) ReleaseOnOwner();
    });
  }

  // A slice of what was given back. There may be more by then.
  void ReleaseOnOwner() {
    if (released_ == releasing_.size()) {
      releasing_.clear();
      released_ = 0;
      const std::lock_guard lock(mutex_);
      releasing_.swap(releases_);
    }
    released_ += core()->Release(client_, std::span(releasing_).subspan(released_));
    if (released_ < releasing_.size()) return PostRelease();
    const std::lock_guard lock(mutex_);
    if (!releases_.empty()) PostRelease();
  }

  // Shared by the tasks that each take a slice.
  void PostAbort(std::shared_ptr<const std::vector<ReservationId>> ids, size_t first) {
    owner()->Post([this, ids = std::move(ids), first, alive = alive_] {
      if (!*alive) return;
      const size_t next = first + core()->Abort(client_, std::span(*ids).subspan(first));
      if (next < ids->size()) PostAbort(ids, next);
    });
  }

  const std::shared_ptr<Embedded> embedded_;  // Shared by all clients of this process.
  const std::unique_ptr<CompletionQueue> queue_;
  ClientNumber client_ = 0;
  bool attached_ = false;
  std::mutex mutex_;
  std::vector<ReleaseOp> releases_;   // Guarded by mutex_.
  std::vector<ReleaseOp> releasing_;  // The owner's; swapped, so that neither allocates.
  size_t released_ = 0;               // Of those; the owner's.
  // Cleared on the owner when the client leaves: tasks that are posted by then do nothing.
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace

Result<std::unique_ptr<Cache>> Open(const CacheOptions& options, const ClientOptions& client) {
  AQ_ASSIGN_OR_RETURN(auto embedded, Embedded::Start(options));
  return LocalCache::New(std::move(embedded), client);
}

}  // namespace aquifer
