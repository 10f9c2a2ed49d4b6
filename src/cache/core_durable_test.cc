// The cache on durable tiers: what it finds there, loads, writes and deletes, and what becomes of
// all that when a store is slow, hangs, fails or loses things. Sessions:
// core_durable_sessions_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "testing/cache/core_durable_fixture.h"
#include "testing/memory_blob_store.h"
#include "tier/test_keys.h"

namespace aquifer {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMillisecond;

using CoreDurableTest = CoreDurableFixture;

TEST_F(CoreDurableTest, AnEmptyNodeRecallsAllThatAFlushAcknowledged) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  ASSERT_EQ(Store(chain), 40u);
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(store_.blobs.size(), 40u);
  MakeAnother(DurableCache());
  const auto match = Match(chain);
  EXPECT_EQ(match->matched, 40u);
  ASSERT_EQ(match->runs.size(), 1u);
  EXPECT_EQ(match->runs[0].tier, TierKind::kDurable);
  EXPECT_EQ(match->runs[0].state, RunState::kReady);
  EXPECT_GT(match->runs[0].estimated_ms, 0);
  EXPECT_EQ(match->pays, 40u);
  const auto fetch = Fetch(chain);
  for (const FetchOp& op : fetch->ops) EXPECT_EQ(op.tier, TierKind::kDurable);
  Release(*fetch);
  EXPECT_EQ(Recall(chain), 40u);  // From memory now.
  EXPECT_EQ(store_.reads, 40u);
  EXPECT_EQ(Counter("fetch_hits_durable"), 40u);
  EXPECT_EQ(Match(chain)->runs[0].tier, TierKind::kDram);
}

TEST_F(CoreDurableTest, WhatIsLoadedFromAStoreIsOnNvmeWhenItLeavesMemory) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  ASSERT_EQ(Store(chain), 40u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache(64, /*nvme=*/true));
  EXPECT_EQ(Recall(chain), 40u);
  EXPECT_EQ(store_.reads, 40u);
  world_->Advance(kSecond);
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 60})), 60u);  // Pushes it out of memory.
  world_->Advance(kSecond);
  EXPECT_EQ(Recall(chain), 40u);
  EXPECT_EQ(store_.reads, 40u);
  EXPECT_GE(Counter("fetch_hits_nvme"), 36u);
}

// What NVMe has no room for is safe at the store: a flush tells of no loss.
TEST_F(CoreDurableTest, WhatIsLoadedFromAStoreAndDoesNotFitOnNvmeIsNoLoss) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  ASSERT_EQ(Store(chain), 40u);
  ASSERT_TRUE(Flush().ok());
  CoreOptions options = DurableCache(64, /*nvme=*/true);
  options.cache.tenants[0].nvme_ceiling_bytes = 1;
  MakeAnother(options);
  EXPECT_EQ(Recall(chain), 40u);
  world_->Advance(kSecond);
  EXPECT_TRUE(FlushTo(TierKind::kNvme).ok());
  EXPECT_EQ(Recall(chain), 40u);
}

// The record stayed on the drive, with nothing left that knew of it, and a restart found it again.
TEST_F(CoreDurableTest, ABlockThatMadeRoomOnNvmeIsGoneThere) {
  CoreOptions options = DurableCache(64, /*nvme=*/true);
  options.cache.tenants[0].nvme_ceiling_bytes = 30 * kBlockBytes;
  MakeDurable(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 30});
  ASSERT_EQ(Store(chain), 30u);
  ASSERT_TRUE(Flush().ok());
  world_->Advance(kSecond);
  // Takes its place in memory, and then on NVMe.
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 64})), 64u);
  world_->Advance(kSecond);
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  ASSERT_TRUE(evict.status.ok());
  world_->Advance(kSecond);
  EXPECT_EQ(BlobsOf(chain), 0u);
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreDurableTest, EverythingIsDeletedAtTheStoreAlsoWhileADriveIsAway) {
  MakeDurable(DurableCache(64, /*nvme=*/true));
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  world_->disk(kDrive).Hang(true);
  Recall(chain);
  world_->Advance(80 * kSecond);  // It is detached by now.
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.status.code(), Code::kUnavailable);
  EXPECT_EQ(BlobsOf(chain), 0u);
}

