// Storing once more what only a drive has that is out of service: who gets a slot for it, and what
// becomes of that until it is committed.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/cache/core_refill_fixture.h"

namespace aquifer {
namespace {

using CoreRefillTest = CoreRefillFixture;

TEST_F(CoreRefillTest, WhatADriveHasThatIsOutOfServiceIsStoredAgainAndServedFromMemory) {
  for (const bool reading : {false, true}) {
    SCOPED_TRACE(reading ? "its reads hang" : "it was not read");
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), reading));
    ASSERT_EQ(Recall(chain_), 0u);
    EXPECT_EQ(Store(chain_, client_.get(), 1), kBlocks);
    EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
    MatchRequest match;
    match.chain = Slice(chain_);
    client_->Do(&Core::Match, &match);
    EXPECT_EQ(match.matched, kBlocks);
    EXPECT_EQ(Count(*Reserve(chain_, client_.get()), ReserveOutcome::kHave), kBlocks);
    EXPECT_EQ(Flush().code(), Code::kUnavailable);

    BringDriveBack();
    EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
    EXPECT_TRUE(Flush().ok());
    EXPECT_EQ(Counter("nvme_live_blocks"), kBlocks + 1);
    EXPECT_EQ(Counter("quarantined_bytes"), 0u);
    ExpectNoDamage();
    Restart();
    EXPECT_EQ(Recall(chain_), kBlocks) << "the drive has what was flushed first";
    ExpectNoDamage();
  }
}

TEST_F(CoreRefillTest, OneDriveOfTwoThatIsOutOfServiceCostsNoneOfItsBlocksForGood) {
  CoreOptions options = SmallCache(128);
  options.cache.nvme_bytes = 128 << 20;
  options.cache.nvme_directories = {kDrive, "other"};
  Make(options);
  const Chain chain(layout_, {.seed = 3, .blocks = 32});
  ASSERT_EQ(Store(chain), 32u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  world_->disk(kDrive).Hang(true);
  Recall(chain);
  world_->Advance(10 * kSecond);
  const size_t missing = 32 - Recall(chain);
  ASSERT_GT(missing, 0u);
  EXPECT_EQ(Store(chain), missing);
  EXPECT_EQ(Recall(chain), 32u);
  // It would be lost with that drive.
  EXPECT_EQ(Flush().code(), Code::kUnavailable);
  DrainRequest drain;
  client_->Do(&Core::Drain, &drain);
  EXPECT_EQ(drain.status.code(), Code::kUnavailable);
  const auto tenant = AttachAs("another");
  FlushRequest flush;
  tenant->Do(&Core::Flush, &flush);
  EXPECT_TRUE(flush.status.ok()) << "it has nothing there";

  world_->disk(kDrive).Hang(false);
  world_->Advance(5 * kSecond);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(Counter("nvme_live_blocks"), 32u);
  Restart();
  EXPECT_EQ(Recall(chain), 32u);
}

TEST_F(CoreRefillTest, ADrainIsNotOkWhileItIsInMemoryAlone) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  DrainRequest drain;
  client_->Do(&Core::Drain, &drain);
  EXPECT_EQ(drain.status.code(), Code::kUnavailable);
}

TEST_F(CoreRefillTest, WhatIsGivenUpLeavesAllAsItWas) {
  enum class How : uint8_t { kAbort, kDetach, kOverdue, kDisconnect };
  for (const How how : {How::kAbort, How::kDetach, How::kOverdue, How::kDisconnect}) {
    SCOPED_TRACE(static_cast<int>(how));
    CoreOptions options = SmallCache();
    options.cache.overdue_nanos = 20 * kSecond;
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(options));
    const uint64_t before = Bytes(0);
    const uint64_t hanging = Counter("quarantined_bytes");
    auto engine = AttachRank("engine");
    const auto reserved = Reserve(chain_, engine.get());
    ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
    EXPECT_EQ(Bytes(0), before + kBlocks * kBlockBytes);
    switch (how) {
      case How::kAbort:
        engine->Abort(Given(*reserved));
        break;
      case How::kDetach:
        engine->Detach();
        break;
      case How::kOverdue:
        world_->Advance(25 * kSecond);
        EXPECT_EQ(Counter("overdue_reservations"), kBlocks);
        break;
      case How::kDisconnect:
        world_->core().Disconnect(engine->number());
        break;
    }
    world_->Run();
    if (how == How::kOverdue || how == How::kDisconnect) {
      // Its GPU may still write.
      EXPECT_EQ(Counter("quarantined_bytes"), hanging + kBlocks * kBlockBytes);
      EXPECT_EQ(Count(*Reserve(chain_, client_.get()), ReserveOutcome::kSlot), kBlocks);
      engine->Detach();
      client_->Detach();
      world_->Run();
      Attach();
    }
    EXPECT_EQ(Counter("quarantined_bytes"), hanging);
    EXPECT_EQ(Bytes(0), before);
    EXPECT_EQ(Recall(chain_), 0u);
    BringDriveBack();
    EXPECT_EQ(Recall(chain_), kBlocks);
    EXPECT_TRUE(Evict(chain_)->status.ok());
    EXPECT_TRUE(Evict(other_)->status.ok());
    ExpectNothingLeft();
  }
}

