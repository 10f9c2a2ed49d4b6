#include "base/short_turns.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace aquifer {
namespace {

constexpr uint64_t kTurnNanos = 100'000;  // The least that the kernel takes; it gives 3 ms or so.

// The kernel's, for which the C library has no name everywhere.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_nanos = 0;
  uint64_t deadline_nanos = 0;
  uint64_t period_nanos = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

}  // namespace

void RunInShortTurns() {
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  constexpr uint32_t kOrdinary = 0;  // SCHED_OTHER: who asked for another has a reason.
  if (attributes.policy != kOrdinary) return;
  constexpr uint64_t kNotForThoseItStarts = 1;  // SCHED_FLAG_RESET_ON_FORK.
  attributes.flags |= kNotForThoseItStarts;
  attributes.runtime_nanos = kTurnNanos;
  // Not allowed, as in some sandboxes: it is a nicety.
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace aquifer