TEST_F(CoreDurableTest, BlocksOfADriveThatIsBackAreWrittenToTheStore) {
  MakeDurable(DurableCache(64, /*nvme=*/true));
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_NO_FATAL_FAILURE(LeaveOnlyOnNvme(chain));
  world_->disk(kDrive).Hang(true);
  Recall(chain);
  world_->Advance(80 * kSecond);
  store_.fail_writes = Code::kOk;
  world_->disk(kDrive).Hang(false);
  world_->Advance(10 * kSecond);
  EXPECT_FALSE(FlushTo(TierKind::kDurable).ok());  // It tells once that they were lost.
  EXPECT_TRUE(FlushTo(TierKind::kDurable).ok());
  EXPECT_EQ(BlobsOf(chain), 8u);
}

// A codec makes something smaller only where it knows what the bytes are.
TEST_F(CoreDurableTest, ATierIsToldWhatTheElementsAre) {
  MakeDurable(DurableCache());
  ASSERT_EQ(Store(Chain(layout_, {.seed = 1, .blocks = 3})), 3u);
  ASSERT_TRUE(Flush().ok());
  ASSERT_EQ(store_.blobs.size(), 3u);
  for (const auto& [id, blob] : store_.blobs) EXPECT_EQ(blob.dtype, layout_.groups[0].dtype);
}

TEST_F(CoreDurableTest, AMatchAsksForFewAndTheFetchBehindItForNone) {
  CoreOptions options = DurableCache(1024);
  MakeDurable(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 600});
  ASSERT_EQ(Store(chain), 600u);
  ASSERT_TRUE(Flush().ok());
  const Chain longer = chain.Fork(500, 9, 300);  // 500 of these 800 are there.
  MakeAnother(options);
  const auto match = Match(longer);
  EXPECT_EQ(match->matched, 500u);
  EXPECT_LE(store_.look_batches, 3u);
  EXPECT_LE(store_.looks, 48u);
  const uint64_t asked = store_.looks;
  EXPECT_EQ(Match(longer)->matched, 500u);
  EXPECT_EQ(Recall(longer), 500u);
  EXPECT_EQ(store_.looks, asked);
  EXPECT_EQ(store_.reads, 500u);  // Misses were not read either.
}

TEST_F(CoreDurableTest, WhatIsNotThereIsNotAskedForAgainAtOnce) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 100});
  EXPECT_EQ(Match(chain)->matched, 0u);
  const uint64_t asked = store_.looks;
  EXPECT_GT(asked, 0u);
  EXPECT_EQ(Match(chain)->matched, 0u);
  EXPECT_EQ(store_.looks, asked);
  world_->Advance(2 * kSecond);  // Another node may have written it by now.
  EXPECT_EQ(Match(chain)->matched, 0u);
  EXPECT_GT(store_.looks, asked);
}

TEST_F(CoreDurableTest, AMatchWaitsNoLongerThanItMayAndTheAnswerIsThereLater) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  store_.latency_nanos = 400 * kMillisecond;
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Submit(&Core::Match, &match);
  world_->Advance(99 * kMillisecond);
  EXPECT_FALSE(match.done());
  world_->Advance(2 * kMillisecond);
  ASSERT_TRUE(match.done());
  EXPECT_EQ(match.matched, 0u);
  ASSERT_EQ(match.runs.size(), 1u);
  EXPECT_EQ(match.runs[0].state, RunState::kPending);
  EXPECT_EQ(match.runs[0].tier, TierKind::kDurable);
  EXPECT_EQ(match.runs[0].count, 8u);
  world_->Advance(400 * kMillisecond);
  EXPECT_EQ(Match(chain)->matched, 8u);
}

TEST_F(CoreDurableTest, AMatchAsksNobodyWhereLoadingCannotPay) {
  CoreOptions options = DurableCache();
  options.cache.assumed_prefill_ms_per_token = 1e-6;
  MakeDurable(options);
  EXPECT_EQ(Match(Chain(layout_, {.seed = 1, .blocks = 50}))->matched, 0u);
  EXPECT_EQ(store_.looks, 0u);
}

TEST_F(CoreDurableTest, AFetchKeepsItsDeadlineWhileTheStoreHangsAndMemoryComesBack) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 16});
  ASSERT_EQ(Store(chain), 16u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  ASSERT_EQ(Match(chain)->matched, 16u);
  store_.hang = store_.holds_on = true;
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  fetch.timeout_nanos = 50 * kMillisecond;
  client_->Submit(&Core::Fetch, &fetch);
  world_->Advance(49 * kMillisecond);
  EXPECT_FALSE(fetch.done());
  world_->Advance(2 * kMillisecond);
  ASSERT_TRUE(fetch.done());
  for (const FetchOp& op : fetch.ops) EXPECT_EQ(op.status.code(), Code::kLate);
  // Others are served meanwhile.
  const Chain other(layout_, {.seed = 2, .blocks = 16});
  EXPECT_EQ(Store(other), 16u);
  EXPECT_EQ(Recall(other), 16u);
  EXPECT_GT(Counter("quarantined_bytes"), 0u);
  store_.hang = store_.holds_on = false;
  tier_->LetGo();
  world_->Run();
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
  EXPECT_EQ(Recall(chain), 16u);
}

