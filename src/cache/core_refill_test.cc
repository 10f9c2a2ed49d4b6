// What only a drive has that is out of service, computed and stored once more: it is served from
// memory, and what the drive has of it is neither forgotten nor taken for damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/core_durable_fixture.h"
#include "testing/core_fixture.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kBlocks = 8;

class CoreRefillTest : public CoreFixture {
 protected:
  enum class Back : uint8_t { kWhole, kReadOnly };

  // The chain is on the drive alone, which is then out of service. With `reading`, because its own
  // blocks were being read; those reads hang as long as the drive does.
  void StoreAndLoseDrive(const CoreOptions& options, bool reading = false,
                         int64_t ttl_seconds = 0) {
    Make(options);
    ASSERT_EQ(Store(chain_), kBlocks);
    ASSERT_EQ(Store(other_), other_.size());
    if (ttl_seconds > 0) Hint(chain_, ttl_seconds);
    ASSERT_TRUE(Flush().ok());
    Restart();
    LoseDrive(reading);
  }
  void LoseDrive(bool reading = false) {
    world_->disk(kDrive).Hang(true);
    Recall(reading ? chain_ : other_);
    world_->Advance(10 * kSecond);
    ASSERT_FALSE(InService());
  }
  void BringDriveBack(Back how = Back::kWhole) {
    if (how == Back::kReadOnly) {
      world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kUnavailable);
    }
    world_->disk(kDrive).Hang(false);
    world_->Advance(5 * kSecond);
    ASSERT_TRUE(InService());
  }
  bool InService() {
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    return stats.stats.tiers[1].drives[0].in_service;
  }
  uint64_t Bytes(size_t tier) {
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    return stats.stats.tiers[tier].tenant_bytes;
  }

  std::unique_ptr<ManualClient> AttachRank(const std::string& engine) {
    auto client = std::make_unique<ManualClient>(
        world_.get(), ClientOptions{.tenant = "local", .engine = engine});
    RegisterLayoutRequest request;
    request.layout = layout_;
    client->Do(&Core::RegisterLayout, &request);
    return client;
  }
  // Of all blocks, by a rank of two or, with `rank` 2, by one that has all heads.
  std::vector<CommitOp> Commit(const ReserveRequest& reserved, ManualClient* client,
                               uint32_t rank = 2, uint16_t computation = 1) {
    CommitRequest commit;
    for (size_t i = 0; i < reserved.ops.size(); ++i) {
      if (reserved.ops[i].outcome != ReserveOutcome::kSlot) continue;
      std::span<std::byte> bytes = reserved.ops[i].slot;
      const size_t begin = rank == 1 ? bytes.size() / 2 : 0;
      if (rank < 2) bytes = bytes.subspan(begin, bytes.size() / 2);
      FillPayload(chain_[i], computation, bytes, begin);
      CommitOp& op = commit.ops.emplace_back();
      op.reservation = reserved.ops[i].reservation;
      op.sums = SumLanes(bytes, begin);
      if (rank < 2) op.head_begin = rank;
      if (rank < 2) op.head_end = rank + 1;
    }
    client->Do(&Core::Commit, &commit);
    return std::move(commit.ops);
  }
  static size_t Published(const std::vector<CommitOp>& ops) {
    return static_cast<size_t>(
        std::count_if(ops.begin(), ops.end(), [](const CommitOp& op) { return op.published; }));
  }
  static size_t Count(const ReserveRequest& reserved, ReserveOutcome outcome) {
    return static_cast<size_t>(
        std::count_if(reserved.ops.begin(), reserved.ops.end(),
                      [outcome](const ReserveOp& op) { return op.outcome == outcome; }));
  }
  static std::vector<ReservationId> Given(const ReserveRequest& reserved) {
    std::vector<ReservationId> given;
    for (const ReserveOp& op : reserved.ops) given.push_back(op.reservation);
    return given;
  }
  // Other blocks take all of DRAM.
  void Crowd() {
    for (int chains = 0; chains < 8; ++chains) {
      EXPECT_EQ(Store(Chain(layout_, {.seed = crowd_++, .blocks = 16})), 16u);
    }
  }
  // Nothing of it was ever called damaged.
  void ExpectNoDamage() {
    EXPECT_EQ(Counter("corrupt_blocks"), 0u);
    EXPECT_EQ(Counter("nvme_corrupt_blocks"), 0u);
  }
  void ExpectNothingLeft() {
    for (const char* const name :
         {"blocks", "quarantined_bytes", "pending_erasures", "blocks_only_in_dram", "lent_slots"}) {
      EXPECT_EQ(Counter(name), 0u) << name;
    }
    EXPECT_EQ(Bytes(0), 0u);
    EXPECT_EQ(Bytes(1), 0u);
  }

  const Chain chain_{layout_, {.seed = 1, .blocks = kBlocks}};
  const Chain other_{layout_, {.seed = 2, .blocks = 1}};
  uint64_t crowd_ = 100;  // The next seed.
};

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