TEST_F(CoreRefillTest, RanksOfOneEngineShareASlotAndOthersHearOfIt) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  const auto first = AttachRank("engine");
  const auto second = AttachRank("engine");
  const auto reserved = Reserve(chain_, first.get());
  const auto joined = Reserve(chain_, second.get());
  ASSERT_EQ(Count(*joined, ReserveOutcome::kSlot), kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(joined->ops[i].slot.data(), reserved->ops[i].slot.data());
  }
  EXPECT_EQ(Count(*Reserve(chain_, client_.get()), ReserveOutcome::kBeingFilled), kBlocks);
  MatchRequest match;
  match.chain = Slice(chain_);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 0u);
  ASSERT_EQ(match.runs.size(), 1u);
  EXPECT_EQ(match.runs[0].state, RunState::kBeingFilled);
  EXPECT_EQ(match.runs[0].count, kBlocks);

  EXPECT_EQ(Published(Commit(*reserved, first.get(), 0)), 0u);
  EXPECT_EQ(Recall(chain_), 0u);
  EXPECT_EQ(Published(Commit(*joined, second.get(), 1)), kBlocks);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  EXPECT_EQ(Counter("lent_slots"), 0u);
}

TEST_F(CoreRefillTest, OneRankThatGivesUpVoidsItForAll) {
  for (const bool committed : {false, true}) {
    SCOPED_TRACE(committed ? "the other has committed its heads" : "nobody has committed");
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
    const uint64_t before = Bytes(0);
    const uint64_t hanging = Counter("quarantined_bytes");
    const auto first = AttachRank("engine");
    const auto second = AttachRank("engine");
    const auto reserved = Reserve(chain_, first.get());
    const auto joined = Reserve(chain_, second.get());
    if (committed) {
      EXPECT_EQ(Published(Commit(*reserved, first.get(), 0)), 0u);
    }
    second->Abort(Given(*joined));
    EXPECT_EQ(Counter("quarantined_bytes"), hanging + (committed ? 0 : kBlocks * kBlockBytes));
    // While the first still has its slots others get other ones.
    EXPECT_EQ(Store(chain_, client_.get(), 2), kBlocks);
    if (!committed) {
      for (const CommitOp& op : Commit(*reserved, first.get(), 0)) {
        EXPECT_EQ(op.status.code(), Code::kInvalid);
      }
    }
    EXPECT_EQ(Recall(chain_, nullptr, 2), kBlocks);
    EXPECT_EQ(Counter("quarantined_bytes"), hanging);
    EXPECT_EQ(Bytes(0), before + kBlocks * kBlockBytes);
  }
}

// The heads of one were committed, and no rank holds it any more.
TEST_F(CoreRefillTest, ABlockWhoseOtherHeadsNeverComeGivesItsSlotBack) {
  CoreOptions options = SmallCache();
  options.cache.overdue_nanos = 20 * kSecond;
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(options));
  const uint64_t before = Bytes(0);
  const auto first = AttachRank("engine");
  Commit(*Reserve(chain_, first.get()), first.get(), 0);
  EXPECT_EQ(Bytes(0), before + kBlocks * kBlockBytes);
  world_->Advance(25 * kSecond);
  EXPECT_EQ(Counter("overdue_reservations"), kBlocks);
  EXPECT_EQ(Bytes(0), before);
  EXPECT_EQ(Store(chain_, client_.get(), 1), kBlocks);
}