TEST_F(CoreDurableTest, ADamagedOrLostBlockIsAMissAndTheOthersAreServed) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  BlobOf(chain[3])->second.bytes[77] ^= std::byte{1};
  ASSERT_EQ(Match(chain)->matched, 10u);
  store_.blobs.erase(BlobOf(chain[5]));
  std::vector<Code> codes;
  EXPECT_EQ(Recall(chain, &codes), 8u);
  EXPECT_EQ(codes[3], Code::kCorrupt);
  EXPECT_EQ(codes[5], Code::kNotFound);
  // Stored again they are written again.
  EXPECT_EQ(Store(chain), 2u);
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(chain), 10u);
}

TEST_F(CoreDurableTest, AStoreThatFailsIsAMissAndInNobodysWay) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  store_.fail_looks = store_.fail_reads = Code::kUnavailable;
  std::vector<Code> codes;
  EXPECT_EQ(Recall(chain, &codes), 0u);
  EXPECT_EQ(codes, std::vector<Code>(4, Code::kNotFound));
  EXPECT_EQ(Store(chain), 4u);
  EXPECT_EQ(Recall(chain), 4u);
  tier_->SetInService(false);
  const uint64_t asked = store_.looks;
  EXPECT_EQ(Match(Chain(layout_, {.seed = 2, .blocks = 4}))->matched, 0u);
  EXPECT_EQ(store_.looks, asked);
  EXPECT_FALSE(StatsOfStore().in_service);
  EXPECT_EQ(StatsOfStore().why, "taken out by a test");
}

TEST_F(CoreDurableTest, AFlushWaitsForTheStoreAndSaysWhyItDidNotGetThere) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 6});
  store_.fail_writes = Code::kNoSpace;
  ASSERT_EQ(Store(chain), 6u);
  const Status late = FlushTo(TierKind::kNvme);
  EXPECT_EQ(late.code(), Code::kLate);
  EXPECT_NE(late.message().find("injected"), std::string::npos) << late.message();
  EXPECT_GE(StatsOfStore().oldest_unprotected_seconds, 1);
  store_.fail_writes = Code::kOk;
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(chain), 6u);
  EXPECT_EQ(StatsOfStore().oldest_unprotected_seconds, 0);
  EXPECT_EQ(StatsOfStore().written_blocks, 6u);
  tier_->SetInService(false);
  EXPECT_EQ(Flush().code(), Code::kUnavailable);
  tier_->SetInService(true);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(store_.writes, 6u);  // None twice.
}

TEST_F(CoreDurableTest, OfNoClassIsWrittenNothingUnlessAFlushAsksForIt) {
  MakeDurable(SmallCache(64, true));
  const Chain chain(layout_, {.seed = 1, .blocks = 6});
  ASSERT_EQ(Store(chain), 6u);
  EXPECT_TRUE(FlushTo(TierKind::kNvme).ok());
  world_->Advance(kSecond);
  EXPECT_EQ(store_.writes, 0u);
  EXPECT_TRUE(FlushTo(TierKind::kDurable).ok());
  EXPECT_EQ(BlobsOf(chain), 6u);
}

TEST_F(CoreDurableTest, ATenantThatMayNotLeaveTheHostIsWrittenNowhereElseWhoeverAsks) {
  sources_[0].writes = DurableWrites::kAll;
  CoreOptions options = DurableCache(64, true);
  options.cache.tenants[0].may_leave_host = false;
  MakeDurable(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 6});
  ASSERT_EQ(Store(chain), 6u);
  NameSession(chain, "kept", Durability::kDurable);
  const Status flushed = FlushTo(TierKind::kDurable);
  EXPECT_EQ(flushed.code(), Code::kInvalid) << flushed.ToString();
  EXPECT_TRUE(FlushTo(TierKind::kNvme).ok());
  world_->Advance(10 * kSecond);
  EXPECT_EQ(store_.writes, 0u);
  EXPECT_EQ(store_.notes_written, 0u);
  EXPECT_EQ(Recall(chain), 6u);  // It is served here all the same.
}

