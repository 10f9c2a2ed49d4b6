#include "io/disk/group_ledger.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "testing/manual_executor.h"
#include "testing/memory_extents.h"

namespace aquifer {
namespace {

class GroupLedgerTest : public testing::Test {
 protected:
  IoGroup* Group(const std::vector<bool>& valid) {
    groups_.push_back(std::make_unique<IoGroup>());
    for (const bool is_valid : valid) {
      IoRequest request;
      request.data = page_->bytes();
      request.offset = is_valid ? 0 : 1;
      groups_.back()->requests.push_back(request);
    }
    groups_.back()->on_done = [this](IoGroup& group) { done_.push_back(&group); };
    return groups_.back().get();
  }

  ManualExecutor executor_;
  std::unique_ptr<Extent> page_ = *MemoryExtents().New(kPageBytes);
  std::vector<std::unique_ptr<IoGroup>> groups_;
  std::vector<IoGroup*> done_;
};

TEST_F(GroupLedgerTest, AGroupIsDoneAfterItsLastRequest) {
  GroupLedger ledger(8, &executor_);
  IoGroup* group = Group({true, true});
  GroupLedger::Active* active = ledger.Admit(group);
  ASSERT_NE(active, nullptr);
  ledger.Finish(active, *active->Take());
  ledger.Flush();
  EXPECT_TRUE(executor_.idle());
  ledger.Finish(active, *active->Take());
  EXPECT_TRUE(executor_.idle());
  ledger.Flush();
  executor_.RunAll();
  EXPECT_EQ(done_, std::vector<IoGroup*>{group});
  EXPECT_EQ(ledger.stats().requests, 2u);
  EXPECT_EQ(ledger.stats().bytes_read, 2 * kPageBytes);
}

TEST_F(GroupLedgerTest, GroupsThatFinishTogetherTravelInOneTask) {
  GroupLedger ledger(8, &executor_);
  for (int i = 0; i < 4; ++i) {
    GroupLedger::Active* active = ledger.Admit(Group({true}));
    ledger.Finish(active, *active->Take());
    if (i % 2 == 1) ledger.Flush();  // The second finds the first task still waiting.
  }
  EXPECT_EQ(executor_.RunAll(), 1u);
  EXPECT_EQ(done_.size(), 4u);
}

TEST_F(GroupLedgerTest, AGroupThatDoesNotFitIsBusyAsAWhole) {
  GroupLedger ledger(3, &executor_);
  GroupLedger::Active* active = ledger.Admit(Group({true, true}));
  IoGroup* refused = Group({true, true});
  EXPECT_EQ(ledger.Admit(refused), nullptr);
  EXPECT_TRUE(done_.empty());
  executor_.RunAll();
  ASSERT_EQ(done_, std::vector<IoGroup*>{refused});
  EXPECT_EQ(refused->requests[0].status.code(), Code::kBusy);
  EXPECT_EQ(refused->requests[1].status.code(), Code::kBusy);

  ledger.Finish(active, *active->Take());
  EXPECT_NE(ledger.Admit(refused), nullptr);  // Two of three are free again.
}

TEST_F(GroupLedgerTest, OnlyValidRequestsAreGivenOut) {
  GroupLedger ledger(8, &executor_);
  IoGroup* group = Group({false, true, false, false, true, false});
  GroupQueue queue;
  queue.Push(ledger.Admit(group));
  const auto first = queue.Pop();
  const auto second = queue.Pop();
  EXPECT_EQ(first.request, &group->requests[1]);
  EXPECT_EQ(second.request, &group->requests[4]);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.Pop().request, nullptr);
  EXPECT_EQ(group->requests[0].status.code(), Code::kInvalid);
  ledger.Finish(first.active, *first.request);
  ledger.Finish(second.active, *second.request);
  ledger.Flush();
  executor_.RunAll();
  EXPECT_EQ(done_.size(), 1u);
}

TEST_F(GroupLedgerTest, AGroupWithNothingToDoIsDone) {
  GroupLedger ledger(8, &executor_);
  EXPECT_EQ(ledger.Admit(Group({})), nullptr);
  EXPECT_EQ(ledger.Admit(Group({false})), nullptr);
  EXPECT_TRUE(done_.empty());
  executor_.RunAll();
  EXPECT_EQ(done_.size(), 2u);
}

TEST_F(GroupLedgerTest, TheTaskMayRunWhenTheLedgerIsGone) {
  auto ledger = std::make_unique<GroupLedger>(8, &executor_);
  EXPECT_EQ(ledger->Admit(Group({})), nullptr);
  ledger.reset();
  executor_.RunAll();
  EXPECT_EQ(done_.size(), 1u);
}

TEST_F(GroupLedgerTest, QueuedGroupsComeOutInOrder) {
  GroupLedger ledger(8, &executor_);
  GroupQueue queue;
  IoGroup* a = Group({true, true});
  IoGroup* b = Group({true});
  queue.Push(ledger.Admit(a));
  queue.Push(ledger.Admit(b));
  EXPECT_EQ(queue.Pop().request, &a->requests[0]);
  EXPECT_EQ(queue.Pop().request, &a->requests[1]);
  EXPECT_EQ(queue.Pop().request, &b->requests[0]);
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace aquifer
