#include "net/local/epoll_waiter.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace aquifer {
namespace {

// How often descriptors are asked while rings or its queue keep the owner awake. Each time costs a
// system call. The clock is read less often than that.
constexpr int64_t kLookNanos = 200'000;
constexpr uint32_t kPollsBetweenClocks = 16;
constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr uint64_t kWakeUp = 0;  // No watch has this number.

}  // namespace

Result<std::unique_ptr<EpollWaiter>> EpollWaiter::New() {
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeUp}};
  if (!epoll.valid() || !wake.valid() ||
      ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return Status(Code::kUnavailable, std::string("epoll: ") + std::strerror(errno) +
                                          "; raise the limit on open files (ulimit -n)");
  }
  return std::unique_ptr<EpollWaiter>(new EpollWaiter(std::move(epoll), std::move(wake)));
}

EpollWaiter::EpollWaiter(Descriptor epoll, Descriptor wake)
    : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

Result<uint64_t> EpollWaiter::Watch(int descriptor, uint32_t events,
                                    std::function<void(uint32_t)> on_ready) {
  const uint64_t number = next_watch_++;
  epoll_event event{.events = events, .data = {.u64 = number}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
    return Status(Code::kUnavailable, std::string("epoll: ") + std::strerror(errno) +
                                          "; raise fs.epoll.max_user_watches");
  }
  watched_[number] = {
      .descriptor = descriptor,
      .on_ready = std::make_shared<std::function<void(uint32_t)>>(std::move(on_ready))};
  return number;
}

void EpollWaiter::Change(uint64_t watch, uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = watch}};
  AQ_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, watched_.at(watch).descriptor, &event) == 0);
}

void EpollWaiter::Unwatch(uint64_t watch) {
  const auto found = watched_.find(watch);
  if (found == watched_.end()) return;
  AQ_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.descriptor, nullptr) == 0);
  watched_.erase(found);
}

void EpollWaiter::Remove(Polled* polled) { std::erase(polled_, polled); }

// Handles one descriptor or polls one object at a time, in turn, so that no task of the owner gets
// long. Returns false if there was nothing to do.
bool EpollWaiter::Poll() {
  if (HearOne()) return true;
  if (++polls_ % kPollsBetweenClocks == 0 &&
      SystemClock()->NowNanos() - looked_nanos_ >= kLookNanos) {
    Look(0);
    if (HearOne()) return true;
  }
  for (size_t i = 0; i < polled_.size(); ++i) {
    next_polled_ = (next_polled_ + 1) % polled_.size();
    if (polled_[next_polled_]->Poll()) return true;
  }
  return false;
}

void EpollWaiter::Sleep(int64_t nanos) {
  if (!ready_.empty()) return;
  const bool quiet = std::all_of(polled_.begin(), polled_.end(),
                                 [](Polled* polled) { return polled->PrepareToSleep(); });
  if (quiet) ++sleeps_;
  Look(quiet ? nanos : 0);
  for (Polled* const polled : polled_) polled->WokeUp();
}

void EpollWaiter::Wake() {
  const uint64_t one = 1;
  // The write fails only by overflow, and then the descriptor is readable already.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

void EpollWaiter::Look(int64_t nanos) {
  std::array<epoll_event, 16> events;
  const timespec timeout{.tv_sec = nanos / kNanosPerSecond, .tv_nsec = nanos % kNanosPerSecond};
  const int count = ::epoll_pwait2(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   &timeout, nullptr);
  AQ_CHECK(count >= 0 || errno == EINTR);
  looked_nanos_ = SystemClock()->NowNanos();
  for (int i = count - 1; i >= 0; --i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    // The struct is packed, so no reference may point into it.
    const uint64_t watch = event.data.u64;
    const uint32_t what = event.events;
    if (watch != kWakeUp) {
      ready_.push_back({watch, what});
      continue;
    }
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &wakes, sizeof(wakes));
  }
}

bool EpollWaiter::HearOne() {
  while (!ready_.empty()) {
    const Ready next = ready_.back();
    ready_.pop_back();
    const auto found = watched_.find(next.watch);
    if (found == watched_.end()) continue;
    ++heard_;
    const auto on_ready = found->second.on_ready;
    (*on_ready)(next.events);
    return true;
  }
  return false;
}

}  // namespace aquifer