TEST_F(CoreDurableTest, ASessionMayBeOfDurableClassByItself) {
  MakeDurable(SmallCache(64, true));
  const Chain chain(layout_, {.seed = 1, .blocks = 6});
  const Chain other(layout_, {.seed = 2, .blocks = 6});
  ASSERT_EQ(Store(chain), 6u);
  ASSERT_EQ(Store(other), 6u);
  NameSession(chain, "kept", Durability::kDurable);
  EXPECT_TRUE(FlushTo(TierKind::kNvme).ok());
  EXPECT_EQ(BlobsOf(chain), 6u);
  EXPECT_EQ(BlobsOf(other), 0u);
}

// The usual order: committed, and then named.
TEST_F(CoreDurableTest, WhatIsToBeDurableSinceItWaitedIsFlushedAsSuch) {
  for (const bool nvme : {false, true}) {
    store_ = FakeStore();
    store_.fail_writes = Code::kUnavailable;
    sources_[0].writes = DurableWrites::kAll;
    MakeDurable(SmallCache(64, nvme));
    const Chain chain(layout_, {.seed = 1, .blocks = 6});
    ASSERT_EQ(Store(chain), 6u);
    world_->Advance(kSecond);  // It waits.
    EXPECT_EQ(StatsOfStore().oldest_unprotected_seconds, 0);
    NameSession(chain, "kept", Durability::kDurable);
    world_->Advance(kSecond);
    EXPECT_GT(StatsOfStore().oldest_unprotected_seconds, 0);
    EXPECT_EQ(FlushTo(TierKind::kNvme, 3 * kSecond).code(), Code::kLate);
    store_.fail_writes = Code::kOk;
    EXPECT_TRUE(FlushTo(TierKind::kNvme, 3 * kSecond).ok());
    EXPECT_EQ(BlobsOf(chain), 6u);
    EXPECT_EQ(StatsOfStore().oldest_unprotected_seconds, 0);
    client_.reset();
    world_.reset();
  }
}

TEST_F(CoreDurableTest, WhatACrashKeptFromTheStoreIsWrittenAfterIt) {
  MakeDurable(DurableCache(64, true));
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  ASSERT_EQ(Store(chain, client_.get()), 20u);
  ASSERT_TRUE(Flush().ok());
  const Chain more = chain.Fork(20, 3, 12);
  store_.fail_writes = Code::kUnavailable;
  ASSERT_EQ(Store(more), 12u);
  EXPECT_EQ(FlushTo(TierKind::kNvme).code(), Code::kLate);  // NVMe has it by now.
  store_.fail_writes = Code::kOk;
  const uint64_t written = store_.writes;
  Restart();
  ASSERT_TRUE(world_->RunUntil([&] { return BlobsOf(more) == 32; }));
  EXPECT_EQ(store_.writes - written, 12u);  // The others were only asked for.
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  EXPECT_EQ(Recall(more), 32u);
}

TEST_F(CoreDurableTest, AFlushRightAfterARestartWaitsForWhatOnlyNvmeHas) {
  MakeDurable(DurableCache(64, true));
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  ASSERT_NO_FATAL_FAILURE(LeaveOnlyOnNvme(chain));
  EXPECT_EQ(FlushTo(TierKind::kDurable).code(), Code::kLate);
  Restart();
  EXPECT_EQ(FlushTo(TierKind::kNvme).code(), Code::kLate);
  store_.fail_writes = Code::kOk;
  EXPECT_TRUE(FlushTo(TierKind::kDurable, 5 * kSecond).ok());
  EXPECT_EQ(BlobsOf(chain), 20u);
}

