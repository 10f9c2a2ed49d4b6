// A request under way, as its scheduler sees it. A job runs in slices on the owner, waits for
// loads, writes or the clock in between, and ends exactly once. Finished jobs are kept and used
// again, with the memory that they have.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aquifer/cache.h"
#include "cache/residency/loan_book.h"

namespace aquifer {

class Job;
class RequestScheduler;

// The scheduler's notes of a job.
struct JobState {
  Request* request = nullptr;  // Null: it was answered, or nobody waits for the job.
  ClientNumber client = 0;
  uint64_t run = 0;  // Which use of the job this is; 0: none, or one that was given up.
  bool given_up = false;
  Job* next = nullptr;  // In its client's list, or of those that were given up.
  Job* previous = nullptr;
  int64_t begun_nanos = 0;
  int64_t wake_nanos = INT64_MAX;  // INT64_MAX: it is not to be woken.
  uint64_t wake_run = 0;
};

class Job {
 public:
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Forgets its last use.
  virtual void Reset() {}
  // The next slice.
  virtual void Run() = 0;
  // The time that was asked for with WakeAt() has come.
  virtual void OnTimer() {}
  // The caller wants an answer: answer what is open with kLate, and End().
  virtual void Cancel() = 0;
  // The client is gone: wait for nothing more. Nobody is told.
  virtual void Drop() {}

  Request* request() const { return state_.request; }
  ClientNumber client() const { return state_.client; }
  size_t kind() const { return kind_; }
  // For the scheduler alone.
  JobState& state() { return state_; }
  const JobState& state() const { return state_; }

 protected:
  Job(RequestScheduler* scheduler, size_t kind) : scheduler_(scheduler), kind_(kind) {}

  void RunAgain();
  // At most once in a run.
  void WakeAt(int64_t nanos);
  void Report(size_t completed);
  // Completes the request, which is the caller's again; the job may go on without it.
  void Answer(size_t completed);
  // The last thing that a job does: answers if it has not, and may be in use again when this
  // returns.
  void End(size_t completed);
  // Tells whether a callback comes too late: the job was given up or has ended since, and may be in
  // use again.
  uint64_t run() const { return state_.run; }
  // When the caller made its call.
  int64_t begun_nanos() const { return state_.begun_nanos; }
  int64_t DeadlineIn(int64_t timeout_nanos) const;
  // Returns true if the time has come.
  bool IsOver(int64_t deadline_nanos) const;

 private:
  RequestScheduler* const scheduler_;
  const size_t kind_;
  JobState state_;
};

}  // namespace aquifer
