#include "base/executor.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/short_turns.h"
#include "base/thread_name.h"

namespace aquifer {
namespace {

constexpr int64_t kAtOnce = INT64_MIN;
constexpr int64_t kYieldNanos = 5'000;
constexpr int64_t kPollNanos = 100'000;

thread_local const void* running_here = nullptr;  // The executor whose thread this is.

void RelaxCpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// For an executor that has nothing but its queue.
class QueueWaiter final : public Waiter {
 public:
  bool Poll() override { return false; }

  void Sleep(int64_t nanos) override {
    const MutexLock lock(&mutex_);
    if (!woken_) changed_.WaitFor(&mutex_, nanos);
    woken_ = false;
  }

  void Wake() override {
    const MutexLock lock(&mutex_);
    woken_ = true;
    changed_.NotifyOne();
  }

 private:
  Mutex mutex_;
  Condition changed_;
  bool woken_ AQ_GUARDED_BY(mutex_) = false;
};

// Producers append to `inbox_` under the mutex; the thread swaps the whole inbox for an empty one
// and runs it without the mutex, so that both vectors keep their memory and a busy executor takes
// the lock once for many tasks. Timers travel through the inbox too and then belong to the thread.
class QueueThread final : public ThreadExecutor {
 public:
  QueueThread(const ThreadExecutorOptions& options, Clock* clock)
      : options_(options),
        clock_(clock),
        waiter_(options.waiter != nullptr ? options.waiter : &queue_waiter_),
        thread_([this] { Loop(); }) {}

  ~QueueThread() override { Stop(); }

  void Post(Task task) override { Append({kAtOnce, 0, std::move(task)}); }

  void PostAt(int64_t at_nanos, Task task) override {
    Append({std::max(at_nanos, kAtOnce + 1), 0, std::move(task)});
  }

  ExecutorStats stats() const override {
    return {.tasks = tasks_.load(std::memory_order_relaxed),
            .longest_task_nanos = longest_task_nanos_.load(std::memory_order_relaxed)};
  }

  void ResetLongest() override { longest_task_nanos_.store(0, std::memory_order_relaxed); }