// All but one slot are lent. Each would give its place to the next before it has been written.
class OneSlotLeftTest : public CoreDurableTest {
 protected:
  // The store fails, and what is lent and the chain are on NVMe alone.
  void MakeWithOneSlotLeft(const CoreOptions& options, size_t slots) {
    chain_ = Chain(layout_, {.seed = 1, .blocks = std::min<size_t>(slots, 8)});
    lent_ = Chain(layout_, {.seed = 2, .blocks = slots - 1});
    MakeDurable(options);
    store_.fail_looks = Code::kUnavailable;  // Or some of it would be loaded now.
    ASSERT_NO_FATAL_FAILURE(LeaveOnlyOnNvme(chain_));
    ASSERT_NO_FATAL_FAILURE(LeaveOnlyOnNvme(lent_));
    fetch_ = Fetch(lent_);
    ASSERT_EQ(Counter("lent_slots"), lent_.size());
  }
  // The store fails no longer.
  void ExpectAllIsWritten() {
    store_.fail_looks = store_.fail_writes = Code::kOk;
    size_t tasks = 0;
    world_->after_task = [&tasks] { AQ_CHECK(++tasks < 100'000); };  // It would never end.
    EXPECT_TRUE(world_->RunUntil(
        [&] { return BlobsOf(chain_) == chain_.size() && BlobsOf(lent_) == lent_.size(); }));
    world_->after_task = nullptr;
    Release(*fetch_);
  }

  Chain chain_{layout_, {}};
  Chain lent_{layout_, {}};
  std::unique_ptr<FetchRequest> fetch_;
};

TEST_F(OneSlotLeftTest, WhatOnlyNvmeHasIsWrittenAlsoThere) {
  ASSERT_NO_FATAL_FAILURE(MakeWithOneSlotLeft(DurableCache(32, true), 32));
  ExpectAllIsWritten();
}

TEST_F(OneSlotLeftTest, OfATenantThatMayHoldLessThanABlockToo) {
  CoreOptions options = DurableCache(32, true);
  options.cache.tenants[0].dram_ceiling_bytes = 3 * kBlockBytes;
  ASSERT_NO_FATAL_FAILURE(MakeWithOneSlotLeft(options, 3));
  ExpectAllIsWritten();
}

// Another's wait in memory, as many as may, for deletions that the store does not take.
TEST_F(OneSlotLeftTest, AlsoWhereAnotherTenantHoldsAllThatMayBeHeld) {
  CoreOptions options = DurableCache(48, true);
  options.cache.tenants.push_back(options.cache.tenants[0]);
  options.cache.tenants[1].name = "other";
  ASSERT_NO_FATAL_FAILURE(MakeWithOneSlotLeft(options, 32));
  const auto other = AttachAs("other");
  const Chain held(layout_, {.seed = 3, .blocks = 12});
  store_.fail_erasures = Code::kUnavailable;
  EvictRequest evict;
  evict.chain = Slice(held);
  other->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.status.code(), Code::kUnavailable);
  ASSERT_EQ(Store(held, other.get()), held.size());
  ExpectAllIsWritten();
  EXPECT_EQ(BlobsOf(held), 0u);
}

TEST_F(CoreDurableTest, MoreThanMemoryHoldsGoesToTheStoreAndComesBack) {
  MakeDurable(DurableCache(64));
  std::vector<Chain> chains;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    chains.emplace_back(layout_, ChainOptions{.seed = seed, .blocks = 30});
    ASSERT_EQ(Store(chains.back()), 30u);
    ASSERT_TRUE(Flush().ok());
  }
  EXPECT_GT(Counter("dropped_to_durable"), 0u);
  for (const Chain& chain : chains) EXPECT_EQ(Recall(chain), 30u);
  for (const Chain& chain : chains) EXPECT_EQ(Recall(chain), 30u);
  EXPECT_EQ(store_.writes, 150u);
}

TEST_F(CoreDurableTest, WhatIsEvictedIsGoneFromTheStore) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 12});
  ASSERT_EQ(Store(chain), 12u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());  // Which knows of none of them.
  EXPECT_TRUE(Evict(chain)->status.ok());
  EXPECT_EQ(store_.blobs.size(), 0u);
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreDurableTest, ABlockIsNotBroughtBackByALoadThatBeganBeforeItsDeletion) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  ASSERT_EQ(Match(chain)->matched, 4u);
  store_.latency_nanos = 20 * kMillisecond;
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  client_->Submit(&Core::Fetch, &fetch);
  world_->Advance(5 * kMillisecond);
  EXPECT_EQ(store_.reads, 4u);
  EXPECT_TRUE(Evict(chain)->status.ok());
  ASSERT_TRUE(world_->RunUntil([&] { return fetch.done(); }));
  for (const FetchOp& op : fetch.ops) EXPECT_EQ(op.status.code(), Code::kNotFound);
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreDurableTest, ADeletionThatTheStoreCannotTakeIsToldAndMadeUpFor) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  store_.fail_erasures = Code::kUnavailable;
  EXPECT_EQ(Evict(chain)->status.code(), Code::kUnavailable);
  EXPECT_EQ(Recall(chain), 0u);
  store_.fail_erasures = Code::kOk;
  world_->Advance(5 * kSecond);
  EXPECT_EQ(store_.blobs.size(), 0u);
}

TEST_F(CoreDurableTest, AWholeTenantIsDeletedThereToo) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  EXPECT_EQ(store_.blobs.size(), 0u);
}

TEST_F(CoreDurableTest, AMatchDoesNotShowWhatWasDeletedWithAllOfATenants) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  ASSERT_EQ(Match(chain)->matched, 4u);  // It is remembered that the store has them.
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  ASSERT_TRUE(evict.status.ok()) << evict.status.ToString();
  EXPECT_EQ(Match(chain)->matched, 0u);
}