// Fetched when the drive is back, and stored again before it has been read.
TEST_F(CoreRefillTest, AReadThatEndsAfterItWasStoredAgainChangesNothing) {
  for (const uint16_t computation : {0, 1}) {  // With the drive's bytes, and with others.
    SCOPED_TRACE(computation);
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
    const auto engine = AttachRank("engine");
    const auto reserved = Reserve(chain_, engine.get());
    BringDriveBack();
    world_->disk(kDrive).Hang(true);
    FetchRequest fetch;
    fetch.chain = Slice(chain_);
    fetch.timeout_nanos = kSecond;
    client_->Submit(&Core::Fetch, &fetch);
    world_->Run();
    EXPECT_EQ(Published(Commit(*reserved, engine.get(), 2, computation)), kBlocks);
    EXPECT_EQ(Recall(chain_, nullptr, computation), kBlocks);
    world_->disk(kDrive).Hang(false);
    world_->Advance(kSecond / 10);
    ASSERT_TRUE(fetch.done());
    for (size_t i = 0; i < kBlocks; ++i) {
      ASSERT_TRUE(fetch.ops[i].status.ok());
      EXPECT_TRUE(IsPayload(chain_[i], computation, fetch.ops[i].bytes));
    }
    Release(fetch);
    EXPECT_EQ(Bytes(0), kBlocks * kBlockBytes);
    EXPECT_TRUE(Evict(chain_)->status.ok());
    EXPECT_TRUE(Evict(other_)->status.ok());
    ExpectNothingLeft();
  }
}

TEST_F(CoreRefillTest, WhatLeavesMemoryAgainIsWhatTheDriveHas) {
  for (const bool reading : {false, true}) {
    SCOPED_TRACE(reading);
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), reading));
    ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
    Crowd();
    ASSERT_EQ(Recall(chain_), 0u);
    // And can be stored once more.
    EXPECT_EQ(Store(chain_, client_.get(), 2), kBlocks);
    EXPECT_EQ(Recall(chain_, nullptr, 2), kBlocks);
    Crowd();
    ASSERT_EQ(Recall(chain_), 0u);
    BringDriveBack();
    EXPECT_EQ(Recall(chain_), kBlocks);
    ExpectNoDamage();
    EXPECT_EQ(Flush().code(), Code::kNoSpace) << "the others had to go unwritten";
    Restart();
    EXPECT_EQ(Recall(chain_), kBlocks);
  }
}

TEST_F(CoreRefillTest, APinHoldsWhatWasStoredAgain) {
  Make(SmallCache());
  ASSERT_EQ(Store(chain_), kBlocks);
  ASSERT_EQ(Store(other_), 1u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  PinRequest pin;
  pin.chain = Slice(chain_);
  pin.seconds = 10'000;
  client_->Do(&Core::Pin, &pin);
  ASSERT_EQ(pin.pinned, kBlocks);
  ASSERT_NO_FATAL_FAILURE(LoseDrive());
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  Crowd();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  pin.seconds = 0;
  client_->Do(&Core::Pin, &pin);
  Crowd();
  EXPECT_EQ(Recall(chain_), 0u);
}

TEST_F(CoreRefillTest, ItsTimeToLiveGoesOn) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), false, 1000));
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 900);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 200);
  EXPECT_EQ(Recall(chain_, nullptr, 1), 0u);
}