TEST_F(CoreRefillTest, ADeletionMissesNothingThatTheDriveHas) {
  for (const Back how : {Back::kWhole, Back::kReadOnly}) {
    for (const bool after_return : {false, true}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(how)) + std::to_string(after_return));
      ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), /*reading=*/true));
      const uint64_t hanging = Bytes(0);
      ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
      if (!after_return) {
        EXPECT_EQ(Evict(chain_)->status.code(), Code::kUnavailable);
        EXPECT_EQ(Recall(chain_), 0u);
        EXPECT_EQ(Bytes(0), hanging) << "reads that hang keep no other slots";
        EXPECT_EQ(Count(*Reserve(chain_, client_.get()), ReserveOutcome::kSlot), kBlocks);
        client_->Detach();
        world_->Run();
        Attach();
      }
      BringDriveBack(how);
      if (how == Back::kReadOnly) {
        EXPECT_EQ(Evict(chain_)->status.code(), Code::kUnavailable);
        EXPECT_EQ(Recall(chain_), 0u);
        world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kOk);
        world_->Advance(5 * kSecond);
      }
      EXPECT_TRUE(Evict(chain_)->status.ok());
      EXPECT_TRUE(Evict(other_)->status.ok());
      ExpectNothingLeft();
      Restart();
      EXPECT_EQ(Recall(chain_), 0u);
      EXPECT_EQ(Counter("blocks"), 0u);
    }
  }
}

// As with any other block that is being filled: the deletion is of what was there.
TEST_F(CoreRefillTest, WhatIsCommittedAfterADeletionIsThereAndTheDrivesIsNot) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  const auto engine = AttachRank("engine");
  const auto reserved = Reserve(chain_, engine.get());
  EXPECT_EQ(Evict(chain_)->status.code(), Code::kUnavailable);
  const auto rank = AttachRank("engine");
  const auto joined = Reserve(chain_, rank.get());
  ASSERT_EQ(joined->ops[0].slot.data(), reserved->ops[0].slot.data());
  EXPECT_EQ(Published(Commit(*reserved, engine.get(), 0)), 0u);
  EXPECT_EQ(Published(Commit(*joined, rank.get(), 1)), kBlocks);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  BringDriveBack();
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  Restart();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  ExpectNoDamage();
}

TEST_F(CoreRefillTest, ADriveThatComesBackWhileItIsStoredAgainMeetsIt) {
  for (const bool loaded : {false, true}) {
    SCOPED_TRACE(loaded ? "somebody fetched it" : "nobody asked");
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
    const auto first = AttachRank("engine");
    const auto second = AttachRank("engine");
    const auto reserved = Reserve(chain_, first.get());
    ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
    BringDriveBack();
    if (loaded) {
      EXPECT_EQ(Recall(chain_), kBlocks);
    }
    EXPECT_EQ(Count(*Reserve(chain_, client_.get()), ReserveOutcome::kHave), kBlocks);
    // The other rank of that engine needs its slot all the same.
    const auto joined = Reserve(chain_, second.get());
    ASSERT_EQ(joined->ops[0].outcome, ReserveOutcome::kSlot);
    EXPECT_EQ(joined->ops[0].slot.data(), reserved->ops[0].slot.data());
    EXPECT_EQ(Published(Commit(*reserved, first.get(), 0)), 0u);
    EXPECT_EQ(Published(Commit(*joined, second.get(), 1)), kBlocks);
    EXPECT_EQ(Recall(chain_, nullptr, loaded ? 0 : 1), kBlocks);
    EXPECT_TRUE(Flush().ok());
    EXPECT_EQ(Bytes(0), kBlocks * kBlockBytes);
    EXPECT_EQ(Counter("lent_slots"), 0u);
    Restart();
    EXPECT_EQ(Recall(chain_), kBlocks);
    ExpectNoDamage();
  }
}

TEST_F(CoreRefillTest, WhatIsCommittedWhenTheDrivesTimeIsOverIsThere) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), false, 1000));
  const auto reserved = Reserve(chain_, client_.get());
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1100);
  EXPECT_EQ(Published(Commit(*reserved, client_.get())), kBlocks);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  BringDriveBack();
  EXPECT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
}

// A client that makes keys up. The block itself is deleted, and does not say of which layout it is.
TEST_F(CoreRefillTest, AnotherLayoutGetsNoPartOfItsSlot) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  const auto reserved = Reserve(chain_, client_.get());
  ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
  EXPECT_EQ(Evict(chain_)->status.code(), Code::kUnavailable);
  RegisterLayoutRequest larger;
  larger.layout = LayoutOfBytes(2 * kBlockBytes);
  client_->Do(&Core::RegisterLayout, &larger);
  ASSERT_TRUE(larger.status.ok());
  ReserveRequest reserve;
  reserve.chain = Slice(chain_);
  reserve.chain.layout = larger.handle;
  reserve.parent = chain_.parent(0);
  client_->Do(&Core::Reserve, &reserve);
  EXPECT_EQ(Count(reserve, ReserveOutcome::kRefused), kBlocks);
}

