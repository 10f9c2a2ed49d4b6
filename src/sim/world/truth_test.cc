// A checker that cannot fail is worth nothing: every rule is broken here once.
#include "sim/world/truth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "testing/manual_clock.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kBytes = 4096;

class TruthTest : public testing::Test {
 protected:
  TruthTest()
      : truth_({.tenants = {{.dram_ceiling_bytes = 3 * kBytes, .ttl_seconds = 10}, {}},
                .keeps_what_is_safe = true},
               &clock_) {}

  std::span<std::byte> Memory(size_t slot) {
    return std::span(memory_).subspan(slot * kBytes, kBytes);
  }
  Truth::RequestNumber Ask() { return truth_.Asked("request", 1'000); }

  // Stores a block of tenant 1, which has no ceiling and no expiry, all the way.
  Payload Store(BlockNumber block, size_t slot) {
    const Truth::RequestNumber request = Ask();
    const Payload payload{.block = block,
                          .version = truth_.Reserved(block, Memory(slot), 1 + slot, request)};
    truth_.Answered(request);
    WritePayload(payload, Memory(slot));
    truth_.CommitSent(payload, Memory(slot));
    truth_.Committed(payload, true);
    return payload;
  }
  void Serve(BlockNumber block, size_t slot) {
    const Truth::RequestNumber request = Ask();
    truth_.Served(block, Memory(slot), 1 + slot, request);
    truth_.Answered(request);
  }

  ManualClock clock_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(8 * kBytes);
  Truth truth_;
};

TEST_F(TruthTest, WhatIsRightIsNoViolation) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  Store(block, 0);
  Serve(block, 0);
  Serve(block, 0);
  truth_.CheckLoans();
  truth_.Released(Memory(0));
  truth_.Released(Memory(0));
  EXPECT_EQ(truth_.loans(), 0u);
  EXPECT_THAT(truth_.violation(), IsEmpty());
}

TEST_F(TruthTest, BytesOfAnotherBlockAreWrong) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  const BlockNumber other = truth_.Add(1, kBytes, block);
  Store(block, 0);
  Serve(other, 0);
  EXPECT_THAT(truth_.violation(), HasSubstr("was served for"));
}

TEST_F(TruthTest, OneWrongByteIsWrong) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  Store(block, 0);
  Memory(0)[kBytes - 1] ^= std::byte{1};
  Serve(block, 0);
  EXPECT_THAT(truth_.violation(), HasSubstr("wrong bytes"));
}

TEST_F(TruthTest, ABlockIsNotServedBeforeItIsCommittedOrAfterItWasGivenUp) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  const Payload payload{.block = block, .version = truth_.Reserved(block, Memory(0), 1, Ask())};
  WritePayload(payload, Memory(0));
  Truth early = truth_;
  early.Served(block, Memory(0), 1, early.Asked("fetch", 1));
  EXPECT_THAT(early.violation(), HasSubstr("before it was committed"));
  truth_.GaveUp(payload, Memory(0));
  Serve(block, 0);
  EXPECT_THAT(truth_.violation(), HasSubstr("given up"));
}

TEST_F(TruthTest, WhatWasDeletedIsNotServedAgainUnlessItWasLentBefore) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  Store(block, 0);
  const Truth::RequestNumber earlier = Ask();
  const Truth::RequestNumber eviction = Ask();
  truth_.EvictSent(eviction, std::vector{block});
  truth_.Evicted(std::vector{block}, eviction);
  truth_.Answered(eviction);
  truth_.Served(block, Memory(0), 1, earlier);
  EXPECT_THAT(truth_.violation(), IsEmpty());
  truth_.Released(Memory(0));
  Serve(block, 0);
  EXPECT_THAT(truth_.violation(), HasSubstr("after it was deleted"));
}

TEST_F(TruthTest, WhatWasNeverStoredIsNotThere) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  truth_.Matched(block, Ask());
  EXPECT_THAT(truth_.violation(), HasSubstr("said to be there"));
}

TEST_F(TruthTest, AnExpiredBlockIsNotServed) {
  const BlockNumber block = truth_.Add(0, kBytes, kNoParent);
  Store(block, 0);
  clock_.SetUnixSeconds(clock_.UnixSeconds() + 11);
  Serve(block, 0);
  EXPECT_THAT(truth_.violation(), HasSubstr("after it expired"));
}

