// Carries "this request has come so far" from the owner's thread to a client's. The owner has
// written the answers before it pushes; the client reads them after it drained.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace aquifer {

class CompletionQueue {
 public:
  // kUnavailable when the process has no descriptor left.
  static Result<std::unique_ptr<CompletionQueue>> New();
  ~CompletionQueue();

  // From the owner's thread. Neighbouring events of one request become one.
  void Push(Request* request, size_t completed, bool done);

  // From the client's thread: applies what is there and returns how many requests moved on. After
  // it returned 0, the next Push() makes the descriptor readable.
  size_t Drain();

  // Drains until `request` is done: spins for a while, because the owner usually answers within
  // microseconds and waking a sleeper takes 50, then sleeps.
  bool Wait(const Request& request, int64_t timeout_nanos, const Clock& clock);

  int event_fd() const { return event_fd_; }

 private:
  struct Event {
    Request* request = nullptr;
    size_t completed = 0;
    bool done = false;
  };

  explicit CompletionQueue(int event_fd) : event_fd_(event_fd) {}

  const int event_fd_;
  Mutex mutex_;
  std::vector<Event> events_ AQ_GUARDED_BY(mutex_);
  bool armed_ AQ_GUARDED_BY(mutex_) = false;  // The client will look at the descriptor.
  std::atomic<bool> any_{false};              // events_ is not empty; a hint for spinning.
  std::vector<Event> drained_;  // The client's; swapped with events_, so that neither allocates.
};

}  // namespace aquifer