TEST_F(CoreDurableTest, AMatchDoesNotShowWhatWasDeletedSinceTheStoreWasAsked) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  store_.latency_nanos = 20 * kMillisecond;
  MatchRequest earlier;
  earlier.chain = Slice(chain);
  client_->Submit(&Core::Match, &earlier);
  world_->Advance(10 * kMillisecond);
  EXPECT_TRUE(Evict(chain)->status.ok());  // The store answers the match first.
  ASSERT_TRUE(world_->RunUntil([&] { return earlier.done(); }));
  EXPECT_EQ(store_.blobs.size(), 0u);
  world_->Advance(2 * kSecond);
  EXPECT_EQ(Match(chain)->matched, 0u);
}

TEST_F(CoreDurableTest, AnotherTimeToLiveReachesTheStore) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  Hint(chain, 100);
  ASSERT_TRUE(Flush().ok());
  const int64_t expiry = world_->clock().UnixSeconds() + 100;
  for (const auto& [id, blob] : store_.blobs) EXPECT_EQ(blob.meta.expiry_unix_seconds, expiry);
  world_->clock().SetUnixSeconds(expiry + 1);
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreDurableTest, WhatExpiresHereLivesOnWhereAnotherNodeMadeItLastLonger) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  Hint(chain, 100);
  ASSERT_TRUE(Flush().ok());
  const int64_t expiry = world_->clock().UnixSeconds() + 100;
  for (auto& [id, blob] : store_.blobs) blob.meta.expiry_unix_seconds = expiry + 1'000'000;
  world_->clock().SetUnixSeconds(expiry + 1);
  world_->Advance(10 * kSecond);
  EXPECT_GT(Counter("dropped_expired"), 0u);
  EXPECT_EQ(store_.erasures, 0u);
  EXPECT_EQ(BlobsOf(chain), 4u);
  EXPECT_EQ(Recall(chain), 4u);
}

TEST_F(CoreDurableTest, ARestartDoesNotShortenTheLifeThatAnotherNodeGave) {
  MakeDurable(DurableCache(64, true));
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  Hint(chain, 3600);
  ASSERT_TRUE(Flush().ok());
  const int64_t now = world_->clock().UnixSeconds();
  BlobOf(chain[0])->second.meta.expiry_unix_seconds = now + 1'000'000;
  BlobOf(chain[1])->second.meta.expiry_unix_seconds = now + 3500;
  BlobOf(chain[2])->second.meta.expiry_unix_seconds = now + 60;  // Too soon.
  const uint64_t written = store_.writes;
  Restart();
  world_->Advance(5 * kSecond);
  EXPECT_EQ(BlobOf(chain[0])->second.meta.expiry_unix_seconds, now + 1'000'000);
  EXPECT_EQ(BlobOf(chain[1])->second.meta.expiry_unix_seconds, now + 3500);
  EXPECT_EQ(BlobOf(chain[2])->second.meta.expiry_unix_seconds, now + 3600);
  EXPECT_EQ(store_.writes - written, 1u);
}

// Also a shorter one, and before the store has said what it has.
TEST_F(CoreDurableTest, ATimeToLiveThatIsHintedRightAfterARestartReachesTheStore) {
  MakeDurable(DurableCache(64, true));
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  Hint(chain, 100'000);
  ASSERT_TRUE(Flush().ok());
  store_.latency_nanos = 200 * kMillisecond;
  Restart();
  ASSERT_TRUE(world_->RunUntil([&] { return store_.looks >= 4; }));
  Hint(chain, 100);
  ASSERT_TRUE(FlushTo(TierKind::kDurable, 10 * kSecond).ok());
  const int64_t expiry = world_->clock().UnixSeconds() + 100;
  for (const auto& [id, blob] : store_.blobs) EXPECT_EQ(blob.meta.expiry_unix_seconds, expiry);
}

// Another node had written it and told its callers so.
TEST_F(CoreDurableTest, WhatLeavesWhileItIsBeingWrittenIsErasedOnlyWhereItWasDeleted) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  store_.latency_nanos = 300 * kMillisecond;
  ASSERT_EQ(Store(chain), 4u);
  world_->Advance(50 * kMillisecond);
  ASSERT_EQ(StatsOfStore().waiting_writes, 4u);
  EvictRequest evict;
  evict.chain = Slice(chain);
  evict.chain.keys = evict.chain.keys.first(1);
  client_->Submit(&Core::Evict, &evict);  // The others hang below it.
  ASSERT_TRUE(world_->RunUntil([&] { return evict.done(); }));
  world_->Advance(5 * kSecond);
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  EXPECT_EQ(Counter("dropped_orphaned"), 3u);
  EXPECT_EQ(BlobOf(chain[0]), store_.blobs.end());
  EXPECT_EQ(BlobsOf(chain), 3u);
}

