// Requests, from the call to the answer: what is asked for is checked and becomes a job, which is
// woken, cancelled or given up.
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/planted_bug.h"
#include "base/request_progress.h"
#include "cache/core.h"
#include "cache/jobs.h"

namespace aquifer {
namespace {

constexpr size_t kMaxKeys = size_t{1} << 20;
// In what a task looks at, which takes 5 to 10 ns: 1 to 3 us for an answer to a caller, who may
// have to be woken, and a tenth of that for a job's end.
constexpr uint64_t kEntriesPerAnswer = 200;
constexpr uint64_t kEntriesPerJob = 20;

Status TooManyKeys() {
  return Status(Code::kInvalid, "chain.keys holds more than " + std::to_string(kMaxKeys) + " keys");
}

}  // namespace

// --- Jobs

void Job::RunAgain() {
  core_->environment_.owner->Post([this, run = run_, alive = core_->alive_] {
    if (*alive && run_ == run) Run();
  });
}

void Job::WakeAt(int64_t nanos) {
  if (nanos == kNoWake) return;
  wake_nanos_ = nanos;
  wake_run_ = run_;
  core_->wakes_.emplace(std::pair(nanos, run_), this);
  core_->ArmWake();
}

// No further ahead than a tick: a timer cannot be taken back, and those of requests that have ended
// would wait for deadlines that nobody has any more.
void Core::ArmWake() {
  if (wakes_.empty()) return;
  const int64_t horizon = environment_.clock->NowNanos() + options_.tick_nanos;
  const int64_t next = std::min(wakes_.begin()->first.first, horizon);
  if (next >= armed_nanos_) return;
  armed_nanos_ = next;
  environment_.owner->PostAt(armed_nanos_, [this, at = armed_nanos_, alive = alive_] {
    if (!*alive) return;
    if (at == armed_nanos_) armed_nanos_ = INT64_MAX;
    OnWake();
  });
}

// One in each task: what a job does then may take its time.
void Core::OnWake() {
  if (!wakes_.empty() && wakes_.begin()->first.first <= environment_.clock->NowNanos()) {
    Job* const job = wakes_.begin()->second;
    wakes_.erase(wakes_.begin());
    job->wake_nanos_ = Job::kNoWake;
    if (!job->given_up_) job->OnTimer();
  }
  ArmWake();
}

void Job::Answer(size_t completed) {
  if (request_ == nullptr) return;
  core_->request_times_[kind_].Add(core_->environment_.clock->NowNanos() - begun_nanos_);
  core_->Progress(client_, std::exchange(request_, nullptr), completed, true);
}

void Job::End(size_t completed) {
  Answer(completed);
  core_->CountEntries(kEntriesPerJob);
  if (wake_nanos_ != kNoWake) core_->wakes_.erase(std::pair(wake_nanos_, wake_run_));
  wake_nanos_ = kNoWake;
  run_ = 0;
  (given_up_ ? core_->given_up_jobs_ : core_->clients_[client_].jobs).Remove(this);
  given_up_ = false;
  --core_->running_jobs_;
  core_->spare_jobs_[kind_].push_back(this);
}

template <class J>
J* Core::TakeJob(ClientNumber client, Request* request) {
  if (spare_jobs_[J::kKind].empty()) {
    jobs_.push_back(std::make_unique<J>(this));
    spare_jobs_[J::kKind].push_back(jobs_.back().get());
  }
  auto* const job = static_cast<J*>(spare_jobs_[J::kKind].back());
  spare_jobs_[J::kKind].pop_back();
  // Through the base: its use is the core's business, not the kind's.
  Job* const base = job;
  base->client_ = client;
  base->request_ = request;
  base->run_ = next_run_++;
  const int64_t called = request == nullptr ? 0 : RequestProgress::called_nanos(*request);
  base->begun_nanos_ = called != 0 ? called : environment_.clock->NowNanos();
  clients_[client].jobs.PushBack(base);
  ++running_jobs_;
  if (std::exchange(resting_, false)) TickIn(options_.tick_nanos);
  return job;
}

template <class J, class R>
void Core::Begin(ClientNumber client, R* request, Status valid) {
  Client& caller = clients_[client];
  ++caller.requests;
  if (valid.ok() && caller.requests > options_.max_requests_per_client) {
    valid = Status(Code::kBusy, "too many requests under way; wait for some");
  }
  if (!valid.ok()) {
    request->status = std::move(valid);
    return Progress(client, request, 0, true);
  }
  J* const job = TakeJob<J>(client, request);
  job->Reset();
  job->Run();
}

void Core::Progress(ClientNumber client, Request* request, size_t completed, bool done) {
  Client& caller = clients_[client];
  if (!caller.attached) return;
  CountEntries(kEntriesPerAnswer);
  if (done) --caller.requests;
  caller.sink->OnProgress(request, completed, done);
}

void Core::Cancel(ClientNumber client, Request* request) {
  for (Job* job = clients_[client].jobs.front(); job != nullptr; job = JobList::Next(job)) {
    CountEntries(1);
    if (job->request() == request) return job->Cancel();
  }
}

// From here on nothing touches the requests, which are their caller's again. What the jobs have
// under way is ended a slice at a time.
void Core::GiveUpJobs(ClientNumber client) {
  JobList& jobs = clients_[client].jobs;
  for (Job* job = jobs.front(); job != nullptr; job = JobList::Next(job)) {
    CountEntries(1);
    job->request_ = nullptr;
    job->run_ = 0;
    job->given_up_ = true;
  }
  given_up_jobs_.TakeAll(&jobs);
}

// Of those that were given up; false when none is left.
bool Core::DropJobs(size_t max) {
  for (; max > 0 && !given_up_jobs_.empty(); --max) {
    Job* const job = given_up_jobs_.front();
    job->Drop();
    job->End(0);
  }
  return !given_up_jobs_.empty();
}

int64_t Core::DeadlineIn(int64_t timeout_nanos, int64_t from_nanos) {
  if (Planted(PlantedBug::kDeadlineIgnored)) return kNoDeadline;
  return DeadlineAfter(from_nanos, timeout_nanos);
}

Status Core::CheckChain(ClientNumber client, const ChainSlice& chain) const {
  if (!HasLayout(client, chain.layout)) {
    return Status(Code::kInvalid, "chain.layout was not given to this client by RegisterLayout");
  }
  const LayoutRecord& layout = catalog_.layout(LayoutOf(client, chain.layout));
  if (chain.group >= layout.groups.size()) {
    return Status(Code::kInvalid, "chain.group is " + std::to_string(chain.group) +
                                      ", but the layout has " +
                                      std::to_string(layout.groups.size()) + " groups");
  }
  return chain.keys.size() <= kMaxKeys ? Status() : TooManyKeys();
}

Status Core::CheckNames(ClientNumber client, const ChainSlice& chain) const {
  if (!clients_[client].administrator || chain.layout != 0) return CheckChain(client, chain);
  return chain.keys.size() <= kMaxKeys ? Status() : TooManyKeys();
}

Status Core::CheckChainOrSession(ClientNumber client, const ChainSlice& chain,
                                 const std::string& session) const {
  if (!chain.keys.empty()) return CheckNames(client, chain);
  if (session.empty()) return Status(Code::kInvalid, "neither chain.keys nor session is given");
  if (FindSession(clients_[client].tenant, session) == nullptr) {
    return Status(Code::kNotFound, "no such session; name it with Hint() first");
  }
  return Status();
}

void Core::Hint(ClientNumber client, const SessionForecast& forecast, const Key& head) {
  if (!CheckChain(client, forecast.chain).ok()) return;
  const BlockName name{.tenant = clients_[client].tenant,
                       .group = forecast.chain.group,
                       .part = forecast.chain.part,
                       .key = head};
  RememberSession(forecast.session, name);
  if (clients_[client].hints == options_.max_hints_per_client) return CountDroppedNotes(client, 1);
  ++clients_[client].hints;
  HintJob* const job = TakeJob<HintJob>(client, nullptr);
  job->Begin(forecast, name);
  job->Run();
}

void Core::RegisterLayout(ClientNumber client, RegisterLayoutRequest* request) {
  Client& caller = clients_[client];
  ++caller.requests;
  const Result<uint16_t> number = catalog_.Register(caller.tenant, request->layout);
  request->status = number.status();
  request->handle = 0;
  if (number.ok()) {
    const auto had = std::find(caller.layouts.begin(), caller.layouts.end(), *number);
    request->handle = static_cast<LayoutHandle>(had - caller.layouts.begin()) + 1;
    // It holds it once, however often it asks.
    if (had == caller.layouts.end()) {
      caller.layouts.push_back(*number);
    } else {
      catalog_.Release(caller.tenant, *number);
    }
  }
  Progress(client, request, 1, true);
}

void Core::Match(ClientNumber client, MatchRequest* request) {
  Status valid = CheckChain(client, request->chain);
  if (valid.ok() && request->have > request->chain.keys.size()) {
    valid = Status(Code::kInvalid, "have is more than there are keys");
  }
  Begin<MatchJob>(client, request, std::move(valid));
}

void Core::Fetch(ClientNumber client, FetchRequest* request) {
  Status valid = CheckChain(client, request->chain);
  if (valid.ok() && request->timeout_nanos <= 0) {
    valid = Status(Code::kInvalid, "timeout_nanos is not positive");
  }
  Begin<FetchJob>(client, request, std::move(valid));
}

void Core::Reserve(ClientNumber client, ReserveRequest* request) {
  Status valid = CheckChain(client, request->chain);
  if (valid.ok() && !request->engine_hashes.empty() &&
      request->engine_hashes.size() != request->chain.keys.size()) {
    valid = Status(Code::kInvalid, "engine_hashes is neither empty nor one for each key");
  }
  if (valid.ok() && uint64_t{request->position} + request->chain.keys.size() > UINT32_MAX) {
    valid = Status(Code::kInvalid, "position is too large");
  }
  Begin<ReserveJob>(client, request, std::move(valid));
}

void Core::Commit(ClientNumber client, CommitRequest* request) {
  Begin<CommitJob>(client, request,
                   request->ops.size() <= kMaxKeys
                       ? Status()
                       : Status(Code::kInvalid, "ops holds too many operations"));
}

void Core::Flush(ClientNumber client, FlushRequest* request) {
  Begin<FlushJob>(client, request,
                  request->timeout_nanos > 0
                      ? Status()
                      : Status(Code::kInvalid, "timeout_nanos is not positive"));
}

void Core::Pin(ClientNumber client, PinRequest* request) {
  Status valid = CheckNames(client, request->chain);
  if (valid.ok() && request->seconds < 0) valid = Status(Code::kInvalid, "seconds is negative");
  Begin<PinJob>(client, request, std::move(valid));
}

void Core::Prestage(ClientNumber client, PrestageRequest* request) {
  Status valid = CheckChainOrSession(client, request->chain, request->session);
  // A durable tier may know the session.
  const bool may_be_there = valid.code() == Code::kNotFound && durable_ != nullptr;
  if (may_be_there && durable_->notes_usable()) valid = Status();
  if (valid.ok() && request->timeout_nanos <= 0) {
    valid = Status(Code::kInvalid, "timeout_nanos is not positive");
  }
  Begin<PrestageJob>(client, request, std::move(valid));
}

void Core::Evict(ClientNumber client, EvictRequest* request) {
  request->evicted = 0;
  Status valid;
  if (!request->everything) {
    valid = CheckChainOrSession(client, request->chain, request->session);
  } else if (sweeping_.contains(clients_[client].tenant)) {
    valid = Status(Code::kBusy, "everything is being deleted already; wait for that");
  }
  Begin<EvictJob>(client, request, std::move(valid));
}

void Core::Drain(ClientNumber client, DrainRequest* request) {
  Begin<DrainJob>(client, request,
                  request->timeout_nanos > 0
                      ? Status()
                      : Status(Code::kInvalid, "timeout_nanos is not positive"));
}

}  // namespace aquifer
