#include "base/executor.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "testing/manual_clock.h"

namespace aquifer {
namespace {

std::unique_ptr<ThreadExecutor> NewExecutor(Clock* clock, int64_t spin_nanos = 50'000) {
  return NewThreadExecutor({.name = "test", .spin_nanos = spin_nanos}, clock);
}

// Returns when everything posted before this call has run.
void Drain(Executor* executor) {
  std::promise<void> done;
  executor->Post([&] { done.set_value(); });
  done.get_future().wait();
}

// Once spinning, once going to sleep at once: both ways of waiting keep the same promises.
class ThreadExecutorTest : public testing::TestWithParam<int64_t> {
 protected:
  ManualClock clock_;
  std::unique_ptr<ThreadExecutor> executor_ = NewExecutor(&clock_, GetParam());
};

INSTANTIATE_TEST_SUITE_P(, ThreadExecutorTest, testing::Values(0, 50'000), [](const auto& info) {
  return info.param == 0 ? "Sleeping" : "Spinning";
});

TEST_P(ThreadExecutorTest, TasksRunInTheOrderPosted) {
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) executor_->Post([&order, i] { order.push_back(i); });
  Drain(executor_.get());
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_P(ThreadExecutorTest, TasksOfManyThreadsRunOneAtATimeAndInEachThreadsOrder) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 5000;
  std::array<int, kThreads> next{};  // Without a lock: the thread sanitizer would see a mistake.
  bool ordered = true;
  {
    std::vector<std::jthread> posters;
    posters.reserve(kThreads);
    for (size_t thread = 0; thread < kThreads; ++thread) {
      posters.emplace_back([&, thread] {
        for (int i = 0; i < kPosts; ++i) {
          executor_->Post([&, thread, i] { ordered = ordered && next[thread]++ == i; });
        }
      });
    }
  }
  Drain(executor_.get());
  EXPECT_TRUE(ordered);
  for (const int count : next) EXPECT_EQ(count, kPosts);
}

TEST_P(ThreadExecutorTest, ATaskPostedByATaskRunsAfterThoseAlreadyWaiting) {
  std::vector<int> order;
  std::latch both_posted(1);
  std::promise<void> done;
  executor_->Post([&] {
    both_posted.wait();
    executor_->Post([&] {
      order.push_back(3);
      done.set_value();
    });
    order.push_back(1);  // Never from inside Post().
  });
  executor_->Post([&] { order.push_back(2); });
  both_posted.count_down();
  done.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST_P(ThreadExecutorTest, ATimerWaitsForTheClock) {
  const int64_t start = clock_.NowNanos();
  std::atomic<bool> fired = false;
  executor_->PostAt(start + 1'000'000, [&] { fired = true; });
  Drain(executor_.get());
  EXPECT_FALSE(fired);
  clock_.Advance(999'999);
  Drain(executor_.get());
  EXPECT_FALSE(fired);
  clock_.Advance(1);
  Drain(executor_.get());
  EXPECT_TRUE(fired);
}

TEST_P(ThreadExecutorTest, TimersRunByTimeAndThoseOfOneTimeInTheOrderPosted) {
  const int64_t start = clock_.NowNanos();
  std::vector<int> order;
  const auto add = [&](int64_t delay, int name) {
    executor_->PostAt(start + delay, [&order, name] { order.push_back(name); });
  };
  add(300, 4);
  add(100, 1);
  add(200, 2);
  add(200, 3);
  add(kNoDeadline - start, 5);  // Never.
  Drain(executor_.get());
  clock_.Advance(1000);
  Drain(executor_.get());
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
}

TEST_P(ThreadExecutorTest, ATimerWhoseTimeHasPassedRunsAtOnce) {
  std::promise<void> done;
  executor_->PostAt(INT64_MIN, [&] { done.set_value(); });
  done.get_future().wait();
}

TEST_P(ThreadExecutorTest, StatisticsCountTasksAndKeepTheLongest) {
  executor_->Post([&] { clock_.Advance(7'000); });
  executor_->Post([&] { clock_.Advance(30'000); });
  executor_->Post([&] { clock_.Advance(200); });
  Drain(executor_.get());
  EXPECT_EQ(executor_->stats().longest_task_nanos, 30'000);
  executor_->ResetLongest();
  executor_->Post([&] { clock_.Advance(5'000); });
  executor_->Stop();
  EXPECT_EQ(executor_->stats().longest_task_nanos, 5'000);
  EXPECT_EQ(executor_->stats().tasks, 5u);
}

TEST_P(ThreadExecutorTest, StopRunsWhatWasPostedAndDropsTheTimers) {
  int ran = 0;
  auto held_by_timer = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held_by_timer;
  executor_->PostAt(clock_.NowNanos() + 1,
                    [held = std::move(held_by_timer), &ran] { ran += 1000; });
  for (int i = 0; i < 100; ++i) executor_->Post([&] { ++ran; });
  executor_->Stop();
  EXPECT_EQ(ran, 100);
  EXPECT_TRUE(watch.expired());
}

TEST_P(ThreadExecutorTest, ATaskPostedAfterStopIsDropped) {
  executor_->Stop();
  executor_->Stop();  // Once is enough, twice does no harm.
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  executor_->Post([held = std::move(held)] { FAIL(); });
  executor_->PostAt(0, [] { FAIL(); });
  EXPECT_TRUE(watch.expired());
}

TEST_P(ThreadExecutorTest, ADroppedTaskMayPostAgainWhileItDies) {
  struct PostsWhenItDies {
    Executor* executor;
    ~PostsWhenItDies() {
      executor->Post([] {});
    }
  };
  executor_->Stop();
  auto held = std::make_shared<PostsWhenItDies>(executor_.get());
  executor_->Post([held = std::move(held)] {});  // Would deadlock if it died under the lock.
}

TEST_P(ThreadExecutorTest, TheExecutorMayBeDestroyedAsSoonAsTheLastTaskRan) {
  for (int i = 0; i < 200; ++i) {
    auto executor = NewExecutor(&clock_, GetParam());
    std::atomic<bool> ran = false;
    std::jthread poster([&, raw = executor.get()] { raw->Post([&] { ran = true; }); });
    while (!ran) std::this_thread::yield();
    executor.reset();  // The poster may still be on its way out of Post().
  }
}

TEST(ThreadExecutorClockTest, ATimerWakesASleepingThreadByItself) {
  auto executor = NewExecutor(SystemClock(), 0);
  std::promise<int64_t> fired_at;
  const int64_t due = SystemClock()->NowNanos() + 2'000'000;
  executor->PostAt(due, [&] { fired_at.set_value(SystemClock()->NowNanos()); });
  EXPECT_GE(fired_at.get_future().get(), due);
}

TEST(ThreadExecutorClockTest, AnEarlierTimerOvertakesTheOneBeingWaitedFor) {
  auto executor = NewExecutor(SystemClock(), 0);
  executor->PostAt(SystemClock()->NowNanos() + 3'600'000'000'000, [] { FAIL(); });
  Drain(executor.get());
  std::promise<void> fired;
  executor->PostAt(SystemClock()->NowNanos() + 1'000'000, [&] { fired.set_value(); });
  fired.get_future().wait();
}

TEST(ThreadExecutorDeathTest, AnExecutorCannotStopItself) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto executor = NewExecutor(SystemClock());
        executor->Post([&] { executor->Stop(); });
        Drain(executor.get());
      },
      "check failed");
}

// Counts, and has something to do when it is told.
class TestWaiter final : public Waiter {
 public:
  bool Poll() override {
    ++polls;
    return work.exchange(false);
  }
  void Sleep(int64_t) override {
    slept.release();
    woken.acquire();
  }
  void Wake() override { woken.release(); }

  std::atomic<int> polls = 0;
  std::atomic<bool> work = false;
  std::counting_semaphore<> slept{0};
  std::counting_semaphore<> woken{0};
};

TEST(WaiterTest, IsPolledBetweenTasksAndSleepsUntilSomethingIsPosted) {
  TestWaiter waiter;
  const auto executor =
      NewThreadExecutor({.name = "test", .spin_nanos = 0, .waiter = &waiter}, SystemClock());
  for (int round = 0; round < 100; ++round) {
    waiter.work = true;
    Drain(executor.get());
    Drain(executor.get());  // Behind a poll.
    EXPECT_FALSE(waiter.work);
  }
  EXPECT_GE(waiter.polls, 100);
  waiter.slept.acquire();  // At the latest now that nothing is left to do.
}

TEST(WaiterTest, HasItsTurnHoweverLongTheQueueIs) {
  TestWaiter waiter;
  ManualClock clock;
  const auto executor =
      NewThreadExecutor({.name = "test", .spin_nanos = 0, .waiter = &waiter}, &clock);
  std::promise<void> posted;
  executor->Post([&] { posted.get_future().wait(); });
  constexpr int kTasks = 100;
  int before = 0;
  int after = 0;
  executor->Post([&] { before = waiter.polls; });
  // The executor takes these tasks from its queue all at once.
  for (int i = 0; i < kTasks; ++i) executor->Post([&] { clock.Advance(60'000); });
  for (int i = 0; i < kTasks; ++i) executor->PostAt(0, [&] { clock.Advance(60'000); });
  executor->Post([&] { after = waiter.polls; });
  posted.set_value();
  Drain(executor.get());
  EXPECT_GE(after - before, kTasks - 2);  // Every second one.
}

}  // namespace
}  // namespace aquifer