TEST_F(CoreRefillTest, ATenantsRuleHoldsForWhatIsStoredAgain) {
  CoreOptions options = SmallCache();
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(options));
  TenantOptions tenant;
  tenant.name = "local";
  tenant.ttl_seconds = 1000;
  ASSERT_TRUE(world_->core().SetTenants({tenant}).ok());
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  BringDriveBack();
  ASSERT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks) << "written anew with its time";
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1100);
  EXPECT_EQ(Recall(chain_, nullptr, 1), 0u);
}

// It is to be written anew for that, and may have left memory by the time that it can be.
TEST_F(CoreRefillTest, ATimeToLiveGivenMeanwhileReachesTheDrive) {
  for (const bool in_memory : {true, false}) {
    SCOPED_TRACE(in_memory);
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
    ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
    Hint(chain_, 1000);
    world_->Run();
    if (!in_memory) Crowd();
    BringDriveBack();
    ASSERT_EQ(Flush().code(), in_memory ? Code::kOk : Code::kNoSpace);
    ASSERT_TRUE(Flush().ok());
    Restart();
    EXPECT_EQ(Recall(chain_, nullptr, in_memory ? 1 : 0), kBlocks);
    ExpectNoDamage();
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1100);
    EXPECT_EQ(Recall(chain_), 0u);
    Restart();
    EXPECT_EQ(Recall(chain_), 0u);
  }
}

// Asked for before it was stored again.
TEST_F(CoreRefillTest, ATimeToLiveGivenBeforeReachesTheDriveToo) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  Hint(chain_, 1000);
  world_->Advance(kSecond);
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  BringDriveBack();
  ASSERT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1100);
  EXPECT_EQ(Recall(chain_, nullptr, 1), 0u);
}

TEST_F(CoreRefillTest, ACrashAtAnyPointLeavesWhatTheDriveHas) {
  for (int state = 0; state < 4; ++state) {
    SCOPED_TRACE(state);
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), true));
    const auto engine = AttachRank("engine");
    const auto reserved = Reserve(chain_, engine.get());
    ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
    if (state >= 1) Commit(*reserved, engine.get(), state == 1 ? 0 : 2);
    if (state == 3) Crowd();
    Restart();
    EXPECT_EQ(Recall(chain_), kBlocks);
    ExpectNoDamage();
  }
}

TEST_F(CoreRefillTest, ATenantsCeilingHoldsForWhatIsStoredAgain) {
  CoreOptions options = SmallCache();
  TenantOptions tenant;
  tenant.name = "local";
  tenant.dram_ceiling_bytes = 5 * kBlockBytes;
  options.cache.tenants = {tenant};
  Make(options);
  for (size_t i = 0; i < kBlocks; ++i) {
    const Chain one(layout_, {.seed = 50 + i, .blocks = 1});
    ASSERT_EQ(Store(one), 1u);
    ASSERT_TRUE(Flush().ok());
  }
  ASSERT_EQ(Store(other_), 1u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  ASSERT_NO_FATAL_FAILURE(LoseDrive());
  std::vector<std::unique_ptr<ReserveRequest>> held;
  size_t slots = 0;
  for (size_t i = 0; i < kBlocks; ++i) {
    held.push_back(Reserve(Chain(layout_, {.seed = 50 + i, .blocks = 1}), client_.get()));
    slots += Count(*held.back(), ReserveOutcome::kSlot);
    EXPECT_LE(Bytes(0), tenant.dram_ceiling_bytes);
  }
  EXPECT_GE(slots, 4u);
  EXPECT_LE(slots, 5u);
  EXPECT_EQ(held.back()->ops[0].refusal, Refusal::kQuota);
}

// The drive that brings its blocks once more has other bytes of some that are in memory.
TEST_F(CoreRefillTest, ADriveThatIsHeardAgainTakesNothingAwayThatWasStoredAgain) {
  ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain_, 1));
  world_->FailOpeningOf("two", false);
  world_->FailOpeningOf("one", true);
  Restart();
  world_->disk("two").Hang(true);
  Recall(chain_);
  world_->Advance(10 * kSecond);
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  world_->FailOpeningOf("one", false);  // All are heard, but for those of the drive that is out.
  world_->Advance(5 * kSecond);
  world_->disk("two").Hang(false);
  world_->Advance(5 * kSecond);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  EXPECT_EQ(Counter("nvme_live_blocks"), kBlocks);
  EXPECT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain_), kBlocks);
  ExpectNoDamage();
}

