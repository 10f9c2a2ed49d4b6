#include "net/local/epoll_waiter.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace aquifer {
namespace {

class EpollWaiterTest : public testing::Test {
 protected:
  static Descriptor Event() { return Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }
  static void Raise(const Descriptor& event) {
    const uint64_t one = 1;
    ASSERT_EQ(::write(event.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }

  const std::unique_ptr<EpollWaiter> waiter_ = *EpollWaiter::New();
};

// Counts its calls, and has a given number of tasks.
struct CountingPolled final : Polled {
  bool Poll() override {
    if (left == 0) return false;
    --left;
    return true;
  }
  bool PrepareToSleep() override { return left == 0; }
  void WokeUp() override { ++woken; }

  int left = 0;
  int woken = 0;
};

TEST_F(EpollWaiterTest, HearsOneDescriptorInEachPoll) {
  const std::vector<Descriptor> events = [] {
    std::vector<Descriptor> made;
    for (int i = 0; i < 3; ++i) made.push_back(Event());
    return made;
  }();
  int heard = 0;
  for (const Descriptor& event : events) {
    ASSERT_TRUE(waiter_->Watch(event.get(), EPOLLIN, [&](uint32_t) { ++heard; }).ok());
    Raise(event);
  }
  waiter_->Sleep(1'000'000'000);
  EXPECT_EQ(heard, 0);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_TRUE(waiter_->Poll());
    EXPECT_EQ(heard, i);
  }
  EXPECT_FALSE(waiter_->Poll());
}

TEST_F(EpollWaiterTest, ReportsNothingAfterUnwatch) {
  const Descriptor first = Event();
  const Descriptor second = Event();
  uint64_t watches[2] = {};
  int heard = 0;
  // The watch that is handled first ends the other one.
  for (int i = 0; i < 2; ++i) {
    const Result<uint64_t> watch =
        waiter_->Watch((i == 0 ? first : second).get(), EPOLLIN, [&, i](uint32_t) {
          ++heard;
          waiter_->Unwatch(watches[1 - i]);
        });
    ASSERT_TRUE(watch.ok());
    watches[i] = *watch;
  }
  Raise(first);
  Raise(second);
  waiter_->Sleep(1'000'000'000);
  EXPECT_TRUE(waiter_->Poll());
  EXPECT_FALSE(waiter_->Poll());
  EXPECT_EQ(heard, 1);
}

TEST_F(EpollWaiterTest, ADescriptorThatCannotBeWatchedIsAnError) {
  const Descriptor event = Event();
  ASSERT_TRUE(waiter_->Watch(event.get(), EPOLLIN, [](uint32_t) {}).ok());
  const Result<uint64_t> again = waiter_->Watch(event.get(), EPOLLIN, [](uint32_t) {});
  EXPECT_EQ(again.status().code(), Code::kUnavailable);
}

TEST_F(EpollWaiterTest, SleepsOnlyWhenNobodyHasAnythingToDo) {
  CountingPolled polled;
  waiter_->Add(&polled);
  polled.left = 1;
  waiter_->Sleep(3'600'000'000'000);  // This sleep would not end by itself.
  EXPECT_EQ(waiter_->sleeps(), 0u);
  EXPECT_EQ(polled.woken, 1);
  EXPECT_TRUE(waiter_->Poll());
  EXPECT_FALSE(waiter_->Poll());
  waiter_->Sleep(0);
  EXPECT_EQ(waiter_->sleeps(), 1u);
  waiter_->Remove(&polled);
}

TEST_F(EpollWaiterTest, AllThatArePolledHaveTheirTurn) {
  CountingPolled first;
  CountingPolled second;
  waiter_->Add(&first);
  waiter_->Add(&second);
  first.left = second.left = 10;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(waiter_->Poll());
  EXPECT_EQ(first.left, 5);
  EXPECT_EQ(second.left, 5);
}

TEST_F(EpollWaiterTest, HearsDescriptorsWhileRingsKeepItAwake) {
  CountingPolled polled;
  waiter_->Add(&polled);
  polled.left = 1'000'000'000;
  const Descriptor event = Event();
  bool heard = false;
  const Result<uint64_t> watch =
      waiter_->Watch(event.get(), EPOLLIN, [&](uint32_t) { heard = true; });
  ASSERT_TRUE(watch.ok());
  Raise(event);
  while (!heard && polled.left > 0) waiter_->Poll();
  EXPECT_TRUE(heard);
}

TEST_F(EpollWaiterTest, IsWokenFromAnotherThreadAlsoBeforeItSleeps) {
  waiter_->Wake();
  waiter_->Sleep(3'600'000'000'000);
  std::thread waker([this] { waiter_->Wake(); });
  waiter_->Sleep(3'600'000'000'000);
  waker.join();
  EXPECT_EQ(waiter_->sleeps(), 2u);
}

}  // namespace
}  // namespace aquifer