TEST_F(TruthTest, MemoryIsLentOnce) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  const BlockNumber other = truth_.Add(1, kBytes, kNoParent);
  Store(block, 0);
  Serve(block, 0);
  truth_.Reserved(other, Memory(0), 1, Ask());
  EXPECT_THAT(truth_.violation(), HasSubstr("which is being read"));
}

TEST_F(TruthTest, MemoryThatIsLentDoesNotChange) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  Store(block, 0);
  Serve(block, 0);
  Memory(0)[100] ^= std::byte{1};
  truth_.CheckLoans();
  EXPECT_THAT(truth_.violation(), HasSubstr("changed while it was lent"));
}

TEST_F(TruthTest, NobodyWritesToASlotThatIsBeingFilled) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  const Payload payload{.block = block, .version = truth_.Reserved(block, Memory(0), 1, Ask())};
  truth_.CommitSent(payload, Memory(0));
  EXPECT_THAT(truth_.violation(), HasSubstr("someone wrote to the slot"));
}

TEST_F(TruthTest, AnExtentHasOneTenant) {
  const BlockNumber block = truth_.Add(0, kBytes, kNoParent);
  const BlockNumber other = truth_.Add(1, kBytes, kNoParent);
  truth_.Reserved(block, Memory(0), 1, Ask());
  truth_.Reserved(other, Memory(1), 1, Ask());
  EXPECT_THAT(truth_.violation(), HasSubstr("in memory of tenant 0"));
}

TEST_F(TruthTest, ATenantHoldsNoMoreThanItsCeiling) {
  for (size_t slot = 0; slot < 4; ++slot) {
    EXPECT_THAT(truth_.violation(), IsEmpty());
    truth_.Reserved(truth_.Add(0, kBytes, kNoParent), Memory(slot), 1, Ask());
  }
  EXPECT_THAT(truth_.violation(), HasSubstr("over its ceiling"));
}

TEST_F(TruthTest, EverythingIsAnsweredInTimeAndOnce) {
  Truth late = truth_;
  late.Asked("fetch", 1'000);
  clock_.Advance(1'000 + 50'000'000);
  late.CheckDeadlines();
  EXPECT_THAT(late.violation(), IsEmpty());
  clock_.Advance(1);
  late.CheckDeadlines();
  EXPECT_THAT(late.violation(), HasSubstr("a fetch is not answered"));
  const Truth::RequestNumber request = Ask();
  truth_.Answered(request);
  truth_.Answered(request);
  EXPECT_THAT(truth_.violation(), HasSubstr("answered twice"));
}

TEST_F(TruthTest, WhatWasFlushedIsFoundWithAllAboveIt) {
  const BlockNumber parent = truth_.Add(1, kBytes, kNoParent);
  const BlockNumber child = truth_.Add(1, kBytes, parent);
  Store(child, 1);
  Store(parent, 0);
  truth_.Flushed(1, 0, truth_.Moment(), Code::kOk);
  EXPECT_TRUE(truth_.MustHave(parent));
  EXPECT_FALSE(truth_.MustHave(child));  // It may have gone while its parent was not there.
  Store(child, 2);
  truth_.Flushed(1, 0, truth_.Moment(), Code::kOk);
  EXPECT_TRUE(truth_.MustHave(child));
  truth_.Died(false);
  const Truth::RequestNumber request = Ask();
  truth_.Missed(child, request, false);
  EXPECT_THAT(truth_.violation(), IsEmpty());
  truth_.Missed(child, request, true);
  EXPECT_THAT(truth_.violation(), HasSubstr("though it was flushed"));
}

// Its drive was away: whatever becomes of the second one, the drive has the first.
TEST_F(TruthTest, WhatIsSafeIsSoWhileItIsStoredAgain) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  Store(block, 0);
  truth_.Flushed(1, 0, truth_.Moment(), Code::kOk);
  const Truth::RequestNumber request = Ask();
  const uint32_t version = truth_.Reserved(block, Memory(1), 2, request);
  EXPECT_TRUE(truth_.MustHave(block));
  truth_.GaveUp({.block = block, .version = version}, Memory(1));
  EXPECT_TRUE(truth_.MustHave(block));
  Store(block, 2);
  EXPECT_TRUE(truth_.MustHave(block));
  Truth deleted = truth_;
  deleted.ReportedCorrupt(block);
  EXPECT_FALSE(deleted.MustHave(block));
  truth_.Died(false);
  EXPECT_TRUE(truth_.MustHave(block));
  Store(block, 0);  // The node does not know of it yet: its drive comes late.
  EXPECT_TRUE(truth_.MustHave(block));
  EXPECT_THAT(truth_.violation(), IsEmpty());
}

TEST_F(TruthTest, AnythingThatMayTakeABlockAwayExcusesItsLoss) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  const auto safe = [&] {
    Store(block, 0);
    truth_.Flushed(1, 0, truth_.Moment(), Code::kOk);
    return truth_.MustHave(block);
  };
  ASSERT_TRUE(safe());
  truth_.ReportedCorrupt(block);
  EXPECT_FALSE(truth_.MustHave(block));
  ASSERT_TRUE(safe());
  truth_.Hinted(std::vector{block}, 5);
  EXPECT_FALSE(truth_.MustHave(block));
  EXPECT_FALSE(safe());  // Where its drive was away, that is its time still.
  clock_.SetUnixSeconds(clock_.UnixSeconds() + 5);
  ASSERT_TRUE(safe());
  truth_.Damaged();
  EXPECT_FALSE(truth_.MustHave(block));
}

