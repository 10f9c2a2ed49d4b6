// A mutex whose use Clang checks: a field marked AQ_GUARDED_BY(mutex_) cannot be touched without
// it. State with one owning thread needs none of this; see base/executor.h.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#if defined(__clang__)
#define AQ_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define AQ_THREAD_ATTRIBUTE(x)
#endif

#define AQ_GUARDED_BY(mutex) AQ_THREAD_ATTRIBUTE(guarded_by(mutex))
#define AQ_REQUIRES(...) AQ_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define AQ_EXCLUDES(...) AQ_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace aquifer {

class AQ_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void Lock() AQ_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void Unlock() AQ_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds the mutex for as long as it lives.
class AQ_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) AQ_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() AQ_THREAD_ATTRIBUTE(release_capability()) { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits may also end for no reason; the caller looks at its fields again.
class Condition {
 public:
  void Wait(Mutex* mutex) AQ_REQUIRES(mutex) {
    std::unique_lock lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }

  void WaitFor(Mutex* mutex, int64_t nanos) AQ_REQUIRES(mutex) {
    std::unique_lock lock(mutex->mutex_, std::adopt_lock);
    condition_.wait_for(lock, std::chrono::nanoseconds(nanos));
    lock.release();
  }

  // Notify while holding the mutex where the one who is woken may destroy this object.
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace aquifer
