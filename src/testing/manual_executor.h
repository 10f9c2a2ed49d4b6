// An executor and a worker pool that run nothing until a test says so, on the test's own thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "base/executor.h"
#include "testing/manual_clock.h"

namespace aquifer {

// Posted tasks run in order; timers run when the clock has reached them. Not for several threads.
class ManualExecutor final : public Executor, public WorkerPool {
 public:
  explicit ManualExecutor(ManualClock* clock = nullptr) : clock_(clock) {}

  void Post(Task task) override { tasks_.push_back(std::move(task)); }
  void PostAt(int64_t at_nanos, Task task) override {
    timers_.emplace(std::pair(at_nanos, next_timer_++), std::move(task));
  }
  void Run(Task task) override { Post(std::move(task)); }

  // Runs one task (or a timer that is due); false when there is nothing to run.
  bool RunOne() {
    if (tasks_.empty()) PostDueTimers();
    if (tasks_.empty()) return false;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
    if (after_task) after_task();
    return true;
  }

  // Runs until nothing is left to run now. Returns how many tasks ran.
  size_t RunAll() {
    size_t ran = 0;
    while (RunOne()) ++ran;
    return ran;
  }

  // Moves the clock to the next timer and runs it; false when there is none.
  bool RunNextTimer() {
    if (timers_.empty() || clock_ == nullptr) return false;
    const int64_t at_nanos = timers_.begin()->first.first;
    if (at_nanos > clock_->NowNanos()) clock_->SetNanos(at_nanos);
    return RunOne();
  }

  // Moves the clock on, running each timer at its own time.
  void AdvanceAndRun(int64_t nanos) {
    const int64_t end = clock_->NowNanos() + nanos;
    RunAll();
    while (!timers_.empty() && timers_.begin()->first.first <= end) {
      RunNextTimer();
      RunAll();
    }
    clock_->SetNanos(end);
    RunAll();
  }

  // Called behind every task; may be empty.
  Task after_task;

  bool idle() const { return tasks_.empty(); }
  size_t timers() const { return timers_.size(); }

 private:
  void PostDueTimers() {
    if (clock_ == nullptr) return;
    while (!timers_.empty() && timers_.begin()->first.first <= clock_->NowNanos()) {
      tasks_.push_back(std::move(timers_.begin()->second));
      timers_.erase(timers_.begin());
    }
  }

  ManualClock* const clock_;
  std::deque<Task> tasks_;
  std::map<std::pair<int64_t, uint64_t>, Task> timers_;  // By time, then by order of posting.
  uint64_t next_timer_ = 0;
};

}  // namespace aquifer
