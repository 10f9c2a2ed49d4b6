// What was stored again because its drive was out of service: it is served from memory, and
// what the drive has of it is neither forgotten nor taken for damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/cache/core_durable_fixture.h"
#include "testing/cache/core_refill_fixture.h"

namespace aquifer {
namespace {

using CoreRefilledTest = CoreRefillFixture;

// Fetched when the drive is back, and stored again before it has been read.
TEST_F(CoreRefilledTest, AReadThatEndsAfterItWasStoredAgainChangesNothing) {
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

TEST_F(CoreRefilledTest, WhatLeavesMemoryAgainIsWhatTheDriveHas) {
  for (const bool reading : {false, true}) {
    SCOPED_TRACE(reading);
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), reading));
    ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
    Crowd();
    ASSERT_EQ(Recall(chain_), 0u);
    // And can be stored again.
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

TEST_F(CoreRefilledTest, APinHoldsWhatWasStoredAgain) {
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

TEST_F(CoreRefilledTest, ItsTimeToLiveGoesOn) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), false, 1000));
  ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 900);
  EXPECT_EQ(Recall(chain_, nullptr, 1), kBlocks);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 200);
  EXPECT_EQ(Recall(chain_, nullptr, 1), 0u);
}

TEST_F(CoreRefilledTest, ATenantsRuleHoldsForWhatIsStoredAgain) {
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
TEST_F(CoreRefilledTest, ATimeToLiveGivenMeanwhileReachesTheDrive) {
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

// A reader, or a rank that may still write, held it when it was deleted.
TEST_F(CoreRefilledTest, AReadThatHangsKeepsNoSlotOfWhatWasHeldWhenItWasDeleted) {
  for (const bool by_reader : {true, false}) {
    SCOPED_TRACE(by_reader);
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), /*reading=*/true));
    const uint64_t bytes = Bytes(0);
    const uint64_t hanging = Counter("quarantined_bytes");
    const auto first = AttachRank("engine");
    const auto second = AttachRank("engine");
    const auto reserved = Reserve(chain_, first.get());
    std::unique_ptr<ReserveRequest> joined;
    if (!by_reader) joined = Reserve(chain_, second.get());
    ASSERT_EQ(Published(Commit(*reserved, first.get())), kBlocks);
    std::unique_ptr<FetchRequest> fetch;
    if (by_reader) fetch = Fetch(chain_);
    EXPECT_EQ(Evict(chain_)->status.code(), Code::kUnavailable);
    EXPECT_EQ(Counter("quarantined_bytes"), hanging + kBlocks * kBlockBytes);
    if (by_reader) {
      Release(*fetch);
    } else {
      second->Abort(Given(*joined));
    }
    EXPECT_EQ(Counter("quarantined_bytes"), hanging);
    EXPECT_EQ(Bytes(0), bytes);
    BringDriveBack();
    EXPECT_TRUE(Evict(chain_)->status.ok());
    EXPECT_TRUE(Evict(other_)->status.ok());
    ExpectNothingLeft();
  }
}

