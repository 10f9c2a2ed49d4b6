// For tests: a thread in which a system call fails, as it would on another file system, in a
// sandbox or without memory. Threads that it starts fail the same way.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <thread>

namespace aquifer {

struct FailingCall {
  int call = 0;   // SYS_fallocate
  int error = 0;  // ENOSPC
  // If a mask is given, only calls that have a bit of it in that argument fail.
  uint32_t argument = 0;
  uint32_t mask = 0;
};

// Runs `body` in such a thread and waits. False when the host allows no filters: nothing was run.
inline bool RunWhereCallFails(const FailingCall& failing, const std::function<void()>& body) {
  bool filtered = false;
  std::thread([&] {
    const auto error = SECCOMP_RET_ERRNO | static_cast<uint32_t>(failing.error);
    const uint32_t argument = 16 + 8 * failing.argument;  // In seccomp_data, its low half.
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(failing.call), 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
        // Without a mask every call is to fail.
        BPF_JUMP(BPF_JMP | (failing.mask == 0 ? BPF_JGE : BPF_JSET) | BPF_K, failing.mask, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter = {.len = std::size(program), .filter = program};
    filtered = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
    if (filtered) body();
  }).join();
  return filtered;
}

}  // namespace aquifer
