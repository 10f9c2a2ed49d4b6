#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "base/executor.h"

namespace aquifer {
namespace {

TEST(ThreadWorkerPoolTest, TheDestructorFinishesWhatWasGiven) {
  std::atomic<int> ran = 0;
  {
    auto pool = NewThreadWorkerPool(3, "test");
    for (int i = 0; i < 1000; ++i) pool->Run([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(ThreadWorkerPoolTest, TasksRunSideBySide) {
  auto pool = NewThreadWorkerPool(3, "test");
  std::latch all_three_run(3);  // Each waits for the others: one thread alone would hang.
  for (int i = 0; i < 3; ++i) pool->Run([&] { all_three_run.arrive_and_wait(); });
  all_three_run.wait();
  pool.reset();
}

TEST(ThreadWorkerPoolTest, ATaskMayGiveAnotherEvenWhileThePoolIsEnding) {
  std::atomic<int> ran = 0;
  {
    auto pool = NewThreadWorkerPool(2, "test");
    for (int i = 0; i < 50; ++i) {
      pool->Run([&, raw = pool.get()] { raw->Run([&] { ++ran; }); });
    }
  }
  EXPECT_EQ(ran, 50);
}

TEST(ThreadWorkerPoolTest, ManyThreadsMayGiveTasksAtOnce) {
  std::atomic<int> ran = 0;
  {
    auto pool = NewThreadWorkerPool(2, "test");
    std::vector<std::jthread> givers;
    givers.reserve(4);
    for (int i = 0; i < 4; ++i) {
      givers.emplace_back([&] {
        for (int j = 0; j < 2000; ++j) pool->Run([&] { ++ran; });
      });
    }
    givers.clear();
  }
  EXPECT_EQ(ran, 8000);
}

TEST(ThreadWorkerPoolDeathTest, APoolNeedsAThread) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(NewThreadWorkerPool(0, "test"), "check failed: threads > 0");
}

}  // namespace
}  // namespace aquifer