TEST_F(TruthTest, WhileADeletionIsOpenNothingOfItIsSafeAndAfterItWhatIsStoredThenIs) {
  const BlockNumber parent = truth_.Add(1, kBytes, kNoParent);
  const BlockNumber child = truth_.Add(1, kBytes, parent);
  const BlockNumber other = truth_.Add(1, kBytes, kNoParent);
  const auto store_and_flush = [&] {
    Store(other, 2);
    Store(parent, 0);
    Store(child, 1);
    truth_.Flushed(1, 0, truth_.Moment(), Code::kOk);
  };
  const auto lost = [&](BlockNumber block) {
    Truth copy = truth_;
    copy.Missed(block, copy.Asked("fetch", 1'000), true);
    return !copy.violation().empty();
  };
  using End = std::function<void(Truth::RequestNumber)>;
  const std::vector<End> ends = {
      [&](Truth::RequestNumber deletion) { truth_.Answered(deletion); },
      [&](Truth::RequestNumber deletion) { truth_.Forgotten(deletion); },  // Its client is dead.
      [&](Truth::RequestNumber) { truth_.Died(false); },
  };
  for (const End& end : ends) {
    store_and_flush();
    EXPECT_TRUE(lost(child));
    const Truth::RequestNumber deletion = Ask();
    truth_.EvictSent(deletion, std::vector{parent});
    EXPECT_FALSE(lost(child));
    store_and_flush();
    EXPECT_FALSE(lost(parent));
    EXPECT_FALSE(lost(child));
    EXPECT_TRUE(lost(other));
    end(deletion);
    EXPECT_FALSE(lost(parent));  // It may have gone at the last moment.
    EXPECT_FALSE(lost(child));
    EXPECT_TRUE(lost(other));
    store_and_flush();
    EXPECT_TRUE(lost(parent));
    EXPECT_TRUE(lost(child));
  }
}

TEST_F(TruthTest, OfTwoDeletionsTheLastOneEndsTheExcuse) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  const Truth::RequestNumber by_key = Ask();
  const Truth::RequestNumber everything = Ask();
  truth_.EvictSent(by_key, std::vector{block});
  truth_.EvictAllSent(everything, 1);
  for (const Truth::RequestNumber deletion : {by_key, everything}) {
    Store(block, 0);
    truth_.Flushed(1, 0, truth_.Moment(), Code::kOk);
    EXPECT_FALSE(truth_.MustHave(block));
    truth_.Answered(deletion);
    EXPECT_FALSE(truth_.MustHave(block));
  }
  Store(block, 0);
  truth_.Flushed(1, 0, truth_.Moment(), Code::kOk);
  EXPECT_TRUE(truth_.MustHave(block));
}

TEST_F(TruthTest, AfterTheTimeThatAHintGaveABlockIsNotServedInThisLife) {
  const BlockNumber parent = truth_.Add(1, kBytes, kNoParent);
  const BlockNumber block = truth_.Add(1, kBytes, parent);
  Store(parent, 0);
  Store(block, 1);
  truth_.Hinted(std::vector{parent, block}, 10);
  clock_.SetUnixSeconds(clock_.UnixSeconds() + 11);
  Serve(parent, 0);  // The hint may not have come that far.
  Truth next_life = truth_;
  next_life.Died(false);
  next_life.Served(block, Memory(1), 2, next_life.Asked("fetch", 1'000));
  EXPECT_THAT(next_life.violation(), IsEmpty());
  Truth renewed = truth_;
  renewed.Hinted(std::vector{parent, block}, 10);
  renewed.Served(block, Memory(1), 2, renewed.Asked("fetch", 1'000));
  EXPECT_THAT(renewed.violation(), IsEmpty());
  Serve(block, 1);
  EXPECT_THAT(truth_.violation(), HasSubstr("1 s after it expired"));
}

TEST_F(TruthTest, WhatIsPinnedWithAllAboveItStays) {
  const BlockNumber parent = truth_.Add(1, kBytes, kNoParent);
  const BlockNumber block = truth_.Add(1, kBytes, parent);
  const auto pin = [&](const std::vector<BlockNumber>& blocks, bool calm = true) {
    const Truth::RequestNumber request = Ask();
    truth_.PinSent(blocks, 10);
    truth_.Pinned(blocks, 10, request, calm);
    truth_.Answered(request);
  };
  const auto gone = [&](Truth truth) {
    truth.Missed(block, truth.Asked("fetch", 1'000), true);
    return !truth.violation().empty();
  };
  pin({block});
  EXPECT_FALSE(gone(truth_));
  pin({parent, block}, false);
  EXPECT_FALSE(gone(truth_));
  pin({parent, block});
  EXPECT_TRUE(gone(truth_));

  const auto excused = [&](const std::function<void(Truth*)>& by) {
    Truth truth = truth_;
    by(&truth);
    return !gone(truth);
  };
  const auto evict = [&](Truth* truth) {
    const Truth::RequestNumber request = truth->Asked("evict", 1'000);
    truth->EvictSent(request, std::vector{parent});
    return request;
  };
  EXPECT_TRUE(excused([&](Truth* truth) { truth->PinSent(std::vector{parent}, 10); }));
  EXPECT_TRUE(excused([&](Truth* truth) { evict(truth); }));
  EXPECT_TRUE(excused([&](Truth* truth) { truth->Answered(evict(truth)); }));
  EXPECT_TRUE(excused([&](Truth* truth) { truth->ReportedCorrupt(block); }));
  EXPECT_TRUE(excused([&](Truth* truth) { truth->Hinted(std::vector{parent}, 5); }));
  EXPECT_TRUE(excused([&](Truth* truth) { truth->CalendarSet(); }));
  EXPECT_TRUE(excused([&](Truth* truth) { truth->Disturbed(); }));
  EXPECT_TRUE(excused([&](Truth* truth) { truth->Damaged(); }));
  EXPECT_TRUE(excused([&](Truth* truth) { truth->Died(false); }));
  EXPECT_TRUE(gone(truth_));
  clock_.SetUnixSeconds(clock_.UnixSeconds() + 10);
  EXPECT_FALSE(gone(truth_));
}

TEST_F(TruthTest, APinBelowOneThatWasTakenAwayMeanwhilePromisesNothing) {
  const BlockNumber parent = truth_.Add(1, kBytes, kNoParent);
  const BlockNumber block = truth_.Add(1, kBytes, parent);
  const auto pin = [&](const std::vector<BlockNumber>& blocks, int64_t seconds) {
    const Truth::RequestNumber request = Ask();
    truth_.PinSent(blocks, seconds);
    if (seconds > 0) truth_.Pinned(blocks, seconds, request, true);
    truth_.Answered(request);
  };
  const auto gone = [&](Truth truth) {
    truth.Missed(block, truth.Asked("fetch", 1'000), true);
    return !truth.violation().empty();
  };
  pin({parent, block}, 100);
  pin({parent}, 100);  // Without a gap.
  EXPECT_TRUE(gone(truth_));
  pin({parent}, 0);
  EXPECT_FALSE(gone(truth_));
  pin({parent}, 100);
  EXPECT_FALSE(gone(truth_));
  pin({parent, block}, 100);
  EXPECT_TRUE(gone(truth_));
}

TEST_F(TruthTest, NothingIsCorruptUnlessADriveWasDamaged) {
  const BlockNumber block = truth_.Add(1, kBytes, kNoParent);
  Store(block, 0);
  truth_.Corrupt(block);
  EXPECT_THAT(truth_.violation(), HasSubstr("no drive was damaged"));
}

}  // namespace
}  // namespace aquifer
