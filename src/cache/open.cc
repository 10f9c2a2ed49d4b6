// Open(): the cache inside this process.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/request_progress.h"
#include "cache/completion_queue.h"
#include "cache/core.h"
#include "cache/running_core.h"

namespace aquifer {
namespace {

// One client. Calls become tasks on the owner; what they capture fits std::function's own memory,
// so that a call allocates nothing.
class LocalCache final : public Cache, public ClientSink {
 public:
  static Result<std::unique_ptr<Cache>> New(std::shared_ptr<RunningCore> running,
                                            const ClientOptions& options) {
    AQ_ASSIGN_OR_RETURN(auto queue, CompletionQueue::New());
    std::unique_ptr<LocalCache> cache(new LocalCache(std::move(running), std::move(queue)));
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
    return New(running_, options);
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
      owner()->Post([this, dropped] { core()->CountDroppedNotes(client_, dropped); });
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
  LocalCache(std::shared_ptr<RunningCore> running, std::unique_ptr<CompletionQueue> queue)
      : running_(std::move(running)), queue_(std::move(queue)) {}

  Core* core() { return running_->core(); }
  ThreadExecutor* owner() { return running_->owner(); }
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
    RequestProgress::SetCalled(request, SystemClock()->NowNanos());
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

  const std::shared_ptr<RunningCore> running_;  // Shared by all clients of this process.
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
  AQ_ASSIGN_OR_RETURN(std::shared_ptr<RunningCore> running, RunningCore::Start({.cache = options}));
  return LocalCache::New(std::move(running), client);
}

}  // namespace aquifer
