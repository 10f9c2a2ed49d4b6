#include "cache/completion_queue.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/request_progress.h"

namespace aquifer {
namespace {

constexpr int64_t kSpinNanos = 50'000;
constexpr int kLooksBetweenClockReads = 64;

}  // namespace

Result<std::unique_ptr<CompletionQueue>> CompletionQueue::New() {
  const int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_fd < 0) {
    return Status(Code::kUnavailable, std::string("eventfd: ") + std::strerror(errno) +
                                          "; raise the limit on open files (ulimit -n)");
  }
  return std::unique_ptr<CompletionQueue>(new CompletionQueue(event_fd));
}

CompletionQueue::~CompletionQueue() { close(event_fd_); }

void CompletionQueue::Push(Request* request, size_t completed, bool done) {
  // The descriptor is written under the lock, so that it never becomes readable after the client
  // has taken what it stands for.
  const MutexLock lock(&mutex_);
  {
    if (!events_.empty() && events_.back().request == request) {
      events_.back().completed = completed;
      events_.back().done = done;
    } else {
      events_.push_back({request, completed, done});
    }
    any_.store(true, std::memory_order_release);
  }
  if (!std::exchange(armed_, false)) return;
  const uint64_t one = 1;
  // It cannot fail but by overflow, and then the descriptor is readable already.
  [[maybe_unused]] const ssize_t written = write(event_fd_, &one, sizeof(one));
}

size_t CompletionQueue::Drain() {
  {
    const MutexLock lock(&mutex_);
    if (events_.empty()) {
      if (!armed_) {
        uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = read(event_fd_, &count, sizeof(count));
      }
      armed_ = true;
      return 0;
    }
    drained_.swap(events_);
    any_.store(false, std::memory_order_relaxed);
  }
  const size_t moved = drained_.size();
  for (const Event& event : drained_) {
    RequestProgress::Advance(event.request, event.completed, event.done);
  }
  drained_.clear();
  return moved;
}

bool CompletionQueue::Wait(const Request& request, int64_t timeout_nanos, const Clock& clock) {
  const int64_t start_nanos = clock.NowNanos();
  const int64_t end_nanos = DeadlineAfter(start_nanos, timeout_nanos);
  while (!request.done()) {
    const int64_t spin_until = std::min(end_nanos, clock.NowNanos() + kSpinNanos);
    bool any = any_.load(std::memory_order_acquire);
    while (!any && clock.NowNanos() < spin_until) {
      for (int look = 0; look < kLooksBetweenClockReads && !any; ++look) {
        any = any_.load(std::memory_order_acquire);
      }
    }
    if (Drain() > 0) continue;
    const int64_t left_nanos = end_nanos - clock.NowNanos();
    if (left_nanos <= 0) return request.done();
    // Rounded up, so that it does not wake just before the time is over and spin.
    const int64_t left_ms = std::min<int64_t>(left_nanos / 1'000'000 + 1, INT_MAX);
    pollfd descriptor{.fd = event_fd_, .events = POLLIN, .revents = 0};
    [[maybe_unused]] const int ready = poll(&descriptor, 1, static_cast<int>(left_ms));
  }
  return true;
}

}  // namespace aquifer
