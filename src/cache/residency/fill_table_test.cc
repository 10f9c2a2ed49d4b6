#include "cache/residency/fill_table.h"

#include <vector>

#include "testing/cache/residency_fixture.h"

namespace aquifer {
namespace {

class FillTableTest : public ResidencyFixture {
 protected:
  FillTableTest() {
    fills_.on_ended = [this](const BlockName& name) { ended_.push_back(name); };
  }
  BlockRef Begin(uint32_t position) {
    const BlockRef ref = AddFilling(position);
    fills_.Begin(ref, 1);
    fills_.Touch(ref);
    return ref;
  }
  Code Cover(BlockRef ref, uint32_t begin, uint32_t end) {
    CommitOp op;
    op.head_begin = begin;
    op.head_end = end;
    return fills_.Cover(ref, 8, op, &complete_).code();
  }

  FillTable fills_{residency_.get(), &clock_};
  std::vector<BlockName> ended_;
  bool complete_ = false;
};

TEST_F(FillTableTest, ABlockIsCompleteWhenItsRanksCoverEveryHeadOnce) {
  const BlockRef ref = Begin(0);
  EXPECT_EQ(Cover(ref, 4, 8), Code::kOk);
  EXPECT_FALSE(complete_);
  EXPECT_EQ(Cover(ref, 3, 5), Code::kInvalid) << "4 is there already";
  EXPECT_EQ(Cover(ref, 6, 9), Code::kInvalid) << "there is no ninth";
  EXPECT_EQ(Cover(ref, 2, 2), Code::kInvalid);
  EXPECT_EQ(Cover(ref, 0, 3), Code::kOk);
  EXPECT_FALSE(complete_);
  EXPECT_EQ(Cover(ref, 3, 4), Code::kOk);
  EXPECT_TRUE(complete_);
  fills_.Publish(ref, kBlockBytes);
  EXPECT_EQ(StateOf(ref), BlockState::kResident);
  EXPECT_EQ(fills_.Find(NameOf(0)), nullptr);
  EXPECT_EQ(ended_, std::vector{NameOf(0)});
}

TEST_F(FillTableTest, OneRankMayBringAllHeadsWithoutNamingThem) {
  const BlockRef ref = Begin(0);
  EXPECT_EQ(Cover(ref, 0, 0), Code::kOk);
  EXPECT_TRUE(complete_);
}

TEST_F(FillTableTest, AVoidFillLeavesNothingBehind) {
  const BlockRef ref = Begin(0);
  ASSERT_NE(fills_.Find(NameOf(0)), nullptr);
  EXPECT_EQ(fills_.Find(NameOf(0))->engine, 1u);
  fills_.Void(ref);
  EXPECT_EQ(fills_.Find(NameOf(0)), nullptr);
  EXPECT_EQ(residency_->index().Find(NameOf(0)), BlockRef{kNoBlock});
  EXPECT_EQ(ended_, std::vector{NameOf(0)});
}

TEST_F(FillTableTest, OnlyFillsThatNobodyTouchesAreOverdue) {
  const BlockRef stale = Begin(0);
  clock_.Advance(100);
  const BlockRef touched = Begin(1);
  std::vector<BlockRef> overdue;
  fills_.on_overdue = [&](BlockRef ref) { overdue.push_back(ref); };
  size_t max = 10;
  fills_.VoidOverdue(clock_.NowNanos() - 50, &max);
  EXPECT_EQ(overdue, std::vector{stale});
  EXPECT_EQ(max, 9u);
  EXPECT_EQ(StateOf(touched), BlockState::kFilling);
}

TEST_F(FillTableTest, NoMoreOverdueFillsAreVoidedThanOneTaskMay) {
  for (uint32_t i = 0; i < 5; ++i) Begin(i);
  clock_.Advance(100);
  size_t max = 2;
  fills_.VoidOverdue(clock_.NowNanos() - 50, &max);
  EXPECT_EQ(max, 0u);
  EXPECT_EQ(ended_.size(), 2u);
}

TEST_F(FillTableTest, WaitsAreEstimatedByWhatFillsTook) {
  for (uint32_t i = 0; i < 100; ++i) {
    const BlockRef ref = Begin(0);
    clock_.Advance(100'000'000);
    Cover(ref, 0, 8);
    fills_.Publish(ref, kBlockBytes);
    residency_->Drop(ref, Leave::kAsked);
  }
  const BlockRef ref = Begin(0);
  EXPECT_NEAR(fills_.WaitMs(fills_.at(ref)), 100, 1);
  clock_.Advance(60'000'000);
  EXPECT_NEAR(fills_.WaitMs(fills_.at(ref)), 40, 1);
  clock_.Advance(600'000'000);
  EXPECT_EQ(fills_.WaitMs(fills_.at(ref)), 1);
}

}  // namespace
}  // namespace aquifer
