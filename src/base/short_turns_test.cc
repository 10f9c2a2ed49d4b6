#include "base/short_turns.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <thread>

namespace aquifer {
namespace {

// Of this thread, as the kernel lays it out: the fourth word is the length of a turn.
uint64_t TurnNanos() {
  std::array<uint64_t, 6> attributes{};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, attributes.data(), sizeof(attributes), 0), 0);
  return attributes[3];
}

bool KernelHasTurns() {
  utsname name{};
  int major = 0;
  int minor = 0;
  if (uname(&name) != 0 || std::sscanf(name.release, "%d.%d", &major, &minor) != 2) return false;
  return major > 6 || (major == 6 && minor >= 12);
}

TEST(ShortTurnsTest, OnlyTheCallingThreadsTurnsAreShortAndItStaysAsNiceAsItWas) {
  if (!KernelHasTurns()) GTEST_SKIP() << "the kernel is older than 6.12";
  const uint64_t usual = TurnNanos();
  std::thread([] {
    ASSERT_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 5), 0);
    RunInShortTurns();
    EXPECT_EQ(TurnNanos(), 100'000u);
    EXPECT_EQ(getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())), 5);
    std::thread([] { EXPECT_NE(TurnNanos(), 100'000u); }).join();
  }).join();
  EXPECT_EQ(TurnNanos(), usual);
  EXPECT_NE(usual, 100'000u);
}

}  // namespace
}  // namespace aquifer