TEST_F(CoreDurableTest, ADrainWritesWhatIsToBeDurable) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  ASSERT_EQ(Store(chain), 20u);
  DrainRequest drain;
  client_->Do(&Core::Drain, &drain);
  EXPECT_TRUE(drain.status.ok()) << drain.status.ToString();
  EXPECT_EQ(drain.left, 0u);
  EXPECT_EQ(BlobsOf(chain), 20u);
}

TEST_F(CoreDurableTest, ADrainRightAfterARestartWritesWhatOnlyNvmeHas) {
  MakeDurable(DurableCache(64, true));
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  ASSERT_NO_FATAL_FAILURE(LeaveOnlyOnNvme(chain));
  store_.fail_writes = Code::kOk;
  DrainRequest drain;
  client_->Do(&Core::Drain, &drain);
  EXPECT_TRUE(drain.status.ok()) << drain.status.ToString();
  EXPECT_EQ(BlobsOf(chain), 20u);
}

TEST_F(CoreDurableTest, ADrainIsNotOkOverWhatIsInMemoryAlone) {
  MakeDurable(SmallCache(64, false));  // Of no durable class.
  ASSERT_EQ(Store(Chain(layout_, {.seed = 1, .blocks = 5})), 5u);
  DrainRequest drain;
  client_->Do(&Core::Drain, &drain);
  EXPECT_EQ(drain.status.code(), Code::kUnavailable);
  EXPECT_EQ(drain.left, 5u);
}

TEST_F(CoreDurableTest, AWriteBudgetIsKeptButNotByAFlush) {
  sources_[0].write_bytes_per_second = 4 * kBlockBytes;
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  ASSERT_EQ(Store(chain), 40u);
  world_->Advance(3 * kSecond);
  EXPECT_GE(store_.writes, 8u);
  EXPECT_LE(store_.writes, 20u);
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(store_.writes, 40u);
}

TEST_F(CoreDurableTest, ADriveThatFailsIsMadeUpForByTheStore) {
  MakeDurable(DurableCache(64, true));
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  ASSERT_EQ(Store(chain), 20u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  world_->FailReads(true);
  EXPECT_EQ(Recall(chain), 20u);
  EXPECT_EQ(Counter("fetch_hits_durable"), 20u);
  EXPECT_EQ(StatsOfStore().loaded_blocks, 20u);
}

TEST_F(CoreDurableTest, ATierThatHangsIsNotInTheWayOfAnother) {
  FakeStore second;
  FakeDurableTier* second_tier = nullptr;
  sources_.push_back(SourceOf("second", &second, &second_tier));
  MakeDurable(DurableCache());
  store_.hang = true;
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  ASSERT_TRUE(Flush().ok());  // One of them has it.
  EXPECT_EQ(second.blobs.size(), 10u);
  EXPECT_EQ(store_.blobs.size(), 0u);
  tier_->SetInService(false);
  MakeAnother(DurableCache());
  tier_->SetInService(false);
  EXPECT_EQ(Recall(chain), 10u);
}

TEST_F(CoreDurableTest, ATierThatIsOnlyReadMakesNothingDurable) {
  FakeStore archive;
  FakeDurableTier* archive_tier = nullptr;
  sources_.push_back(SourceOf("archive", &archive, &archive_tier));
  sources_.back().writes = DurableWrites::kNothing;
  MakeDurable(DurableCache());
  store_.fail_writes = Code::kUnavailable;
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  NameSession(chain, "s1");
  EXPECT_EQ(FlushTo(TierKind::kDurable).code(), Code::kLate);
  store_.fail_writes = Code::kOk;
  EXPECT_TRUE(FlushTo(TierKind::kDurable).ok());
  EXPECT_EQ(BlobsOf(chain), 10u);
  EXPECT_EQ(store_.notes.size(), 1u);
  EXPECT_TRUE(archive.blobs.empty());
  EXPECT_TRUE(archive.notes.empty());
  tier_->SetInService(false);
  EXPECT_EQ(FlushTo(TierKind::kDurable).code(), Code::kUnavailable);
}

TEST_F(CoreDurableTest, ATierThatIsOnlyReadServesWhatOthersWroteAndNoted) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  NameSession(chain, "s1");
  ASSERT_TRUE(Flush().ok());
  sources_[0].writes = DurableWrites::kNothing;
  MakeAnother(SmallCache());
  PrestageRequest prestage;
  prestage.session = "s1";
  client_->Do(&Core::Prestage, &prestage);
  EXPECT_TRUE(prestage.status.ok()) << prestage.status.ToString();
  EXPECT_EQ(prestage.staged, 10u);
  EXPECT_EQ(FlushTo(TierKind::kDurable).code(), Code::kUnavailable);
}

