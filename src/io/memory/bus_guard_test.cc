#include "io/memory/bus_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

namespace aquifer {
namespace {

constexpr size_t kBytes = 16 * 4096;

// Shared memory that goes away under its mapping.
class FleetingMemory {
 public:
  FleetingMemory() : fd_(::memfd_create("fleeting", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd_, kBytes), 0);
    bytes_ = static_cast<std::byte*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    std::memset(bytes_, 5, kBytes);
  }
  ~FleetingMemory() {
    ::munmap(bytes_, kBytes);
    ::close(fd_);
  }

  std::byte* bytes() { return bytes_; }
  void Vanish() { EXPECT_EQ(::ftruncate(fd_, 0), 0); }

 private:
  const int fd_;
  std::byte* bytes_ = nullptr;
};

TEST(BusGuardTest, MemoryThatIsThereIsTouched) {
  FleetingMemory memory;
  std::byte sum{0};
  EXPECT_TRUE(GuardBusErrors([&] { sum = memory.bytes()[100]; }).ok());
  EXPECT_EQ(sum, std::byte{5});
}

TEST(BusGuardTest, MemoryThatIsGoneIsCorruptForReadersAndWriters) {
  FleetingMemory memory;
  memory.Vanish();
  std::vector<std::byte> copy(kBytes);
  for (int i = 0; i < 3; ++i) {  // The guard works again after it was needed.
    bool finished = false;
    const Status read = GuardBusErrors([&] {
      std::memcpy(copy.data(), memory.bytes(), kBytes);
      finished = true;
    });
    EXPECT_EQ(read.code(), Code::kCorrupt);
    EXPECT_FALSE(finished);
    EXPECT_EQ(GuardBusErrors([&] { std::memset(memory.bytes(), 1, kBytes); }).code(),
              Code::kCorrupt);
  }
}

TEST(BusGuardTest, EveryThreadHasItsOwnGuard) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      FleetingMemory memory;
      if (t % 2 == 0) memory.Vanish();
      for (int i = 0; i < 50; ++i) {
        volatile std::byte seen{0};
        const Status status = GuardBusErrors([&] { seen = memory.bytes()[i]; });
        EXPECT_EQ(status.code(), t % 2 == 0 ? Code::kCorrupt : Code::kOk);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BusGuardTest, AnInnerGuardLeavesTheOuterOneInPlace) {
  FleetingMemory memory;
  memory.Vanish();
  std::atomic<bool> inner_caught = false;
  volatile std::byte seen{0};
  const Status outer = GuardBusErrors([&] {
    inner_caught = GuardBusErrors([&] { seen = memory.bytes()[0]; }).code() == Code::kCorrupt;
    seen = memory.bytes()[0];
    ADD_FAILURE() << "touched memory that is not there";
  });
  EXPECT_TRUE(inner_caught);
  EXPECT_EQ(outer.code(), Code::kCorrupt);
}

// In processes of their own: who handled the signal before us is settled once for a process.
class BusGuardDeathTest : public testing::Test {
 protected:
  BusGuardDeathTest() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(BusGuardDeathTest, OutsideOfAGuardTheSignalKillsAsBefore) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);
        FleetingMemory memory;
        (void)GuardBusErrors([] {});
        memory.Vanish();
        volatile std::byte seen = memory.bytes()[0];
        (void)seen;
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(BusGuardDeathTest, AnIgnoredSignalStillKillsABadAccess) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_IGN);
        FleetingMemory memory;
        (void)GuardBusErrors([] {});
        ::raise(SIGBUS);  // Ignored, as it was before us.
        memory.Vanish();
        volatile std::byte seen = memory.bytes()[0];
        (void)seen;
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(BusGuardDeathTest, ASignalThatWasSentIsNotTakenForABadAccess) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);
        (void)GuardBusErrors([] { ::raise(SIGBUS); });
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(BusGuardDeathTest, AnEarlierHandlerStillGetsWhatIsNotOurs) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, [](int) { ::_exit(42); });
        (void)GuardBusErrors([] {});
        ::raise(SIGBUS);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(BusGuardDeathTest, AnEarlierHandlerGetsTheWholeStory) {
  EXPECT_EXIT(
      {
        struct sigaction action = {};
        action.sa_flags = SA_SIGINFO;
        action.sa_sigaction = [](int, siginfo_t* info, void*) {
          ::_exit(info->si_code == BUS_ADRERR ? 43 : 1);
        };
        ::sigaction(SIGBUS, &action, nullptr);
        FleetingMemory memory;
        (void)GuardBusErrors([] {});
        memory.Vanish();
        volatile std::byte seen = memory.bytes()[0];
        (void)seen;
      },
      testing::ExitedWithCode(43), "");
}

}  // namespace
}  // namespace aquifer
