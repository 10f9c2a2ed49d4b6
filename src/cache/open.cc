// Open(): the cache inside this process.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "base/detached_task.h"
#include "base/mutex.h"
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
    environment.run_opening = [workers = embedded->workers_.get()](const std::string&,
                                                                   const Task& open) {
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
    RunAndWait(owner_.get(), [this, bytes, until](const std::function<void()>& done) {
      Look(bytes, until, done);
    });
  }

  void Look(uint64_t bytes, int64_t until, const std::function<void()>& done) {
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
      leaving_ = true;
      // Behind whatever this client has posted.
      core()->Detach(client_, [owner = owner(), done] { owner->Post(done); });
    });
  }

  Result<std::unique_ptr<Cache>> Join(const ClientOptions& options) override {
    return New(embedded_, options);
  }

  void RegisterLayout(RegisterLayoutRequest* request) override {
    Submit<&Core::RegisterLayout>(request);
  }
  void Match(MatchRequest* request) override { Submit<&Core::Match>(request); }
  void Fetch(FetchRequest* request) override { Submit<&Core::Fetch>(request); }
  void Reserve(ReserveRequest* request) override { Submit<&Core::Reserve>(request); }
  void Commit(CommitRequest* request) override { Submit<&Core::Commit>(request); }
  void Flush(FlushRequest* request) override { Submit<&Core::Flush>(request); }
  void Pin(PinRequest* request) override { Submit<&Core::Pin>(request); }
  void Prestage(PrestageRequest* request) override { Submit<&Core::Prestage>(request); }
  void Evict(EvictRequest* request) override { Submit<&Core::Evict>(request); }
  void Drain(DrainRequest* request) override { Submit<&Core::Drain>(request); }
  void Stats(StatsRequest* request) override {
    if (const uint64_t dropped = dropped_notes_.exchange(0); dropped > 0) {
      owner()->Post([core = core(), dropped] { core->CountDroppedNotes(dropped); });
    }
    Submit<&Core::Stats>(request);
  }
  void Cancel(Request* request) override {
    if (!RequestProgress::BeginCancel(request)) return;
    owner()->Post([this, request] { core()->Cancel(client_, request); });
  }

  void Release(std::span<const ReleaseOp> leases) override { Return(leases, &releases_); }
  void Abort(std::span<const ReservationId> reservations) override {
    Return(reservations, &aborts_);
  }
  void Hint(const SessionForecast& forecast) override {
    if (forecast.chain.keys.empty() || !TakeNote()) return;
    owner()->Post(
        [this, forecast = SessionForecast(forecast), head = forecast.chain.keys.back()]() mutable {
          notes_.fetch_sub(1, std::memory_order_relaxed);
          forecast.chain.keys = {};  // The caller's memory.
          core()->Hint(client_, forecast, head);
        });
  }
  void ReportPrefill(const PrefillReport& report) override {
    if (!TakeNote()) return;
    owner()->Post([this, report] {
      notes_.fetch_sub(1, std::memory_order_relaxed);
      core()->ReportPrefill(client_, report);
    });
  }

  size_t Poll() override { return queue_->Drain(); }
  int event_fd() const override { return queue_->event_fd(); }
  bool Wait(const Request& request, int64_t timeout_nanos) override {
    return queue_->Wait(request, timeout_nanos, *SystemClock());
  }

  void OnProgress(Request* request, size_t completed, bool done) override {
    if (done) requests_.fetch_sub(1, std::memory_order_relaxed);
    queue_->Push(request, completed, done);
  }

 private:
  LocalCache(std::shared_ptr<Embedded> embedded, std::unique_ptr<CompletionQueue> queue)
      : embedded_(std::move(embedded)), queue_(std::move(queue)) {}

  Core* core() { return embedded_->core(); }
  ThreadExecutor* owner() { return embedded_->owner(); }
  const CoreOptions& limits() { return core()->options(); }

  // Leases or reservations on their way back. They are never dropped, so they are bounded by what a
  // client can hold.
  template <class Op>
  struct Returns {
    Mutex mutex;
    std::vector<Op> given AQ_GUARDED_BY(mutex);
    std::vector<Op> taking;  // The owner's; swapped, so that neither allocates.
    size_t taken = 0;        // Of those; the owner's.
  };

  template <auto kCall, class R>
  void Submit(R* request) {
    RequestProgress::Begin(request);
    if (requests_.fetch_add(1, std::memory_order_relaxed) >= limits().max_requests_per_client) {
      // Refused here, so that the owner's queue stays bounded too.
      request->status = Status(Code::kBusy, "too many requests under way; wait for some");
      return OnProgress(request, 0, true);
    }
    owner()->Post([this, request] { (core()->*kCall)(client_, request); });
  }

  // False: too many are under way.
  bool TakeNote() {
    if (notes_.fetch_add(1, std::memory_order_relaxed) < limits().max_hints_per_client) return true;
    notes_.fetch_sub(1, std::memory_order_relaxed);
    dropped_notes_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }

  template <class Op>
  void Return(std::span<const Op> ops, Returns<Op>* returns) {
    if (ops.empty()) return;
    bool post = false;
    bool full = false;
    {
      const MutexLock lock(&returns->mutex);
      post = returns->given.empty();
      returns->given.insert(returns->given.end(), ops.begin(), ops.end());
      full = returns->given.size() > limits().max_leases_per_client;
    }
    if (post) PostReturn(returns);
    // More than it can hold: a client that gives back what it does not have. It waits.
    if (full) RunAndWait(owner(), [](const std::function<void()>& done) { done(); });
  }

  template <class Op>
  void PostReturn(Returns<Op>* returns) {
    owner()->Post([this, returns] { ReturnOnOwner(returns); });
  }

  // A slice of what was given back. There may be more by then.
  template <class Op>
  void ReturnOnOwner(Returns<Op>* returns) {
    if (returns->taken == returns->taking.size()) {
      returns->taking.clear();
      returns->taken = 0;
      const MutexLock lock(&returns->mutex);
      returns->taking.swap(returns->given);
    }
    if (leaving_) return;
    returns->taken += GiveBack(std::span<const Op>(returns->taking).subspan(returns->taken));
    bool more = returns->taken < returns->taking.size();
    if (!more) {
      const MutexLock lock(&returns->mutex);
      more = !returns->given.empty();
    }
    if (more) PostReturn(returns);
  }
  size_t GiveBack(std::span<const ReleaseOp> ops) { return core()->Release(client_, ops); }
  size_t GiveBack(std::span<const ReservationId> ops) { return core()->Abort(client_, ops); }

  const std::shared_ptr<Embedded> embedded_;  // Shared by all clients of this process.
  const std::unique_ptr<CompletionQueue> queue_;
  ClientNumber client_ = 0;
  bool attached_ = false;
  std::atomic<uint32_t> requests_{0};  // Under way.
  std::atomic<uint32_t> notes_{0};     // Hints and reports that the owner has not seen.
  std::atomic<uint64_t> dropped_notes_{0};
  Returns<ReleaseOp> releases_;
  Returns<ReservationId> aborts_;
  bool leaving_ = false;  // The owner's: its slots go back with Detach().
};

}  // namespace

Result<std::unique_ptr<Cache>> Open(const CacheOptions& options, const ClientOptions& client) {
  AQ_ASSIGN_OR_RETURN(auto embedded, Embedded::Start(options));
  return LocalCache::New(std::move(embedded), client);
}

}  // namespace aquifer
