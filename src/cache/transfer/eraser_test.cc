// What a deletion may say of itself while others are tried again.
#include "cache/transfer/eraser.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"

namespace aquifer {
namespace {

// Answers deletions when it is told to, and is asked for nothing else.
class ErasingTier final : public Tier {
 public:
  void Erase(Batch<EraseOp>* batch) override { batches.push_back(batch); }
  void Answer(size_t batch, const Status& status) {
    for (EraseOp& op : batches[batch]->ops) op.status = status;
    batches[batch]->on_done(*batches[batch]);
  }

  void Read(Batch<ReadOp>*) override { AQ_CHECK(false); }
  void Write(Batch<WriteOp>*) override { AQ_CHECK(false); }
  Status Probe(const BlockId&) const override { return Status(Code::kNotFound); }
  TierUsage Usage() const override { return {}; }
  bool in_service() const override { return true; }
  std::vector<std::pair<std::string, uint64_t>> Counters() const override { return {}; }

  std::vector<Batch<EraseOp>*> batches;
};

class EraserTest : public ::testing::Test {
 protected:
  EraserTest() { eraser_.SetTarget(&tier_); }

  static BlockId Block(uint8_t tenant, uint8_t number) {
    BlockId id;
    id.tenant.bytes[0] = std::byte{tenant};
    id.key.bytes[0] = std::byte{number};
    return id;
  }
  // Where the answer comes to.
  void Wait(uint8_t tenant, std::vector<Code>* answer) {
    eraser_.Barrier(Block(tenant, 0).tenant,
                    [answer](const Status& status) { answer->push_back(status.code()); });
    executor_.RunAll();
  }

  ManualClock clock_;
  ManualExecutor executor_{&clock_};
  ErasingTier tier_;
  Eraser eraser_{{.enabled = true, .max_remembered = 10, .max_remembered_per_tenant = 10},
                 &executor_,
                 &clock_};
};

TEST_F(EraserTest, WhatFailedIsNotAcknowledgedWhileItIsTriedAgainForAnother) {
  eraser_.Add(Block(2, 1));
  eraser_.Pump();
  eraser_.Add(Block(1, 1));
  std::vector<Code> first;
  std::vector<Code> second;
  Wait(1, &first);
  ASSERT_EQ(tier_.batches.size(), 2u);
  tier_.Answer(1, Status(Code::kUnavailable));
  EXPECT_TRUE(first.empty());  // What was asked for before is not answered.
  Wait(2, &second);            // Tries everything again.
  ASSERT_EQ(tier_.batches.size(), 3u);
  tier_.Answer(0, Status());
  executor_.RunAll();
  EXPECT_EQ(first, std::vector{Code::kUnavailable});
  EXPECT_TRUE(second.empty());
  tier_.Answer(2, Status());
  executor_.RunAll();
  EXPECT_EQ(second, std::vector{Code::kOk});

  std::vector<Code> third;
  Wait(1, &third);
  tier_.Answer(3, Status());
  executor_.RunAll();
  EXPECT_EQ(third, std::vector{Code::kOk});
}

TEST_F(EraserTest, OneTenantsFailureIsNotAnothers) {
  eraser_.Add(Block(1, 1));
  eraser_.Add(Block(2, 1));
  std::vector<Code> answer;
  Wait(1, &answer);
  for (EraseOp& op : tier_.batches[0]->ops) {
    op.status = Status(op.id.tenant == Block(2, 0).tenant ? Code::kUnavailable : Code::kOk);
  }
  tier_.batches[0]->on_done(*tier_.batches[0]);
  executor_.RunAll();
  EXPECT_EQ(answer, std::vector{Code::kOk});
}

}  // namespace
}  // namespace aquifer
