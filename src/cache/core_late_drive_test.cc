// A drive that comes late has what was stored in an earlier life, and engines store some of that
// anew meanwhile: what they have not finished, or what is not written yet, costs none of it.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "testing/cache/core_absent_drive_fixture.h"

namespace aquifer {
namespace {

class CoreLateDriveTest : public CoreAbsentDriveFixture {
 protected:
  // The chain is on "two" alone, which is away; "one" is there, and may take nothing.
  void StoreAndMissDrive(const CoreOptions& options = SmallCache()) {
    ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain_, 1, options));
  }
  void BringDrive() {
    world_->FailOpeningOf("two", false);
    world_->Advance(4 * kSecond);
  }
  // "two" comes while the chain, computed again, is being written to "one", which then takes
  // nothing.
  void FailAWriteWhileTheDriveComes() {
    ASSERT_EQ(Store(other_), other_.size());
    world_->Advance(kSecond);  // So that "one" has a segment to write to.
    world_->disk("one").Hang(true);
    ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
    world_->Advance(kSecond / 10);
    BringDrive();
    world_->disk("one").SetReadOnly(true);
    world_->disk("one").Hang(false);
  }
  std::unique_ptr<EvictRequest> EvictAs(int how) {
    auto evict = std::make_unique<EvictRequest>();
    if (how == 0) evict->chain = Slice(chain_);
    if (how == 1) evict->session = "session";
    if (how == 2) evict->everything = true;
    client_->Do(&Core::Evict, evict.get());
    return evict;
  }
};

TEST_F(CoreLateDriveTest, WhatIsBeingStoredAnewAndGivenUpIsStillOnTheDrive) {
  enum class How : uint8_t { kAbort, kDetach, kOverdue, kCrash };
  for (const How how : {How::kAbort, How::kDetach, How::kOverdue, How::kCrash}) {
    SCOPED_TRACE(static_cast<int>(how));
    CoreOptions options = SmallCache();
    options.cache.overdue_nanos = 20 * kSecond;
    ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive(options));
    const auto engine = AttachRank("engine");
    const auto reserved = Reserve(chain_, engine.get());
    ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
    BringDrive();
    EXPECT_EQ(Recall(chain_), 0u) << "it is being filled";
    if (how == How::kAbort) engine->Abort(Given(*reserved));
    if (how == How::kDetach) engine->Detach();
    if (how == How::kOverdue) world_->Advance(25 * kSecond);
    how == How::kCrash ? Restart() : world_->Run();
    EXPECT_EQ(Recall(chain_), kBlocks);
    EXPECT_TRUE(Flush().ok());
    EXPECT_TRUE(Evict(chain_)->status.ok());
    if (how == How::kOverdue) engine->Detach();
    world_->Run();
    ExpectNothingLeft();
    ExpectNoDamage();
  }
}

TEST_F(CoreLateDriveTest, WhatIsBeingStoredAnewIsKeptWhereItsSegmentIsReclaimed) {
  ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
  const auto engine = AttachRank("engine");
  const auto reserved = Reserve(chain_, engine.get());
  ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
  BringDrive();
  for (uint64_t seed = 1000; seed < 1320; ++seed) {  // More than both drives hold.
    ASSERT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 16})), 16u);
    ASSERT_TRUE(Flush().ok());
  }
  EXPECT_GT(Counter("nvme_reclaim_dropped_blocks"), 0u);
  EXPECT_GE(Counter("nvme_reclaim_moved_blocks"), kBlocks);
  engine->Abort(Given(*reserved));
  world_->Run();
  EXPECT_EQ(Recall(chain_), kBlocks);
}

TEST_F(CoreLateDriveTest, WhatIsCommittedAfterTheDriveCameIsServedAndTheDrivesIsKeptForIt) {
  ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
  const auto engine = AttachRank("engine");
  const auto reserved = Reserve(chain_, engine.get());
  BringDrive();
  EXPECT_EQ(Published(Commit(*reserved, engine.get())), kBlocks);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(Counter("nvme_live_blocks"), kBlocks);
  EXPECT_EQ(Counter("write_down_blocks"), 0u) << "the drive has it";
  Crowd();
  EXPECT_EQ(Recall(chain_), kBlocks);
  Restart();
  EXPECT_EQ(Recall(chain_), kBlocks);
  EXPECT_TRUE(Evict(chain_)->status.ok());
  Restart();
  EXPECT_EQ(Recall(chain_), 0u);
  ExpectNoDamage();
}

