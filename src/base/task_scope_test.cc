#include "base/task_scope.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "testing/manual_clock.h"
#include "testing/manual_executor.h"

namespace aquifer {
namespace {

class TaskScopeTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  ManualExecutor executor_{&clock_};
  std::vector<int> ran_;
};

TEST_F(TaskScopeTest, TasksRunInOrderAndNeverInsidePost) {
  TaskScope scope(&executor_);
  scope.Post([this] { ran_.push_back(1); });
  scope.Post([this] { ran_.push_back(2); });
  EXPECT_TRUE(ran_.empty());
  executor_.RunAll();
  EXPECT_EQ(ran_, (std::vector{1, 2}));
}

TEST_F(TaskScopeTest, ATimerRunsWhenItsTimeHasCome) {
  TaskScope scope(&executor_);
  scope.PostAt(clock_.NowNanos() + 100, [this] { ran_.push_back(1); });
  executor_.RunAll();
  EXPECT_TRUE(ran_.empty());
  executor_.AdvanceAndRun(100);
  EXPECT_EQ(ran_, std::vector{1});
}

TEST_F(TaskScopeTest, TasksOfAScopeThatIsGoneAreDropped) {
  auto scope = std::make_unique<TaskScope>(&executor_);
  TaskScope other(&executor_);
  TaskScope::Once once;
  auto late = scope->Guard([this](int number) { ran_.push_back(number); });
  late(9);
  EXPECT_EQ(ran_, std::vector{9});
  scope->Post([this] { ran_.push_back(2); });
  scope->PostAt(clock_.NowNanos() + 100, [this] { ran_.push_back(3); });
  once.Post(scope.get(), [this] { ran_.push_back(4); });
  other.Post([this] { ran_.push_back(5); });
  scope.reset();
  late(1);
  executor_.AdvanceAndRun(200);
  EXPECT_EQ(ran_, (std::vector{9, 5}));
}

TEST_F(TaskScopeTest, OnceRunsOnceForAllWhoAskBeforeItBegins) {
  TaskScope scope(&executor_);
  TaskScope::Once once;
  for (int i = 0; i < 3; ++i) {
    once.Post(&scope, [this, i] { ran_.push_back(i); });
  }
  EXPECT_TRUE(once.posted());
  executor_.RunAll();
  EXPECT_EQ(ran_, std::vector{0});
  EXPECT_FALSE(once.posted());
  once.PostAt(&scope, clock_.NowNanos() + 100, [this] { ran_.push_back(7); });
  once.Post(&scope, [this] { ran_.push_back(8); });
  executor_.AdvanceAndRun(100);
  EXPECT_EQ(ran_, (std::vector{0, 7}));
}

// It is not queued any more when it runs: it may ask for itself again.
TEST_F(TaskScopeTest, OnceMayAskForItselfFromInside) {
  TaskScope scope(&executor_);
  TaskScope::Once once;
  once.Post(&scope, [&] {
    ran_.push_back(1);
    once.Post(&scope, [this] { ran_.push_back(2); });
  });
  executor_.RunAll();
  EXPECT_EQ(ran_, (std::vector{1, 2}));
}

// A task may be the end of what owns the scope.
TEST_F(TaskScopeTest, ATaskMayDestroyItsScope) {
  auto scope = std::make_unique<TaskScope>(&executor_);
  scope->Post([&] { scope.reset(); });
  scope->Post([this] { ran_.push_back(1); });
  executor_.RunAll();
  EXPECT_TRUE(ran_.empty());
}

}  // namespace
}  // namespace aquifer