  void Stop() override {
    AQ_CHECK(running_here != this);  // It would wait for itself.
    {
      const MutexLock lock(&mutex_);
      stopping_ = true;
      news_.store(true, std::memory_order_release);
      waiter_->Wake();
    }
    const MutexLock lock(&join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Entry {
    int64_t at_nanos;
    uint64_t order;  // Among timers of the same time; set by the thread.
    Task task;
  };

  // For a heap whose front is the entry that is due first.
  static bool Later(const Entry& a, const Entry& b) {
    return a.at_nanos != b.at_nanos ? a.at_nanos > b.at_nanos : a.order > b.order;
  }

  void Append(Entry entry) {
    const MutexLock lock(&mutex_);
    if (stopping_) return;  // `entry` outlives the lock: its destructor may post again.
    inbox_.push_back(std::move(entry));
    if (inbox_.size() == 1) news_.store(true, std::memory_order_release);
    // Under the mutex, because the task may be the one that lets its owner destroy this object.
    if (std::exchange(asleep_, false)) waiter_->Wake();
  }

  void Loop() {
    NameThisThread(options_.name);
    RunInShortTurns();
    running_here = this;
    bool stop = false;
    while (!stop) {
      stop = TakeInbox();
      int64_t now = clock_->NowNanos();
      for (Entry& entry : batch_) {
        now = PollIfDue(RunDueTimers(now));
        if (entry.at_nanos == kAtOnce) {
          busy_ = true;
          now = RunOne(std::move(entry.task), now);
        } else {
          entry.order = next_order_++;
          timers_.push_back(std::move(entry));
          std::push_heap(timers_.begin(), timers_.end(), Later);
        }
      }
      batch_.clear();
      Poll(RunDueTimers(now));
    }
    timers_.clear();  // Here, so that what they hold dies on the thread that it belongs to.
  }

  // Waits until there may be something to do, and moves the inbox to `batch_`. True: this was the
  // last.
  bool TakeInbox() {
    if (std::exchange(busy_, false) && Spin()) {
      busy_ = true;
      return false;
    }
    const int64_t wait_nanos = PrepareToSleep();
    // A clock stepped by hand may be late or early; then we come back and look again.
    if (wait_nanos > 0) waiter_->Sleep(std::min(wait_nanos, kLongestWaitNanos));
    const MutexLock lock(&mutex_);
    asleep_ = false;
    std::swap(inbox_, batch_);
    news_.store(false, std::memory_order_relaxed);
    return stopping_;
  }

  // 0: there is something to do.
  int64_t PrepareToSleep() {
    const MutexLock lock(&mutex_);
    if (!inbox_.empty() || stopping_) return 0;
    const int64_t wait_nanos = NanosToNextTimer();
    asleep_ = wait_nanos > 0;
    return wait_nanos;
  }

  // The bound is in the machine's time: an injected clock that stands still would spin for ever.
  // True when the waiter had something to do.
  bool Spin() {
    if (options_.spin_nanos <= 0 || news_.load(std::memory_order_acquire)) return false;
    const int64_t begin = SystemClock()->NowNanos();
    const int64_t end = begin + options_.spin_nanos;
    int64_t now = begin;
    do {
      // Whoever is to give us something to do may wait for this very processor.
      if (now - begin > kYieldNanos) std::this_thread::yield();
      for (int i = 0; i < 16; ++i) {
        if (news_.load(std::memory_order_acquire)) return false;
        const int64_t start = clock_->NowNanos();
        if (waiter_->Poll()) {
          EndTask(start);
          return true;
        }
        RelaxCpu();
      }
      now = SystemClock()->NowNanos();
    } while (now < end && NanosToNextTimer() > 0);
    return false;
  }

  int64_t NanosToNextTimer() const {
    if (timers_.empty()) return kNoDeadline;
    const int64_t at = timers_.front().at_nanos;
    const int64_t now = clock_->NowNanos();
    if (at <= now) return 0;
    return at == kNoDeadline || (now < 0 && at > INT64_MAX + now) ? kNoDeadline : at - now;
  }

  int64_t RunDueTimers(int64_t now) {
    while (!timers_.empty() && timers_.front().at_nanos <= now) {
      std::pop_heap(timers_.begin(), timers_.end(), Later);
      Task task = std::move(timers_.back().task);
      timers_.pop_back();
      now = PollIfDue(RunOne(std::move(task), now));
    }
    return now;
  }

  // The waiter's turn. Returns the time after it.
  int64_t Poll(int64_t now) {
    polled_nanos_ = now;
    if (!waiter_->Poll()) return now;
    busy_ = true;
    return EndTask(now);
  }

  // However long the queue is, the waiter's clients wait for a task at most, and a little.
  int64_t PollIfDue(int64_t now) { return now - polled_nanos_ < kPollNanos ? now : Poll(now); }

  // Returns the time after it: one task's end is the next one's start, so each costs one reading.
  int64_t RunOne(Task task, int64_t start) {
    task();
    task = nullptr;  // Freeing the task's captures counts as part of its time.
    return EndTask(start);
  }

  int64_t EndTask(int64_t start) {
    if (options_.after_task) options_.after_task();
    const int64_t end = clock_->NowNanos();
    tasks_.store(tasks_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (end - start > longest_task_nanos_.load(std::memory_order_relaxed)) {
      longest_task_nanos_.store(end - start, std::memory_order_relaxed);
    }
    return end;
  }

  static constexpr int64_t kLongestWaitNanos = 3'600'000'000'000;  // Keeps wait_for's sum in range.

  const ThreadExecutorOptions options_;
  Clock* const clock_;
  QueueWaiter queue_waiter_;
  Waiter* const waiter_;

  Mutex mutex_;
  std::vector<Entry> inbox_ AQ_GUARDED_BY(mutex_);
  bool asleep_ AQ_GUARDED_BY(mutex_) = false;
  bool stopping_ AQ_GUARDED_BY(mutex_) = false;
  std::atomic<bool> news_{false};  // inbox_ is not empty, or stopping_; for the spinning thread.

  // Only the thread touches these.
  std::vector<Entry> batch_;
  std::vector<Entry> timers_;  // A heap.
  bool busy_ = false;          // There was something to do just now, other than timers.
  uint64_t next_order_ = 0;
  int64_t polled_nanos_ = 0;  // When the waiter had its last turn.

  std::atomic<uint64_t> tasks_{0};  // Written by the thread alone.
  std::atomic<int64_t> longest_task_nanos_{0};

  Mutex join_mutex_;
  std::thread thread_;  // Last: it uses all of the above. join_mutex_ guards the joining.
};

}  // namespace

std::unique_ptr<ThreadExecutor> NewThreadExecutor(const ThreadExecutorOptions& options,
                                                  Clock* clock) {
  return std::make_unique<QueueThread>(options, clock);
}

}  // namespace aquifer
