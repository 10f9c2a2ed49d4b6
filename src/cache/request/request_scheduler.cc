#include "cache/request/request_scheduler.h"

#include <algorithm>

#include "base/deadline.h"
#include "base/planted_bug.h"
#include "base/request_progress.h"

namespace aquifer {
namespace {

// In what a task looks at, which takes 5 to 10 ns: 1 to 3 us for an answer to a caller, who may
// have to be woken, and a tenth of that for a job's end.
constexpr uint64_t kEntriesPerAnswer = 200;
constexpr uint64_t kEntriesPerJob = 20;

}  // namespace

// --- Jobs

void Job::RunAgain() { scheduler_->RunAgain(this); }
void Job::WakeAt(int64_t nanos) { scheduler_->WakeAt(this, nanos); }
void Job::Report(size_t completed) { scheduler_->Progress(this, completed); }
void Job::Answer(size_t completed) { scheduler_->Answer(this, completed); }
void Job::End(size_t completed) { scheduler_->End(this, completed); }

int64_t Job::DeadlineIn(int64_t timeout_nanos) const {
  if (Planted(PlantedBug::kDeadlineIgnored)) return kNoDeadline;
  return DeadlineAfter(begun_nanos(), timeout_nanos);
}

bool Job::IsOver(int64_t deadline_nanos) const { return deadline_nanos <= scheduler_->NowNanos(); }

// --- The scheduler

RequestScheduler::RequestScheduler(RequestSchedulerParts parts)
    : parts_(std::move(parts)),
      spare_(parts_.job_kinds),
      times_(parts_.job_kinds),
      tasks_(parts_.executor) {}

void RequestScheduler::Begin(Job* job, ClientNumber client, Request* request) {
  if (by_client_.size() <= client) by_client_.resize(size_t{client} + 1);
  JobState& state = job->state();
  state.client = client;
  state.request = request;
  state.run = next_run_++;
  const int64_t called = request == nullptr ? 0 : RequestProgress::called_nanos(*request);
  state.begun_nanos = called != 0 ? called : parts_.clock->NowNanos();
  by_client_[client].PushBack(job);
  ++running_;
}

void RequestScheduler::RunAgain(Job* job) {
  tasks_.Post([job, run = job->state().run] {
    if (job->state().run == run) job->Run();
  });
}

void RequestScheduler::WakeAt(Job* job, int64_t nanos) {
  if (nanos == INT64_MAX) return;
  JobState& state = job->state();
  state.wake_nanos = nanos;
  state.wake_run = state.run;
  wakes_.emplace(std::pair(nanos, state.run), job);
  ArmTimer();
}

// One timer for all jobs, and no further ahead than the horizon: those of requests that have ended
// would wait for deadlines that nobody has any more.
void RequestScheduler::ArmTimer() {
  if (wakes_.empty()) return;
  const int64_t horizon = parts_.clock->NowNanos() + parts_.timer_horizon_nanos;
  const int64_t next = std::min(wakes_.begin()->first.first, horizon);
  if (next >= armed_nanos_) return;
  armed_nanos_ = next;
  tasks_.PostAt(armed_nanos_, [this, at = armed_nanos_] {
    if (at == armed_nanos_) armed_nanos_ = INT64_MAX;
    OnTimer();
  });
}

// One in each task: what a job does then may take its time.
void RequestScheduler::OnTimer() {
  if (!wakes_.empty() && wakes_.begin()->first.first <= parts_.clock->NowNanos()) {
    Job* const job = wakes_.begin()->second;
    wakes_.erase(wakes_.begin());
    job->state().wake_nanos = INT64_MAX;
    if (!job->state().given_up) job->OnTimer();
  }
  ArmTimer();
}

void RequestScheduler::Tell(ClientNumber client, Request* request, size_t completed, bool done) {
  CountEntries(kEntriesPerAnswer);
  parts_.on_progress(client, request, completed, done);
}

void RequestScheduler::Answer(Job* job, size_t completed) {
  JobState& state = job->state();
  if (state.request == nullptr) return;
  times_[job->kind()].Add(parts_.clock->NowNanos() - state.begun_nanos);
  Tell(state.client, std::exchange(state.request, nullptr), completed, true);
}

void RequestScheduler::End(Job* job, size_t completed) {
  Answer(job, completed);
  CountEntries(kEntriesPerJob);
  JobState& state = job->state();
  if (state.wake_nanos != INT64_MAX) wakes_.erase(std::pair(state.wake_nanos, state.wake_run));
  state.wake_nanos = INT64_MAX;
  state.run = 0;
  (state.given_up ? given_up_ : by_client_[state.client]).Remove(job);
  state.given_up = false;
  --running_;
  spare_[job->kind()].push_back(job);
}

void RequestScheduler::Cancel(ClientNumber client, const Request* request) {
  if (client >= by_client_.size()) return;
  for (Job* job = by_client_[client].front(); job != nullptr; job = JobList::Next(job)) {
    CountEntries(1);
    if (job->request() == request) return job->Cancel();
  }
}

void RequestScheduler::GiveUp(ClientNumber client) {
  if (client >= by_client_.size()) return;
  JobList& jobs = by_client_[client];
  for (Job* job = jobs.front(); job != nullptr; job = JobList::Next(job)) {
    CountEntries(1);
    job->state().request = nullptr;
    job->state().run = 0;
    job->state().given_up = true;
  }
  given_up_.TakeAll(&jobs);
}

bool RequestScheduler::DropSome(size_t max) {
  for (; max > 0 && !given_up_.empty(); --max) {
    Job* const job = given_up_.front();
    job->Drop();
    End(job, 0);
  }
  return !given_up_.empty();
}

}  // namespace aquifer