// It was flushed in an earlier life, and the new one has not got to a drive by then.
TEST_F(CoreLateDriveTest, WhatWasFlushedOutlivesACrashBeforeWhatWasStoredAnewIsWritten) {
  ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
  world_->disk("one").FailAll(IoKind::kWrite, Code::kUnavailable);
  world_->disk("one").FailAll(IoKind::kCreate, Code::kUnavailable);
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  world_->Advance(kSecond);
  BringDrive();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  EXPECT_TRUE(Flush().ok()) << "the drive has it";
  Restart();
  EXPECT_EQ(Recall(chain_), kBlocks);
  ExpectNoDamage();
}

// The record that the write was to replace is all that there is of the block on any drive.
TEST_F(CoreLateDriveTest, WhatWasFlushedOutlivesAWriteThatFailsWhileItsDriveComes) {
  ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
  ASSERT_NO_FATAL_FAILURE(FailAWriteWhileTheDriveComes());
  world_->Advance(kSecond / 50);  // Before it is tried again.
  Restart();
  EXPECT_EQ(Recall(chain_), kBlocks);
  ExpectNoDamage();
}

// The same where all of the tenant's was deleted while the drive was away.
TEST_F(CoreLateDriveTest, WhatWasDeletedStaysSoWhereAWriteFailsWhileItsDriveComes) {
  ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
  EXPECT_EQ(EvictAs(2)->status.code(), Code::kUnavailable);
  ASSERT_NO_FATAL_FAILURE(FailAWriteWhileTheDriveComes());
  world_->Advance(4 * kSecond);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  EXPECT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
}

// A write of what is gone is still under way, and its end deletes whatever the drives have of it.
TEST_F(CoreLateDriveTest, WhatIsStoredBehindAWriteOfWhatIsGoneIsWrittenWhenThatHasEnded) {
  ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
  ASSERT_EQ(Store(other_), other_.size());
  world_->Advance(kSecond);
  world_->disk("one").Hang(true);
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  world_->Advance(kSecond / 10);
  const auto fetch = Fetch(chain_);
  std::vector<ReleaseOp> leases;
  for (const FetchOp& op : fetch->ops) leases.push_back({.lease = op.lease, .corrupt = true});
  client_->Release(leases);
  ASSERT_EQ(Store(chain_, client_.get(), 2), kBlocks);
  BringDrive();
  world_->disk("one").Hang(false);
  world_->Advance(kSecond);
  EXPECT_EQ(Recall(chain_, nullptr, 2), kBlocks);
  EXPECT_EQ(Flush().code(), Code::kNoSpace) << "it tells of those that were damaged, once";
  EXPECT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain_, nullptr, 2), kBlocks);
}

TEST_F(CoreLateDriveTest, ADeletionWhileItIsBeingStoredAnewIsOfWhatTheDriveHas) {
  enum class When : uint8_t { kBeforeTheDrive, kBehindTheDrive, kJustGivenUp };
  for (const When when : {When::kBeforeTheDrive, When::kBehindTheDrive, When::kJustGivenUp}) {
    for (const int how : {0, 1, 2}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(when) << " " << how);
      ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
      const auto engine = AttachRank("engine");
      const auto reserved = Reserve(chain_, engine.get());
      ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
      Hint(chain_, 0);
      if (when == When::kBeforeTheDrive) {
        EXPECT_EQ(EvictAs(how)->status.code(), Code::kUnavailable);
        BringDrive();
      } else {
        BringDrive();
        // Without a task of the owner's in between.
        if (when == When::kJustGivenUp) engine->Abort(Given(*reserved));
        EXPECT_TRUE(EvictAs(how)->status.ok());
      }
      if (when != When::kJustGivenUp) engine->Abort(Given(*reserved));
      world_->Run();
      EXPECT_EQ(Recall(chain_), 0u);
      EXPECT_EQ(Counter("nvme_live_blocks"), 0u);
      ExpectNothingLeft();
      Restart();
      EXPECT_EQ(Recall(chain_), 0u);
    }
  }
}

// Blocks that one rank gave up and another still holds are gone, and hide none of those above them.
TEST_F(CoreLateDriveTest, ADeletionOfASessionIsOfWhatOneRankGaveUpAndAnotherHolds) {
  ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
  const auto first = AttachRank("engine");
  const auto second = AttachRank("engine");
  const auto reserved = Reserve(chain_, first.get());
  const auto held = Reserve(chain_, second.get());
  ASSERT_EQ(Count(*held, ReserveOutcome::kSlot), kBlocks);
  Hint(chain_, 0);
  BringDrive();
  // Behind the first step of the deletion, and before the others.
  EvictRequest evict;
  evict.session = "session";
  client_->Submit(&Core::Evict, &evict);
  ASSERT_FALSE(evict.done());
  first->Abort(Given(*reserved));
  ASSERT_TRUE(world_->RunUntil([&evict] { return evict.done(); }));
  EXPECT_TRUE(evict.status.ok());
  second->Abort(Given(*held));
  world_->Run();
  EXPECT_EQ(Recall(chain_), 0u);
  EXPECT_EQ(Counter("nvme_live_blocks"), 0u);
  ExpectNothingLeft();
}

