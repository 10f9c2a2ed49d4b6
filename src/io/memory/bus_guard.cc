#include "io/memory/bus_guard.h"

#include <ucontext.h>

#include <csetjmp>
#include <csignal>
#include <mutex>

namespace aquifer {
namespace {

// Where the guard that this thread is in wants to be taken back to. The model makes it readable in
// a signal handler: no allocation on first use.
[[gnu::tls_model("initial-exec")]] thread_local sigjmp_buf* innermost = nullptr;

struct sigaction previous;  // Set once, before our handler can run.

void Chain(int signal, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else if (info->si_code > 0 || previous.sa_handler == SIG_DFL) {
    // A bad access cannot be ignored: it would only happen again. With the default in place it
    // does, or the signal is sent anew, and ends the process with a core as it should.
    ::signal(signal, SIG_DFL);
    if (info->si_code <= 0) ::raise(signal);
  }
}

void OnBusError(int signal, siginfo_t* info, void* context) {
  // Not a signal that somebody sent, nor news of a broken page that nobody touched.
  const bool by_access =
      info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR || info->si_code == BUS_MCEERR_AR;
  if (by_access && innermost != nullptr) {
    // We leave by a jump, which does not end the handler: put back the mask it was entered with.
    // Here and not in the jump, which would have to save the mask with a system call for every
    // guard.
    ::pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(*innermost, 1);
  }
  Chain(signal, info, context);
}

void Install() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, nullptr, &previous);
  ::sigaction(SIGBUS, &action, nullptr);
}

// Apart from the rest, because what a function keeps in registers is unknown after the jump.
[[gnu::noinline]] bool RunGuarded(const std::function<void()>& touch) {
  sigjmp_buf here;
  sigjmp_buf* volatile const outer = innermost;
  const bool intact = sigsetjmp(here, 0) == 0;
  if (intact) {
    innermost = &here;
    touch();
  }
  innermost = outer;
  return intact;
}

}  // namespace

Status GuardBusErrors(const std::function<void()>& touch) {
  static std::once_flag installed;
  std::call_once(installed, Install);
  if (RunGuarded(touch)) return Status();
  return Status(Code::kCorrupt,
                "the memory behind a block is gone: another process punched it out");
}

}  // namespace aquifer
