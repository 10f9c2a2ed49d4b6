// A client inside the node's own process, for what its administrator asks. Each call waits for the
// answer; from any thread but the owner's.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/clock.h"
#include "base/request_progress.h"
#include "cache/running_core.h"

namespace aquifer {

class Insider final : private ClientSink {
 public:
  static Result<std::unique_ptr<Insider>> New(RunningCore* running, const ClientOptions& options);
  ~Insider();

  void Stats(StatsRequest* request) { Run<&Core::Stats>(request); }
  void Drain(DrainRequest* request) { Run<&Core::Drain>(request); }
  void Pin(PinRequest* request) { Run<&Core::Pin>(request); }
  void Prestage(PrestageRequest* request) { Run<&Core::Prestage>(request); }
  void Evict(EvictRequest* request) { Run<&Core::Evict>(request); }
  // The same, and kLate when it takes longer.
  void EvictWithin(int64_t nanos, EvictRequest* request);

  // From another thread: the call under way is settled as late, soon. Deletions are carried out.
  void Cancel();

 private:
  explicit Insider(RunningCore* running) : running_(running) {}
  void OnProgress(Request* request, size_t completed, bool done) override;

  template <auto kCall, class R>
  void Run(R* request) {
    RequestProgress::Begin(request);
    RequestProgress::SetCalled(request, SystemClock()->NowNanos());
    RunAndWait(running_->owner(), [this, request](const std::function<void()>& done) {
      done_ = done;
      asked_ = request;
      (running_->core()->*kCall)(client_, request);
    });
  }

  RunningCore* const running_;
  bool attached_ = false;
  ClientNumber client_ = 0;
  std::function<void()> done_;  // The owner's: of the request under way.
  Request* asked_ = nullptr;    // The owner's: that request.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // The owner's.
};

}  // namespace aquifer
