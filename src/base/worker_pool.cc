#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "base/thread_name.h"

namespace aquifer {
namespace {

class ThreadWorkerPool final : public WorkerPool {
 public:
  ThreadWorkerPool(int threads, std::string name) : name_(std::move(name)) {
    threads_.reserve(static_cast<size_t>(threads));
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  }

  ~ThreadWorkerPool() override {
    {
      const MutexLock lock(&mutex_);
      stopping_ = true;
      wakeup_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(Task task) override {
    const MutexLock lock(&mutex_);
    queue_.push_back(std::move(task));
    if (asleep_ > 0) wakeup_.NotifyOne();
  }

 private:
  void Loop() {
    NameThisThread(name_);
    while (Task task = NextTask()) task();
  }

  // Null: nothing is left, nor will anything come.
  Task NextTask() {
    const MutexLock lock(&mutex_);
    while (queue_.empty() && !stopping_) {
      ++asleep_;
      wakeup_.Wait(&mutex_);
      --asleep_;
    }
    if (queue_.empty()) return nullptr;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    return task;
  }

  const std::string name_;
  Mutex mutex_;
  Condition wakeup_;
  std::deque<Task> queue_ AQ_GUARDED_BY(mutex_);
  int asleep_ AQ_GUARDED_BY(mutex_) = 0;
  bool stopping_ AQ_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // Touched by the constructor and the destructor alone.
};

}  // namespace

std::unique_ptr<WorkerPool> NewThreadWorkerPool(int threads, std::string name) {
  AQ_CHECK(threads > 0);
  return std::make_unique<ThreadWorkerPool>(threads, std::move(name));
}

}  // namespace aquifer