// What the drive loses of it, memory still has, and it is written once more.
TEST_F(CoreRefillTest, WhatTheDriveTurnsOutToHaveDamagedIsInMemory) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  const auto engine = AttachRank("engine");
  const auto reserved = Reserve(chain_, engine.get());
  MemoryMedia& media = world_->media(kDrive);
  for (const DiskFile& file : media.List()) {
    std::vector<std::byte> wanted(kBlockBytes);
    FillPayload(chain_[2], 0, wanted);
    for (uint64_t offset = 0; offset + kBlockBytes <= file.bytes; offset += 4096) {
      if (media.Bytes(file.number, offset, kBlockBytes) == wanted) {
        media.FlipBit(file.number, offset + 5000, 3);
      }
    }
  }
  BringDriveBack();
  world_->disk(kDrive).Hang(true);
  FetchRequest fetch;
  fetch.chain = Slice(chain_);
  fetch.timeout_nanos = kSecond;
  client_->Submit(&Core::Fetch, &fetch);
  world_->Run();
  EXPECT_EQ(Published(Commit(*reserved, engine.get())), kBlocks);
  world_->disk(kDrive).Hang(false);
  world_->Advance(kSecond / 10);
  Release(fetch);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  EXPECT_EQ(Counter("nvme_corrupt_blocks"), 1u);
  EXPECT_TRUE(Flush().ok());
  Restart();
  const auto all = Fetch(chain_);
  for (size_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(all->ops[i].status.ok());
    EXPECT_TRUE(IsPayload(chain_[i], i == 2 ? 1 : 0, all->ops[i].bytes));
  }
}

// Its record is over while a read of it hangs, and what memory has is written to another drive.
TEST_F(CoreRefillTest, AReadThatHangsEndsWhereTheBlockWasWrittenToAnotherDriveMeanwhile) {
  CoreOptions options = SmallCache();
  options.cache.write_bytes_per_second = 1;  // Only what is flushed is written.
  ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain_, 1, options));
  world_->FailOpeningOf("two", false);
  world_->FailOpeningOf("one", true);
  Restart();
  Hint(chain_, 1000);
  ASSERT_TRUE(Flush().ok());
  Restart();
  world_->disk("two").Hang(true);
  Recall(chain_);
  world_->Advance(10 * kSecond);
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  Hint(chain_, 10'000);
  world_->Run();
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1100);
  world_->FailOpeningOf("one", false);  // All are heard.
  world_->Advance(5 * kSecond);
  EXPECT_EQ(Flush().code(), Code::kUnavailable) << "a drive is out of service";
  EXPECT_EQ(Counter("write_down_blocks"), kBlocks);
  world_->disk("two").Hang(false);
  world_->Advance(5 * kSecond);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  EXPECT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  ExpectNoDamage();
}

