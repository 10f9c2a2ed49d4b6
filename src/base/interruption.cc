#include "base/interruption.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

namespace aquifer {
namespace {

constexpr int64_t kNanosPerSecond = 1'000'000'000;

bool TakeSignal() {
  struct sigaction action{};
  action.sa_handler = [](int) {};  // Ignored, it would interrupt nothing.
  return ::sigaction(SIGRTMIN, &action, nullptr) == 0;
}

}  // namespace

Interruption::Interruption(int64_t interval_nanos) {
  static const bool taken = TakeSignal();
  if (!taken) return;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGRTMIN);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  sigevent event{};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGRTMIN;
  event._sigev_un._tid = static_cast<pid_t>(::syscall(SYS_gettid));  // glibc has no other name.
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer_) != 0) return;
  const timespec interval{.tv_sec = interval_nanos / kNanosPerSecond,
                          .tv_nsec = interval_nanos % kNanosPerSecond};
  const itimerspec times{.it_interval = interval, .it_value = interval};
  ::timer_settime(timer_, 0, &times, nullptr);
  set_ = true;
}

Interruption::~Interruption() {
  if (set_) ::timer_delete(timer_);
}

}  // namespace aquifer
