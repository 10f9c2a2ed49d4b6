// Requests under way, as jobs: which there are, of which client, when each is to be woken, and the
// ends of those that are cancelled or given up. What a job does is its own business.
//
// Runs on the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/task_meter.h"
#include "base/task_scope.h"
#include "cache/request/job.h"
#include "cache/request/job_list.h"
#include "metrics/time_histogram.h"

namespace aquifer {

struct RequestSchedulerParts {
  size_t job_kinds = 0;
  // A timer cannot be taken back: none is set further ahead than this.
  int64_t timer_horizon_nanos = 0;
  Executor* executor = nullptr;
  Clock* clock = nullptr;
  TaskMeter* meter = nullptr;  // May be null.
  // How a request comes along; with `done` it is answered.
  std::function<void(ClientNumber, Request*, size_t completed, bool done)> on_progress;
};

class RequestScheduler {
 public:
  explicit RequestScheduler(RequestSchedulerParts parts);

  // A job of the kind for the client's request, which may be null: nobody waits for it. Made with
  // `context` where no finished one is left. The caller Reset()s and Run()s it.
  template <class J, class Context>
  J* Take(ClientNumber client, Request* request, Context* context) {
    if (spare_[J::kKind].empty()) {
      jobs_.push_back(std::make_unique<J>(context));
      spare_[J::kKind].push_back(jobs_.back().get());
    }
    auto* const job = static_cast<J*>(spare_[J::kKind].back());
    spare_[J::kKind].pop_back();
    Begin(job, client, request);
    return job;
  }

  // The client wants an answer to the request now.
  void Cancel(ClientNumber client, const Request* request);
  // Nothing touches the client's requests from here on. What their jobs have under way is ended by
  // DropSome(), a slice at a time.
  void GiveUp(ClientNumber client);
  // Returns true if there are more.
  bool DropSome(size_t max);

  size_t running() const { return running_; }
  uint64_t begun() const { return next_run_ - 1; }  // Jobs, ever.
  const TimeHistogram& times(size_t kind) const { return times_[kind]; }
  void CountEntries(uint64_t entries) const {
    if (parts_.meter != nullptr) parts_.meter->Count(entries);
  }
  int64_t NowNanos() const { return parts_.clock->NowNanos(); }

  // ---- For jobs ----

  void RunAgain(Job* job);
  void WakeAt(Job* job, int64_t nanos);
  void Progress(Job* job, size_t completed) {
    Tell(job->client(), job->request(), completed, false);
  }
  void Answer(Job* job, size_t completed);
  void End(Job* job, size_t completed);
  // Tells the client, also of a request that became no job.
  void Tell(ClientNumber client, Request* request, size_t completed, bool done);

 private:
  void Begin(Job* job, ClientNumber client, Request* request);
  void ArmTimer();
  void OnTimer();

  const RequestSchedulerParts parts_;
  std::vector<std::unique_ptr<Job>> jobs_;  // Every job there is, running or spare.
  std::vector<std::vector<Job*>> spare_;    // By kind.
  std::vector<JobList> by_client_;
  JobList given_up_;  // Their clients are gone.
  size_t running_ = 0;
  uint64_t next_run_ = 1;
  std::map<std::pair<int64_t, uint64_t>, Job*> wakes_;  // By time and run.
  int64_t armed_nanos_ = INT64_MAX;
  std::vector<TimeHistogram> times_;  // By kind.
  TaskScope tasks_;
};

}  // namespace aquifer