// The drive's record gave way to what memory has while it was being read.
TEST_F(CoreRefillTest, AReadOfWhatWasReplacedMeanwhileDropsNothing) {
  CoreOptions options = SmallCache();
  options.cache.write_bytes_per_second = 1;  // Only what is flushed is written.
  ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain_, 1, options));
  world_->FailOpeningOf("two", false);
  world_->FailOpeningOf("one", true);
  Restart();
  Hint(chain_, 1000);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpeningOf("one", false);
  Restart();
  world_->disk("two").Hang(true);
  Recall(chain_);
  world_->Advance(10 * kSecond);
  const auto reserved = Reserve(chain_, client_.get());
  ASSERT_EQ(Count(*reserved, ReserveOutcome::kSlot), kBlocks);
  world_->disk("two").Hang(false);
  world_->Advance(5 * kSecond);
  world_->disk("two").Hang(true);
  FetchRequest fetch;
  fetch.chain = Slice(chain_);
  fetch.timeout_nanos = 100 * kSecond;
  client_->Submit(&Core::Fetch, &fetch);
  world_->Run();
  ASSERT_EQ(Store(other_), 1u);
  ASSERT_EQ(Published(Commit(*reserved, client_.get())), kBlocks);
  Hint(chain_, 10'000);
  world_->Run();
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1100);
  FlushRequest flush;
  flush.timeout_nanos = 100 * kSecond;
  client_->Submit(&Core::Flush, &flush);
  world_->Run();
  ASSERT_EQ(Counter("write_down_blocks"), kBlocks + 1);
  Crowd();
  world_->disk("two").Hang(false);
  world_->Advance(kSecond / 10);
  EXPECT_EQ(Counter("nvme_loads_failed"), 0u);
  EXPECT_TRUE(flush.done() && flush.status.ok());
  ASSERT_TRUE(fetch.done());
  for (size_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(fetch.ops[i].status.ok());
    EXPECT_TRUE(IsPayload(chain_[i], 1, fetch.ops[i].bytes));
  }
  Release(fetch);
  ExpectNoDamage();
  Restart();
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
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

using CoreRefillDurableTest = CoreDurableFixture;

// The store has other bytes of it than the drive, and those count while the drive is away. Its
// blocks were being read to be written to the store when it went: those reads hang.
TEST_F(CoreRefillDurableTest, WhatIsStoredAgainReachesTheStoreAndIsServedFromThere) {
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  const Chain other(layout_, {.seed = 2, .blocks = 1});
  MakeDurable(DurableCache(64, true));
  ASSERT_NO_FATAL_FAILURE(LeaveOnlyOnNvme(other));
  ASSERT_NO_FATAL_FAILURE(LeaveOnlyOnNvme(chain));
  world_->disk(kDrive).Hang(true);
  Recall(other);
  world_->Advance(10 * kSecond);
  ASSERT_EQ(Store(chain, client_.get(), 1), kBlocks);
  store_.fail_writes = Code::kOk;
  EXPECT_TRUE(world_->RunUntil([&] { return BlobsOf(chain) == kBlocks; }));
  for (uint64_t seed = 100; seed < 108; ++seed) {
    EXPECT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 16})), 16u);
    world_->Advance(kSecond);
  }
  const uint64_t loads = Counter("durable_loads");
  EXPECT_EQ(Recall(chain, nullptr, 1), kBlocks);
  EXPECT_EQ(Counter("durable_loads"), loads + kBlocks);
  world_->disk(kDrive).Hang(false);
  world_->Advance(5 * kSecond);
  EXPECT_EQ(Recall(chain, nullptr, 1), kBlocks);
  EXPECT_EQ(Counter("corrupt_blocks"), 0u);
  EXPECT_TRUE(Evict(chain)->status.ok());
  EXPECT_EQ(BlobsOf(chain), 0u);
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
}

// A tier that gets all that is stored gets it, too: what outlived a restart it was not given.
TEST_F(CoreRefillDurableTest, ATierThatGetsAllIsGivenWhatIsStoredAgain) {
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  const Chain other(layout_, {.seed = 2, .blocks = 1});
  sources_[0].writes = DurableWrites::kAll;
  MakeDurable(SmallCache());
  store_.fail_writes = Code::kUnavailable;
  ASSERT_EQ(Store(chain), kBlocks);
  ASSERT_EQ(Store(other), 1u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  store_.fail_writes = Code::kOk;
  world_->disk(kDrive).Hang(true);
  Recall(other);
  world_->Advance(10 * kSecond);
  ASSERT_EQ(BlobsOf(chain), 0u);
  ASSERT_EQ(Store(chain, client_.get(), 1), kBlocks);
  EXPECT_TRUE(world_->RunUntil([&] { return BlobsOf(chain) == kBlocks; }));
}

}  // namespace
}  // namespace aquifer
