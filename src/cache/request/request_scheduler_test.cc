// The scheduler with jobs that only write down what they are told.
#include "cache/request/request_scheduler.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/manual_clock.h"
#include "testing/manual_executor.h"

namespace aquifer {
namespace {

struct Notebook {
  RequestScheduler* scheduler = nullptr;
  std::vector<std::string> lines;
};

class NotingJob final : public Job {
 public:
  static constexpr size_t kKind = 1;
  explicit NotingJob(Notebook* book) : Job(book->scheduler, kKind), book_(book) {}

  void Reset() override { slices_ = 0; }
  void Run() override {
    Say("run");
    if (++slices_ < 3) return RunAgain();
    if (wait_nanos > 0) return WakeAt(begun_nanos() + wait_nanos);
    End(slices_);
  }
  void OnTimer() override {
    Say("timer");
    End(slices_);
  }
  void Cancel() override {
    Say("cancel");
    End(slices_);
  }
  void Drop() override { Say("drop"); }

  int64_t wait_nanos = 0;

 private:
  void Say(const std::string& what) {
    book_->lines.push_back(what + " " + std::to_string(client()));
  }

  Notebook* const book_;
  size_t slices_ = 0;
};

class RequestSchedulerTest : public ::testing::Test {
 protected:
  RequestSchedulerTest() { book_.scheduler = scheduler_.get(); }

  NotingJob* Begin(ClientNumber client, Request* request, int64_t wait_nanos = 0) {
    auto* const job = scheduler_->Take<NotingJob>(client, request, &book_);
    job->wait_nanos = wait_nanos;
    job->Reset();
    job->Run();
    return job;
  }
  std::vector<std::string> Lines() { return std::exchange(book_.lines, {}); }

  ManualClock clock_;
  ManualExecutor executor_{&clock_};
  Notebook book_;
  std::unique_ptr<RequestScheduler> scheduler_ =
      std::make_unique<RequestScheduler>(RequestSchedulerParts{
          .job_kinds = 2,
          .timer_horizon_nanos = 1000,
          .executor = &executor_,
          .clock = &clock_,
          .on_progress = [this](ClientNumber client, Request*, size_t completed, bool done) {
            book_.lines.push_back((done ? "done " : "progress ") + std::to_string(client) + " " +
                                  std::to_string(completed));
          }});
  FlushRequest request_;
  FlushRequest other_;
};

TEST_F(RequestSchedulerTest, AJobRunsASliceInEachTaskAndIsAnsweredOnce) {
  Begin(4, &request_);
  EXPECT_EQ(Lines(), std::vector<std::string>{"run 4"});
  EXPECT_EQ(scheduler_->running(), 1u);
  executor_.RunAll();
  EXPECT_EQ(Lines(), (std::vector<std::string>{"run 4", "run 4", "done 4 3"}));
  EXPECT_EQ(scheduler_->running(), 0u);
  EXPECT_EQ(scheduler_->begun(), 1u);
  EXPECT_EQ(scheduler_->times(NotingJob::kKind).count(), 1u);
}

TEST_F(RequestSchedulerTest, AFinishedJobIsUsedAgainAndHearsNothingOfItsLastUse) {
  Job* const first = Begin(1, &request_);
  scheduler_->Cancel(1, &request_);
  EXPECT_EQ(Lines(), (std::vector<std::string>{"run 1", "cancel 1", "done 1 1"}));
  EXPECT_EQ(Begin(2, &other_), first);
  executor_.RunAll();
  EXPECT_EQ(Lines(), (std::vector<std::string>{"run 2", "run 2", "run 2", "done 2 3"}));
}

TEST_F(RequestSchedulerTest, AJobIsWokenWhenItsTimeHasCome) {
  Begin(1, &request_, 5000);
  executor_.AdvanceAndRun(4999);
  EXPECT_EQ(scheduler_->running(), 1u);
  executor_.AdvanceAndRun(1);
  EXPECT_EQ(Lines().back(), "done 1 3");
}

TEST_F(RequestSchedulerTest, AJobThatHasEndedIsNotWoken) {
  Begin(1, &request_, 5000);
  executor_.RunAll();
  scheduler_->Cancel(1, &request_);
  Lines();
  executor_.AdvanceAndRun(10'000);
  EXPECT_TRUE(Lines().empty());
}

TEST_F(RequestSchedulerTest, OnlyTheRequestThatIsNamedIsCancelled) {
  Begin(1, &request_);
  Begin(1, &other_);
  Lines();
  scheduler_->Cancel(2, &request_);
  scheduler_->Cancel(1, &other_);
  EXPECT_EQ(Lines(), (std::vector<std::string>{"cancel 1", "done 1 1"}));
  EXPECT_EQ(scheduler_->running(), 1u);
}

TEST_F(RequestSchedulerTest, JobsOfAClientThatIsGoneEndASliceAtATimeWithoutAWord) {
  for (int i = 0; i < 5; ++i) Begin(1, &request_);
  Begin(2, &other_);
  scheduler_->GiveUp(1);
  Lines();
  EXPECT_TRUE(scheduler_->DropSome(3));
  EXPECT_EQ(Lines(), std::vector<std::string>(3, "drop 1"));
  EXPECT_FALSE(scheduler_->DropSome(3));
  EXPECT_EQ(scheduler_->running(), 1u);
  Lines();
  executor_.RunAll();
  EXPECT_EQ(Lines().back(), "done 2 3");
}

TEST_F(RequestSchedulerTest, NothingRunsWhenTheSchedulerIsGone) {
  Begin(1, &request_, 5000);
  Lines();
  scheduler_.reset();
  executor_.AdvanceAndRun(10'000);
  EXPECT_TRUE(Lines().empty());
}

}  // namespace
}  // namespace aquifer