// A sweep of all that a tenant has is past the blocks' places when they are given up.
TEST_F(CoreLateDriveTest, WhatIsGivenUpInTheMiddleOfADeletionOfEverythingIsDeletedOnTheDriveToo) {
  ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
  const auto engine = AttachRank("engine");
  const auto reserved = Reserve(chain_, engine.get());
  ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
  BringDrive();
  // More blocks than two slices delete.
  for (const uint64_t seed : {3, 4, 5, 6, 7}) {
    EXPECT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 40})), 40u);
  }
  EvictRequest evict;
  evict.everything = true;
  client_->Submit(&Core::Evict, &evict);
  ASSERT_FALSE(evict.done());
  engine->Abort(Given(*reserved));
  ASSERT_TRUE(world_->RunUntil([&evict] { return evict.done(); }));
  EXPECT_TRUE(evict.status.ok());
  world_->Run();
  EXPECT_EQ(Recall(chain_), 0u);
  EXPECT_EQ(Counter("nvme_live_blocks"), 0u);
  Restart();
  EXPECT_EQ(Recall(chain_), 0u);
}

// The sweep is past their places, too: they stay, on drives as well, and only what was there before
// them goes. At every step of the sweep they are committed, and handed to the tier at once.
TEST_F(CoreLateDriveTest, WhatIsWrittenInTheMiddleOfADeletionOfEverythingStays) {
  bool in_time = true;
  size_t steps = 0;
  for (; in_time; ++steps) {
    SCOPED_TRACE(steps);
    ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
    ASSERT_EQ(Store(other_), other_.size());
    const auto engine = AttachRank("engine");
    const auto reserved = Reserve(chain_, engine.get());
    ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
    CommitRequest commit;
    for (size_t i = 0; i < kBlocks; ++i) {
      const ReserveOp& op = reserved->ops[i];
      FillPayload(chain_[i], 1, op.slot);
      CommitOp& added = commit.ops.emplace_back();
      added.reservation = op.reservation;
      added.sums = SumLanes(op.slot, 0);
    }
    BringDrive();
    for (const uint64_t seed : {3, 4, 5, 6, 7}) {
      EXPECT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 40})), 40u);
    }
    EvictRequest evict;
    evict.everything = true;
    client_->Submit(&Core::Evict, &evict);
    in_time = false;
    world_->after_task = [&, left = steps]() mutable {
      if (left-- != 0 || evict.done()) return;
      in_time = true;
      engine->Submit(&Core::Commit, &commit);
      Hint(chain_, 0);  // Which has all written that waits.
    };
    ASSERT_TRUE(world_->RunUntil([&evict] { return evict.done(); }));
    world_->after_task = nullptr;
    EXPECT_TRUE(evict.status.ok());
    if (!in_time) break;
    world_->Run();
    ASSERT_TRUE(commit.done());
    EXPECT_EQ(Published(commit.ops), kBlocks);
    EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
    EXPECT_TRUE(Flush().ok());
    EXPECT_EQ(Counter("nvme_live_blocks"), kBlocks);
    Restart();
    EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  }
  EXPECT_GT(steps, 3u);
}

// All of the tenant's was deleted while the drive was away: what it has is of before.
TEST_F(CoreLateDriveTest, WhatWasDeletedIsNotTakenForWhatIsStoredAnew) {
  for (const bool committed : {true, false}) {
    SCOPED_TRACE(committed);
    ASSERT_NO_FATAL_FAILURE(StoreAndMissDrive());
    EXPECT_EQ(EvictAs(2)->status.code(), Code::kUnavailable);
    const auto engine = AttachRank("engine");
    const auto reserved = Reserve(chain_, engine.get());
    world_->disk("one").FailAll(IoKind::kWrite, Code::kUnavailable);
    if (committed) {
      ASSERT_EQ(Published(Commit(*reserved, engine.get())), kBlocks);
    }
    BringDrive();
    EXPECT_EQ(Recall(chain_, nullptr, 1), committed ? kBlocks : 0u);
    if (!committed) engine->Abort(Given(*reserved));
    world_->disk("one").FailAll(IoKind::kWrite, Code::kOk);
    world_->Advance(4 * kSecond);
    EXPECT_TRUE(Flush().ok());
    Crowd();
    EXPECT_EQ(Recall(chain_, nullptr, 1), committed ? kBlocks : 0u);
    Restart();
    EXPECT_EQ(Recall(chain_, nullptr, 1), committed ? kBlocks : 0u);
  }
}

}  // namespace
}  // namespace aquifer