// Asked for before it was stored again.
TEST_F(CoreRefilledTest, ATimeToLiveGivenBeforeReachesTheDriveToo) {
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

TEST_F(CoreRefilledTest, ACrashAtAnyPointLeavesWhatTheDriveHas) {
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

TEST_F(CoreRefilledTest, ATenantsCeilingHoldsForWhatIsStoredAgain) {
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
TEST_F(CoreRefilledTest, ADriveThatIsHeardAgainTakesNothingAwayThatWasStoredAgain) {
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
TEST_F(CoreRefilledTest, WhatTheDriveTurnsOutToHaveDamagedIsInMemory) {
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
TEST_F(CoreRefilledTest, AReadThatHangsEndsWhereTheBlockWasWrittenToAnotherDriveMeanwhile) {
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
TEST_F(CoreRefilledTest, AReadOfWhatWasReplacedMeanwhileDropsNothing) {
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

class CoreRefilledDurableTest : public CoreDurableFixture {
 protected:
  static constexpr int64_t kSecond = CoreRefilledTest::kSecond;
  static constexpr size_t kBlocks = CoreRefilledTest::kBlocks;

  // The store gets all that is stored, and nothing counts as durable for that. The cache was
  // started again.
  void StoreInCacheOfNodes(const CoreOptions& options, const Chain& chain) {
    sources_[0].writes = DurableWrites::kAll;
    sources_[0].lasting = false;
    MakeDurable(options);
    ASSERT_EQ(Store(chain), chain.size());
    ASSERT_TRUE(Flush().ok());
    ASSERT_TRUE(world_->RunUntil([&] { return BlobsOf(chain) == chain.size(); }));
    Restart();
  }
  // Of what got a slot; returns how many were published.
  size_t Commit(const ReserveRequest& reserved, const Chain& chain) {
    CommitRequest commit;
    for (size_t i = 0; i < reserved.ops.size(); ++i) {
      if (reserved.ops[i].outcome != ReserveOutcome::kSlot) continue;
      FillPayload(chain[i], 1, reserved.ops[i].slot);
      CommitOp& op = commit.ops.emplace_back();
      op.reservation = reserved.ops[i].reservation;
      op.sums = SumLanes(reserved.ops[i].slot, 0);
    }
    client_->Do(&Core::Commit, &commit);
    return static_cast<size_t>(std::count_if(commit.ops.begin(), commit.ops.end(),
                                             [](const CommitOp& op) { return op.published; }));
  }
};

// The store has other bytes of it than the drive, and those count while the drive is away. Its
// blocks were being read to be written to the store when it went: those reads hang.
TEST_F(CoreRefilledDurableTest, WhatIsStoredAgainReachesTheStoreAndIsServedFromThere) {
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
TEST_F(CoreRefilledDurableTest, ATierThatGetsAllIsGivenWhatIsStoredAgain) {
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

// A durable tier was faster than who stored it again: its drive is away all the same.
TEST_F(CoreRefilledDurableTest, AFlushIsNotOkForWhatAStoreBroughtMeanwhile) {
  const Chain chain(layout_, {.seed = 1, .blocks = 32});
  CoreOptions options = SmallCache(128);
  options.cache.nvme_bytes = 128 << 20;
  options.cache.nvme_directories = {kDrive, "other"};
  ASSERT_NO_FATAL_FAILURE(StoreInCacheOfNodes(options, chain));
  world_->disk(kDrive).Hang(true);
  Recall(chain);
  world_->Advance(10 * kSecond);
  const auto reserved = Reserve(chain, client_.get());
  ASSERT_EQ(Recall(chain), 32u);
  ASSERT_TRUE(Flush().ok()) << "nobody has stored anything yet";
  EXPECT_GT(Commit(*reserved, chain), 0u);
  EXPECT_EQ(Flush().code(), Code::kUnavailable);
  world_->disk(kDrive).Hang(false);
  world_->Advance(5 * kSecond);
  EXPECT_TRUE(Flush().ok());
}

// The drive has lost it, so that it is to be written like all that is stored.
TEST_F(CoreRefilledDurableTest, WhatAStoreBroughtInTheDrivesPlaceIsWrittenDown) {
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  const Chain other(layout_, {.seed = 2, .blocks = 1});
  ASSERT_NO_FATAL_FAILURE(StoreInCacheOfNodes(SmallCache(), chain));
  ASSERT_EQ(Store(other), 1u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  world_->disk(kDrive).Hang(true);
  Recall(other);
  world_->Advance(10 * kSecond);
  const auto reserved = Reserve(chain, client_.get());
  MemoryMedia& media = world_->media(kDrive);
  std::vector<std::byte> wanted(kBlockBytes);
  FillPayload(chain[0], 0, wanted);
  for (const DiskFile& file : media.List()) {
    for (uint64_t offset = 0; offset + kBlockBytes <= file.bytes; offset += 4096) {
      if (media.Bytes(file.number, offset, kBlockBytes) == wanted) {
        media.FlipBit(file.number, offset + 5000, 3);
      }
    }
  }
  world_->disk(kDrive).Hang(false);
  world_->Advance(5 * kSecond);
  ASSERT_EQ(Recall(chain), 1u);
  ASSERT_EQ(Counter("nvme_corrupt_blocks"), 1u);
  EXPECT_EQ(Commit(*reserved, chain), 1u);
  EXPECT_TRUE(Flush().ok());
  store_.fail_reads = Code::kUnavailable;
  Restart();
  EXPECT_EQ(Recall(chain), 1u);
}

}  // namespace
}  // namespace aquifer