// Not the fake: blobs that are packed and sealed, in a store that one cache after the other uses.
TEST_F(CoreDurableTest, WhatARealTierHasSealedAnEmptyNodeRecalls) {
  const auto blobs = std::make_shared<MemoryBlobs>();
  MemoryBlobStore store(blobs);
  TestKeys keys;
  ManualClock clock;
  SeededRandom random{3};
  Packer packer({.keys = &keys}, &clock, &random);
  sources_[0].make = [&](const DurableTierParts& parts) -> Result<std::unique_ptr<DurableTier>> {
    return NewDurableTier({.name = "store"}, &store, &packer, parts.listener, parts.workers,
                          parts.owner, parts.clock, parts.random);
  };
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  ASSERT_EQ(Store(chain), 40u);
  NameSession(chain, "s1");
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(blobs->Names().size(), 41u);  // With the session's note.
  MakeAnother(DurableCache());
  EXPECT_EQ(Match(chain)->matched, 40u);
  EXPECT_EQ(Recall(chain), 40u);
  MakeAnother(DurableCache());
  PrestageRequest prestage;
  prestage.session = "s1";
  client_->Do(&Core::Prestage, &prestage);
  EXPECT_TRUE(prestage.status.ok()) << prestage.status.ToString();
  EXPECT_EQ(prestage.staged, 40u);
  // One bit, anywhere: a miss.
  const std::string damaged = blobs->Names()[20];
  blobs->FlipBit(damaged, 8 * 9000 + 3);
  MakeAnother(DurableCache());
  EXPECT_GE(Recall(chain), 39u);
  EXPECT_TRUE(Evict(chain)->status.ok());
  EXPECT_EQ(Recall(chain), 0u);
  EXPECT_LE(blobs->Names().size(), 1u);
  client_.reset();
  world_.reset();  // Before what its tier stands on.
}

// A header is damaged where NVMe has the block: it is written again, and in nobody's way.
TEST_F(CoreDurableTest, WhatIsDamagedAtTheStoreIsWrittenAgainAfterARestart) {
  const auto blobs = std::make_shared<MemoryBlobs>();
  MemoryBlobStore store(blobs);
  TestKeys keys;
  ManualClock clock;
  SeededRandom random{3};
  Packer packer({.keys = &keys}, &clock, &random);
  sources_[0].make = [&](const DurableTierParts& parts) -> Result<std::unique_ptr<DurableTier>> {
    return NewDurableTier({.name = "store"}, &store, &packer, parts.listener, parts.workers,
                          parts.owner, parts.clock, parts.random);
  };
  MakeDurable(DurableCache(64, true));
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  ASSERT_EQ(blobs->Names().size(), 4u);
  blobs->FlipBit(blobs->Names()[2], 8 * 40);  // In its record.
  Restart();
  world_->Advance(5 * kSecond);
  const uint64_t looks = store.requests(BlobKind::kLook);
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 4})), 4u);
  EXPECT_TRUE(FlushTo(TierKind::kNvme, 8 * kSecond).ok());
  EXPECT_EQ(store.requests(BlobKind::kLook), looks);
  MakeAnother(DurableCache());
  EXPECT_EQ(Recall(chain), 4u);
  client_.reset();
  world_.reset();  // Before what its tier stands on.
}

TEST_F(CoreDurableTest, ASharedCacheTakesAllAndCountsAsNothing) {
  FakeStore shared;
  FakeDurableTier* shared_tier = nullptr;
  sources_.push_back(SourceOf("shared", &shared, &shared_tier));
  sources_.back().writes = DurableWrites::kAll;
  sources_.back().lasting = false;
  MakeDurable(SmallCache(64, false));
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  world_->Advance(kSecond);
  EXPECT_EQ(shared.blobs.size(), 10u);
  EXPECT_EQ(store_.blobs.size(), 0u);
  MakeAnother(SmallCache(64, false));
  EXPECT_EQ(Recall(chain), 10u);
  shared.blobs.clear();  // It may drop what it wants.
  MakeAnother(SmallCache(64, false));
  EXPECT_EQ(Recall(chain), 0u);
}

}  // namespace
}  // namespace aquifer