// It was deleted, so that it needs a place in the index like any new one.
TEST_F(CoreRefillTest, WhatTheIndexHasNoRoomForIsNotPublishedAndGivesItsSlotBack) {
  CoreOptions options = SmallCache(128);
  options.max_blocks = 32;
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(options));
  const uint64_t before = Bytes(0);
  const auto engine = AttachRank("engine");
  const auto reserved = Reserve(chain_, engine.get());
  ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
  EXPECT_EQ(Evict(chain_)->status.code(), Code::kUnavailable);
  const auto full = Reserve(Chain(layout_, {.seed = 3, .blocks = 64}), client_.get());
  ASSERT_EQ(full->ops.back().refusal, Refusal::kFull);
  for (const CommitOp& op : Commit(*reserved, engine.get())) {
    EXPECT_EQ(op.status.code(), Code::kNoSpace);
    EXPECT_FALSE(op.published);
  }
  EXPECT_EQ(Counter("committed"), 0u);
  client_->Detach();
  world_->Run();
  Attach();
  EXPECT_EQ(Bytes(0), before);
  EXPECT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
}

// They are in memory already, and some rank may still write the slots that nobody needs.
TEST_F(CoreRefillTest, SlotsThatTurnOutNotToBeNeededWaitForAllRanks) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  const auto first = AttachRank("engine");
  const auto second = AttachRank("engine");
  const auto reserved = Reserve(chain_, first.get());
  const auto joined = Reserve(chain_, second.get());
  ASSERT_EQ(Count(*joined, ReserveOutcome::kSlot), kBlocks);
  BringDriveBack();
  ASSERT_EQ(Recall(chain_), kBlocks);
  const uint64_t bytes = Bytes(0);
  EXPECT_EQ(Published(Commit(*reserved, first.get())), kBlocks);
  EXPECT_EQ(Counter("quarantined_bytes"), kBlocks * kBlockBytes);
  EXPECT_EQ(Bytes(0), bytes);
  second->Abort(Given(*joined));
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
  EXPECT_EQ(Bytes(0), bytes - kBlocks * kBlockBytes);
  EXPECT_EQ(Recall(chain_), kBlocks);
}

// All heads were committed by one of them; the other may still write.
TEST_F(CoreRefillTest, WhatARankMayStillWriteIsNobodyElses) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  const uint64_t hanging = Counter("quarantined_bytes");
  const auto first = AttachRank("engine");
  const auto second = AttachRank("engine");
  const auto reserved = Reserve(chain_, first.get());
  const auto joined = Reserve(chain_, second.get());
  ASSERT_EQ(Count(*joined, ReserveOutcome::kSlot), kBlocks);
  EXPECT_EQ(Published(Commit(*reserved, first.get())), kBlocks);
  Crowd();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  EXPECT_EQ(Evict(chain_)->status.code(), Code::kUnavailable);
  EXPECT_EQ(Counter("quarantined_bytes"), hanging + kBlocks * kBlockBytes);
  for (const CommitOp& op : Commit(*joined, second.get())) {
    EXPECT_EQ(op.status.code(), Code::kInvalid);
  }
  EXPECT_EQ(Counter("quarantined_bytes"), hanging);
  EXPECT_EQ(Recall(chain_), 0u);
}

// Clients in other processes are not told an address, but this.
TEST_F(CoreRefillTest, WhereItIsWrittenIsWhereItIsServedFrom) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  const auto reserve = Reserve(chain_, client_.get());
  std::vector<SlotPlace> written;
  for (const ReserveOp& op : reserve->ops) {
    written.push_back(world_->core().PlaceOf(client_->number(), op.reservation, true));
    EXPECT_NE(written.back().extent, 0u);
  }
  ASSERT_EQ(Published(Commit(*reserve, client_.get())), kBlocks);
  const auto fetch = Fetch(chain_);
  for (size_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(fetch->ops[i].status.ok());
    EXPECT_EQ(fetch->ops[i].bytes.data(), reserve->ops[i].slot.data());
    const SlotPlace served = world_->core().PlaceOf(client_->number(), fetch->ops[i].lease, false);
    EXPECT_EQ(served.extent, written[i].extent);
    EXPECT_EQ(served.offset, written[i].offset);
  }
  Release(*fetch);
}

}  // namespace
}  // namespace aquifer
