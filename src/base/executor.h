// Where work runs. An Executor runs one task at a time, in the order posted, so what only its tasks
// touch needs no lock. A WorkerPool runs tasks side by side. Both are injected: production gives
// threads, tests and the simulator give a ManualExecutor (testing/) that is stepped by hand.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace aquifer {

using Task = std::function<void()>;

class Executor {
 public:
  virtual ~Executor() = default;

  // Any thread may post. The task runs later, never from inside Post().
  virtual void Post(Task task) = 0;

  // Runs the task at `at_nanos` of the executor's clock or soon after, on the same sequence as
  // posted tasks. Any thread may post.
  virtual void PostAt(int64_t at_nanos, Task task) = 0;
};

// A pure function's home: checksums, codecs, table building, page faulting. Tasks may run at the
// same time and in any order.
class WorkerPool {
 public:
  virtual ~WorkerPool() = default;
  virtual void Run(Task task) = 0;
};

struct ExecutorStats {
  uint64_t tasks = 0;
  int64_t longest_task_nanos = 0;  // Since the last ResetLongest().
};

class Clock;

// Other work of an executor's thread beside its queue, and how that thread sleeps. All but Wake()
// run on that thread.
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Does a little of what there is to do; false when there was nothing. Counts as a task, and comes
  // between those of the queue: whenever that is empty, and after 100 us at the latest.
  virtual bool Poll() = 0;
  // Until Wake(), until there is something to Poll() for, or for so long.
  virtual void Sleep(int64_t nanos) = 0;
  // From any thread: ends the Sleep() under way, or else the next one.
  virtual void Wake() = 0;
};

// One thread with a queue. After its queue runs empty it spins for `spin_nanos` before it sleeps:
// waking a sleeping thread costs 50-80 us on a virtual machine. Timers alone do not make it spin.
// The thread runs in short turns (short_turns.h): its tasks are to be short.
struct ThreadExecutorOptions {
  std::string name = "aq-owner";
  int64_t spin_nanos = 50'000;
  std::function<void()> after_task{};  // On the thread, behind every task; may be empty.
  Waiter* waiter = nullptr;            // Outlives the executor. Null: there is only the queue.
};

class ThreadExecutor : public Executor {
 public:
  virtual ExecutorStats stats() const = 0;
  virtual void ResetLongest() = 0;
  // Runs what was posted before this call, then ends the thread. Timers still waiting are dropped.
  virtual void Stop() = 0;
};

std::unique_ptr<ThreadExecutor> NewThreadExecutor(const ThreadExecutorOptions& options,
                                                  Clock* clock);

// `threads` threads sharing one queue. The destructor finishes what was given.
std::unique_ptr<WorkerPool> NewThreadWorkerPool(int threads, std::string name);

}  // namespace aquifer
