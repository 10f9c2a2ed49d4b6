// Sessions that durable tiers know by name: what is noted there, when, and what of it is recalled.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/session/session_note.h"
#include "testing/cache/core_durable_fixture.h"

namespace aquifer {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMillisecond;

class CoreDurableSessionsTest : public CoreDurableFixture {
 protected:
  Code EvictSession(const std::string& session) {
    EvictRequest evict;
    evict.session = session;
    client_->Do(&Core::Evict, &evict);
    return evict.status.code();
  }
  // Other blocks take all of memory.
  void CrowdOut() {
    for (uint64_t seed = 100; seed < 120; ++seed) {
      Store(Chain(layout_, {.seed = seed, .blocks = 16}));
    }
    world_->Advance(kSecond);
  }
  // The chain's last block is deleted while somebody reads it.
  std::unique_ptr<FetchRequest> LendAndDelete(const Chain& chain) {
    auto lent = std::make_unique<FetchRequest>();
    lent->chain = Slice(chain);
    lent->chain.keys = chain.keys(chain.size() - 1, 1);
    client_->Do(&Core::Fetch, lent.get());
    EvictRequest evict;
    evict.chain = lent->chain;
    client_->Do(&Core::Evict, &evict);
    EXPECT_EQ(evict.evicted, 1u);
    return lent;
  }
};

TEST_F(CoreDurableSessionsTest, AnEmptyNodeRecallsASessionByItsNameAlone) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 30});
  ASSERT_EQ(Store(chain), 30u);
  NameSession(chain, "s1");
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(store_.notes.size(), 1u);
  const Chain next = chain.Fork(30, 5, 10);  // Another turn.
  ASSERT_EQ(Store(next), 10u);
  NameSession(next, "s1");
  ASSERT_TRUE(Flush().ok());
  client_.reset();
  world_.reset();
  world_ = std::make_unique<ManualWorld>(DurableCache(), nullptr, sources_);
  // A client that has registered nothing, as an administrator's.
  ManualClient plain(world_.get(), {.tenant = "local"});
  PrestageRequest prestage;
  prestage.session = "s1";
  plain.Do(&Core::Prestage, &prestage);
  EXPECT_TRUE(prestage.status.ok()) << prestage.status.ToString();
  EXPECT_EQ(prestage.found, 40u);
  EXPECT_EQ(prestage.staged, 40u);
  Attach();
  const uint64_t reads = store_.reads;
  EXPECT_EQ(Recall(next), 40u);
  EXPECT_EQ(store_.reads, reads);
  PrestageRequest unknown;
  unknown.session = "s2";
  plain.Do(&Core::Prestage, &unknown);
  EXPECT_EQ(unknown.status.code(), Code::kNotFound);
}

TEST_F(CoreDurableSessionsTest, ASessionThatIsKnownHereComesBackFromTheStoreToo) {
  MakeDurable(DurableCache(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 30});
  NameSession(chain, "s1");  // Before it is stored.
  ASSERT_EQ(Store(chain), 30u);
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(store_.notes.size(), 1u);
  for (uint64_t seed = 2; seed <= 5; ++seed) {
    ASSERT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 30})), 30u);
    ASSERT_TRUE(Flush().ok());
  }
  PrestageRequest prestage;
  prestage.session = "s1";
  client_->Do(&Core::Prestage, &prestage);
  EXPECT_TRUE(prestage.status.ok()) << prestage.status.ToString();
  EXPECT_EQ(prestage.staged, 30u);
  EXPECT_GT(store_.reads, 0u);
  EXPECT_EQ(Recall(chain), 30u);
}

TEST_F(CoreDurableSessionsTest, ALongSessionIsNotedInPieces) {
  CoreOptions options = DurableCache(1536);
  MakeDurable(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 1100});
  ASSERT_EQ(Store(chain), 1100u);
  NameSession(chain, "s1");
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(store_.notes.size(), 2u);
  MakeAnother(options);
  PrestageRequest prestage;
  prestage.session = "s1";
  client_->Do(&Core::Prestage, &prestage);
  EXPECT_EQ(prestage.staged, 1100u);
}

TEST_F(CoreDurableSessionsTest, ANoteNamesNoMoreThanIsDurable) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  store_.fail_writes = Code::kUnavailable;
  ASSERT_EQ(Store(chain), 8u);
  NameSession(chain, "s1");
  world_->Advance(3 * kSecond);
  EXPECT_EQ(store_.notes_written, 0u);
  store_.fail_writes = Code::kOk;
  ASSERT_TRUE(world_->RunUntil([&] { return store_.notes_written == 1; }));
  EXPECT_EQ(BlobsOf(chain), 8u);
}

TEST_F(CoreDurableSessionsTest, ANoteOutlastsAnOutageOfTheStore) {
  MakeDurable(DurableCache());
  tier_->SetInService(false);
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  NameSession(chain, "s1");
  NameSession(Chain(layout_, {.seed = 2, .blocks = 4}), "never stored");
  world_->Advance(200 * kSecond);
  EXPECT_EQ(Counter("session_notes_skipped"), 1u);
  tier_->SetInService(true);
  EXPECT_TRUE(FlushTo(TierKind::kDurable, 30 * kSecond).ok());
  EXPECT_EQ(store_.notes.size(), 1u);
}

TEST_F(CoreDurableSessionsTest, ANoteWaitsForItsLastBlockHoweverSmallTheBudget) {
  sources_[0].write_bytes_per_second = kBlockBytes / 2;
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  ASSERT_EQ(Store(chain), 40u);
  NameSession(chain, "s1");
  world_->Advance(70 * kSecond);
  EXPECT_LT(BlobsOf(chain), 40u);
  world_->Advance(30 * kSecond);
  EXPECT_EQ(BlobsOf(chain), 40u);
  EXPECT_EQ(store_.notes.size(), 1u);
}

TEST_F(CoreDurableSessionsTest, AFlushTellsThatANoteWasNotTaken) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  store_.fail_notes = true;
  NameSession(chain, "s1");
  EXPECT_EQ(Flush().code(), Code::kUnavailable);
  EXPECT_EQ(BlobsOf(chain), 4u);
  EXPECT_EQ(Flush().code(), Code::kUnavailable);
  store_.fail_notes = false;
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(store_.notes.size(), 1u);
}

// Of a tenant whose other blocks are not durable, in a cache without drives.
TEST_F(CoreDurableSessionsTest, AFlushWithoutADriveWaitsForWhatIsToBeDurable) {
  MakeDurable(SmallCache(64, /*nvme=*/false));
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  ASSERT_EQ(Store(chain), 20u);
  NameSession(chain, "s1", Durability::kDurable);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(chain), 20u);
  EXPECT_EQ(store_.notes.size(), 2u) << "its own and that of its end";
  EXPECT_TRUE(Flush().ok()) << "there is nothing else";

  const Chain next = chain.Fork(20, 5, 10);
  const Chain other(layout_, {.seed = 2, .blocks = 4});
  ASSERT_EQ(Store(next), 10u);
  ASSERT_EQ(Store(other), 4u);
  NameSession(next, "s1", Durability::kDurable);
  NameSession(other, "s2");
  const Status flushed = Flush();
  EXPECT_EQ(flushed.code(), Code::kUnavailable);
  EXPECT_NE(flushed.message().find("4 other blocks are in memory alone"), std::string::npos)
      << flushed.message();
  EXPECT_EQ(BlobsOf(next), 30u);
  EXPECT_EQ(BlobsOf(other), 0u);

  store_.fail_writes = Code::kUnavailable;
  const Chain last = next.Fork(30, 6, 2);
  ASSERT_EQ(Store(last), 2u);
  NameSession(last, "s1", Durability::kDurable);
  EXPECT_EQ(FlushTo(TierKind::kNvme).code(), Code::kLate);
  tier_->SetInService(false);
  EXPECT_EQ(FlushTo(TierKind::kNvme).code(), Code::kUnavailable);
}

// A session that is durable by its own class, of which `chain` is flushed.
class OwnClassTest : public CoreDurableFixture, public testing::WithParamInterface<bool> {
 protected:
  bool nvme() const { return GetParam(); }
  CoreOptions Options() const { return SmallCache(64, nvme()); }
  void Begin() {
    MakeDurable(Options());
    ASSERT_EQ(Store(chain_), 20u);
    NameSession(chain_, "s1", Durability::kDurable);
    ASSERT_TRUE(Flush().ok());
  }
  void BeginAgain() { nvme() ? Restart() : MakeAnother(Options()); }
  // How many blocks it finds there.
  size_t Prestage(const std::string& session) {
    PrestageRequest prestage;
    prestage.session = session;
    client_->Do(&Core::Prestage, &prestage);
    return prestage.staged;
  }
  // On another node, by its name alone: whether that is all of this chain.
  bool IsAllOf(const std::string& session, const Chain& chain) {
    MakeAnother(SmallCache(64, /*nvme=*/false));
    if (Prestage(session) != chain.size()) return false;
    const uint64_t reads = store_.reads;
    return Recall(chain) == chain.size() && store_.reads == reads;
  }
  Status EvictSession(const std::string& session) {
    EvictRequest evict;
    evict.session = session;
    client_->Do(&Core::Evict, &evict);
    return evict.status;
  }
  void BeginAgainAndRecall(const Chain& chain) {
    BeginAgain();
    ASSERT_EQ(Recall(chain), chain.size());
  }

  const Chain chain_ = Chain(layout_, {.seed = 1, .blocks = 20});
  const Chain next_ = chain_.Fork(20, 5, 10);
  const Chain last_ = next_.Fork(30, 6, 4);
  const Chain other_ = chain_.Fork(20, 7, 6);  // Begins with the same 20.
};

INSTANTIATE_TEST_SUITE_P(WithAndWithoutNvme, OwnClassTest, testing::Bool());

TEST_P(OwnClassTest, WhatTheSessionGoesOnWithIsDurableWithoutAnotherHint) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_EQ(Store(next_), 10u);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(next_), 30u);
}

TEST_P(OwnClassTest, ItIsKeptOverRestartsAndFollowsTheSession) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(chain_));
  ASSERT_EQ(Store(next_), 10u);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(next_), 30u);
  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(next_));
  ASSERT_EQ(Store(last_), 4u);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(last_), 34u);
  MakeAnother(Options());
  PrestageRequest prestage;
  prestage.session = "s1";
  client_->Do(&Core::Prestage, &prestage);
  EXPECT_EQ(prestage.staged, 34u) << "its note knows what came without a hint";
}

TEST_P(OwnClassTest, WhatIsComputedAnewAfterARestartIsFollowedToo) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  MakeAnother(Options());
  Match(chain_);
  ASSERT_EQ(Store(next_), 30u);
  ASSERT_TRUE(world_->RunUntil([&] { return BlobsOf(next_) == 30; }));
}

TEST_P(OwnClassTest, ASessionThatBranchesOffAboveItsEndStaysOutOfTheStore) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  const Chain other = chain_.Fork(12, 8, 6);
  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(chain_));
  ASSERT_EQ(Store(other), 6u);
  EXPECT_EQ(Flush().ok(), nvme());
  world_->Advance(30 * kSecond);
  EXPECT_EQ(BlobsOf(other), 12u);
  ASSERT_EQ(Store(other.Fork(18, 9, 2)), 2u);
  world_->Advance(30 * kSecond);
  EXPECT_EQ(BlobsOf(other.Fork(18, 9, 2)), 12u);
}

TEST_P(OwnClassTest, ASessionThatWasDeletedIsNotDurableAnyMore) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  EvictRequest evict;
  evict.session = "s1";
  client_->Do(&Core::Evict, &evict);
  ASSERT_TRUE(evict.status.ok()) << evict.status.ToString();
  ASSERT_EQ(Store(next_), 30u);
  world_->Advance(30 * kSecond);
  EXPECT_EQ(BlobsOf(next_), 0u);
  BeginAgain();
  ASSERT_GE(Store(last_), 4u);
  world_->Advance(30 * kSecond);
  EXPECT_EQ(BlobsOf(last_), 0u);
}

TEST_P(OwnClassTest, AStoreThatIsAwayIsAskedWhenItIsBack) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(chain_));
  tier_->SetInService(false);
  ASSERT_EQ(Store(next_), 10u);
  world_->Advance(10 * kSecond);
  tier_->SetInService(true);
  ASSERT_TRUE(world_->RunUntil([&] { return BlobsOf(next_) == 30; }));
}

TEST_P(OwnClassTest, AStoreThatIsAwayForLongIsAskedAllTheSame) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(chain_));
  tier_->SetInService(false);
  ASSERT_EQ(Store(next_), 10u);
  world_->Advance(300 * kSecond);
  tier_->SetInService(true);
  world_->Advance(10 * kSecond);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(next_), 30u);
}

TEST_P(OwnClassTest, AFlushIsNotOkWhileNobodyCanSayWhoseTheBlocksAre) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(chain_));
  tier_->SetInService(false);
  ASSERT_EQ(Store(next_), 10u);
  EXPECT_EQ(Flush().code(), Code::kUnavailable);
  tier_->SetInService(true);
  EXPECT_TRUE(Flush().ok()) << "it asks again at once";
  EXPECT_EQ(BlobsOf(next_), 30u);

  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(next_));
  store_.hang_notes = true;
  ASSERT_EQ(Store(last_), 4u);
  EXPECT_EQ(FlushTo(TierKind::kNvme).code(), Code::kLate);
}

// Another session, of no class, begins with the same blocks and goes on where this one ended once.
TEST_P(OwnClassTest, AnEarlierEndIsNobodysAnyMore) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_EQ(Store(next_), 10u);
  NameSession(next_, "s1", Durability::kDurable);
  ASSERT_TRUE(Flush().ok());
  NameSession(other_, "s2");
  ASSERT_EQ(Store(other_), 6u);
  world_->Advance(30 * kSecond);
  EXPECT_EQ(BlobsOf(other_), 20u);
  EXPECT_TRUE(IsAllOf("s1", next_));
}

TEST_P(OwnClassTest, AnEarlierEndIsNobodysAnyMoreAfterARestartToo) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_EQ(Store(next_), 10u);
  NameSession(next_, "s1", Durability::kDurable);
  ASSERT_TRUE(Flush().ok());
  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(chain_));
  ASSERT_EQ(Store(other_), 6u);
  world_->Advance(30 * kSecond);
  EXPECT_EQ(BlobsOf(other_), 20u);
  EXPECT_TRUE(IsAllOf("s1", next_));
}

TEST_P(OwnClassTest, WhoNamesWhatFollowedASessionTakesItBack) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_EQ(Store(other_), 6u);  // It may be s1 that goes on.
  ASSERT_TRUE(Flush().ok());
  NameSession(other_, "s2", Durability::kDurable);
  ASSERT_TRUE(Flush().ok());
  ASSERT_EQ(Store(next_), 10u);  // This is.
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(next_), 30u);
  EXPECT_TRUE(IsAllOf("s1", next_));
  EXPECT_TRUE(IsAllOf("s2", other_));
}

TEST_P(OwnClassTest, OfTwoSessionsThatEndAlikeEachGoesOnByItself) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  NameSession(chain_, "s2", Durability::kDurable);
  ASSERT_TRUE(Flush().ok());
  ASSERT_EQ(Store(next_), 10u);
  NameSession(next_, "s2", Durability::kDurable);
  ASSERT_TRUE(Flush().ok());
  ASSERT_EQ(Store(other_), 6u);  // The other one, without a hint.
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(other_), 26u);
  EXPECT_TRUE(IsAllOf("s2", next_));
  EXPECT_TRUE(IsAllOf("s1", other_));
}

TEST_P(OwnClassTest, WhichOfTwoSessionsGoesOnIsNotGuessed) {
  for (const bool restarted : {false, true}) {
    store_ = FakeStore();
    ASSERT_NO_FATAL_FAILURE(Begin());
    NameSession(chain_, "s2", Durability::kDurable);
    ASSERT_TRUE(Flush().ok());
    if (restarted) {
      ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(chain_));
    }
    ASSERT_EQ(Store(next_), 10u);
    ASSERT_TRUE(Flush().ok());
    ASSERT_EQ(Store(last_), 4u);
    ASSERT_TRUE(Flush().ok());
    EXPECT_EQ(BlobsOf(last_), 34u) << "either is durable";
    EXPECT_TRUE(IsAllOf("s1", chain_));
    EXPECT_TRUE(IsAllOf("s2", chain_));
    client_.reset();
    world_.reset();
  }
}

TEST_P(OwnClassTest, AHintBeforeTheBlocksAreStoredMakesThemDurable) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  NameSession(next_, "s1", Durability::kDurable);
  ASSERT_EQ(Store(next_), 10u);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(BlobsOf(next_), 30u);
  EXPECT_TRUE(IsAllOf("s1", next_));
}

TEST_P(OwnClassTest, WhatItWentOnWithIsDeletedToo) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_EQ(Store(next_), 10u);
  ASSERT_TRUE(Flush().ok());
  ASSERT_EQ(BlobsOf(next_), 30u);
  const Chain other = chain_.Fork(20, 8, 3);  // Of nobody: the first 20 are its, too.
  ASSERT_EQ(Store(other), 3u);
  EXPECT_TRUE(EvictSession("s1").ok());
  EXPECT_EQ(BlobsOf(next_), 20u);
  EXPECT_EQ(Recall(next_), 20u);
}

TEST_P(OwnClassTest, ADeletionOfAnotherSessionLeavesTheQuestionOpen) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(chain_));
  const Chain gone(layout_, {.seed = 77, .blocks = 2});
  ASSERT_EQ(Store(gone), 2u);
  NameSession(gone, "s2");
  store_.latency_nanos = 500 * kMillisecond;
  ASSERT_EQ(Store(next_), 10u);
  EXPECT_TRUE(EvictSession("s2").ok());
  ASSERT_EQ(Store(last_), 4u);
  ASSERT_TRUE(world_->RunUntil([&] { return BlobsOf(last_) == 34; }));
}

TEST_P(OwnClassTest, ASessionThatIsDeletedWhileItIsAskedForIsNotFollowed) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_NO_FATAL_FAILURE(BeginAgainAndRecall(chain_));
  ASSERT_EQ(Prestage("s1"), 20u);
  store_.latency_nanos = 500 * kMillisecond;
  ASSERT_EQ(Store(next_), 10u);
  EXPECT_TRUE(EvictSession("s1").ok());
  world_->Advance(30 * kSecond);
  EXPECT_EQ(BlobsOf(next_), 0u);
}

// So many questions that there is no room for more.
TEST_P(OwnClassTest, ATenantWithManyQuestionsLeavesRoomForOthers) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  CoreOptions options = Options();
  options.session_ends.max_asked = 8;
  MakeAnother(options);
  const auto busy = AttachAs("busy");
  std::vector<Chain> chains;
  for (uint64_t seed = 1000; seed < 1010; ++seed) {
    chains.emplace_back(layout_, ChainOptions{.seed = seed, .blocks = 1});
    ASSERT_EQ(Store(chains.back(), busy.get()), 1u);
  }
  FlushRequest flush;
  flush.tier = TierKind::kDurable;
  flush.timeout_nanos = 100 * kSecond;
  busy->Do(&Core::Flush, &flush);
  ASSERT_TRUE(flush.status.ok()) << flush.status.ToString();
  ASSERT_EQ(Recall(chain_), 20u);
  tier_->SetInService(false);
  for (const Chain& chain : chains) ASSERT_EQ(Store(chain.Fork(1, 5, 1), busy.get()), 1u);
  ASSERT_EQ(Store(next_), 10u);
  tier_->SetInService(true);
  ASSERT_TRUE(world_->RunUntil([&] { return BlobsOf(next_) == 30; }));
  EXPECT_TRUE(Flush().ok());
  flush.tier = TierKind::kNvme;
  busy->Do(&Core::Flush, &flush);
  EXPECT_FALSE(flush.status.ok()) << "of some it was not asked whose they are";
}

// Whatever makes its blocks durable.
TEST_F(CoreDurableSessionsTest, ADeletionTakesWhatTheSessionWentOnWithOutOfTheStore) {
  for (const bool by_tenant : {false, true}) {
    store_ = FakeStore();
    sources_[0].writes = by_tenant ? DurableWrites::kDurable : DurableWrites::kAll;
    MakeDurable(by_tenant ? DurableCache() : SmallCache(64, /*nvme=*/true));
    const Chain chain(layout_, {.seed = 1, .blocks = 20});
    const Chain next = chain.Fork(20, 5, 10);
    const Chain otherwise = next.Fork(25, 6, 3);  // Another try.
    ASSERT_EQ(Store(chain), 20u);
    NameSession(chain, "s1");
    ASSERT_EQ(Store(next), 10u);
    ASSERT_EQ(Store(otherwise), 3u);
    ASSERT_TRUE(FlushTo(TierKind::kDurable, 30 * kSecond).ok());
    ASSERT_EQ(BlobsOf(next), 30u);
    ASSERT_EQ(BlobsOf(otherwise), 28u);
    EvictRequest evict;
    evict.session = "s1";
    client_->Do(&Core::Evict, &evict);
    EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
    EXPECT_EQ(store_.blobs.size(), 0u);
    EXPECT_EQ(evict.evicted, 33u);
    Store(chain);
    ASSERT_TRUE(FlushTo(TierKind::kDurable, 30 * kSecond).ok());
    EXPECT_EQ(Recall(next), 20u);
    client_.reset();
    world_.reset();
  }
}

TEST_F(CoreDurableSessionsTest, ADeletionLeavesASessionThatGoesOnFromThere) {
  for (const bool in_memory : {true, false}) {
    SCOPED_TRACE(in_memory);
    store_.blobs.clear();
    store_.notes.clear();
    MakeDurable(DurableCache());
    const Chain chain(layout_, {.seed = 1, .blocks = 20});
    const Chain other = chain.Fork(20, 7, 6);
    ASSERT_EQ(Store(chain), 20u);
    NameSession(chain, "s1");
    ASSERT_EQ(Store(other), 6u);
    NameSession(other, "s2");
    ASSERT_TRUE(Flush().ok());
    if (!in_memory) CrowdOut();
    EvictRequest evict;
    evict.session = "s1";
    client_->Do(&Core::Evict, &evict);
    EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
    EXPECT_EQ(evict.evicted, 0u) << "all of it is the other one's too";
    EXPECT_EQ(BlobsOf(other), 26u);
    PrestageRequest prestage;
    prestage.session = "s2";
    client_->Do(&Core::Prestage, &prestage);
    EXPECT_EQ(prestage.staged, 26u);
    evict.session = "s2";
    client_->Do(&Core::Evict, &evict);
    EXPECT_EQ(evict.evicted, 26u) << "nobody else has it any more";
    EXPECT_EQ(BlobsOf(other), 0u);
  }
}

TEST_F(CoreDurableSessionsTest, ADeletionLeavesSessionsThatEndThereOrOnTheWay) {
  for (const bool in_memory : {true, false}) {
    SCOPED_TRACE(in_memory);
    store_.blobs.clear();
    MakeDurable(DurableCache());
    const Chain chain(layout_, {.seed = 1, .blocks = 20});
    const Chain next = chain.Fork(20, 5, 10);
    ASSERT_EQ(Store(next), 30u);
    NameSession(chain, "s1");
    NameSession(next, "s2");
    NameSession(next, "s3");
    ASSERT_TRUE(Flush().ok());
    if (!in_memory) CrowdOut();
    const size_t others = store_.blobs.size() - 30;
    const auto left_without = [this, others](const std::string& session) {
      EvictRequest evict;
      evict.session = session;
      client_->Do(&Core::Evict, &evict);
      EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
      return store_.blobs.size() - others;
    };
    EXPECT_EQ(left_without("s3"), 30u);
    EXPECT_EQ(left_without("s2"), 20u);
    EXPECT_EQ(left_without("s1"), 0u);
  }
}

TEST_F(CoreDurableSessionsTest, ADeletionLeavesWhatASessionThatBranchesOffHas) {
  for (const bool in_memory : {true, false}) {
    SCOPED_TRACE(in_memory);
    store_.blobs.clear();
    MakeDurable(DurableCache());
    const Chain chain(layout_, {.seed = 1, .blocks = 20});
    const Chain other = chain.Fork(10, 5, 10);
    ASSERT_EQ(Store(chain), 20u);
    NameSession(chain, "s1");
    ASSERT_EQ(Store(other), 10u);
    NameSession(other, "s2");
    ASSERT_TRUE(Flush().ok());
    if (!in_memory) CrowdOut();
    EXPECT_EQ(EvictSession("s1"), Code::kOk);
    EXPECT_EQ(BlobsOf(chain), 10u);
    EXPECT_EQ(BlobsOf(other), 20u);
    EXPECT_EQ(EvictSession("s2"), Code::kOk);
    EXPECT_EQ(BlobsOf(other), 0u);
  }
}

// Some of the many would go, and some would stay.
TEST_F(CoreDurableSessionsTest, ADeletionLeavesWhatVeryManyChainsGoOnFrom) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 2});
  const Chain next = chain.Fork(2, 2, 1);
  ASSERT_EQ(Store(chain), 2u);
  NameSession(chain, "s1");
  ASSERT_EQ(Store(next), 1u);
  for (uint64_t seed = 1000; seed < 1520; ++seed) {
    const Chain tried = next.Fork(3, seed, 1);
    ASSERT_EQ(Store(tried), 1u);
    NameSession(tried, "moves on");
    ASSERT_TRUE(Flush().ok());
  }
  NameSession(Chain(layout_, {.seed = 3, .blocks = 1}), "moves on");
  CrowdOut();
  const size_t before = store_.blobs.size();
  EXPECT_EQ(EvictSession("s1"), Code::kOk);
  EXPECT_EQ(store_.blobs.size(), before);
}

TEST_F(CoreDurableSessionsTest, ATimeToLiveIsNoOtherSessionsThatBranchesOff) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  const Chain other = chain.Fork(10, 5, 10);
  ASSERT_EQ(Store(chain), 20u);
  ASSERT_EQ(Store(other), 10u);
  NameSession(chain, "session");
  NameSession(other, "s2");
  ASSERT_TRUE(Flush().ok());
  CrowdOut();
  ASSERT_EQ(Recall(chain), 20u);  // The other one's own are in the store alone.
  Hint(chain, 60);
  world_->Advance(kSecond);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 61);
  EXPECT_EQ(Recall(other), 20u);
  EXPECT_EQ(Recall(chain), 10u);
}

// What is gone here, and held by nobody but who still reads it.
TEST_F(CoreDurableSessionsTest, WhatIsGoneAndStillLentHidesNothingAboveItFromADeletion) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  NameSession(chain, "s1");
  ASSERT_TRUE(Flush().ok());
  const auto lent = LendAndDelete(chain);
  ASSERT_EQ(BlobsOf(chain), 9u);
  CrowdOut();
  EXPECT_EQ(EvictSession("s1"), Code::kOk);
  EXPECT_EQ(BlobsOf(chain), 0u);
  Release(*lent);
}

// The same of a block beside the session's own, whose parent is in the store alone.
TEST_F(CoreDurableSessionsTest, WhatIsGoneAndStillLentBesideItHidesNothingAboveFromADeletion) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  const Chain tried = chain.Fork(9, 6, 1);
  ASSERT_EQ(Store(chain), 10u);
  NameSession(chain, "s1");
  ASSERT_TRUE(Flush().ok());
  CrowdOut();
  for (const Chain* const ends : {&tried, &chain}) {
    ReserveRequest reserve;
    reserve.chain = Slice(*ends);
    reserve.chain.keys = ends->keys(9, 1);
    reserve.parent = ends->parent(9);
    reserve.position = 9;
    client_->Do(&Core::Reserve, &reserve);
    ASSERT_EQ(reserve.ops[0].outcome, ReserveOutcome::kSlot);
    FillPayload((*ends)[9], 0, reserve.ops[0].slot);
    CommitRequest commit;
    commit.ops.resize(1);
    commit.ops[0].reservation = reserve.ops[0].reservation;
    commit.ops[0].sums = SumLanes(reserve.ops[0].slot, 0);
    client_->Do(&Core::Commit, &commit);
    ASSERT_TRUE(commit.ops[0].published);
  }
  const auto lent = LendAndDelete(tried);
  EXPECT_EQ(EvictSession("s1"), Code::kOk);
  EXPECT_EQ(BlobsOf(chain), 0u);
  Release(*lent);
}

TEST_F(CoreDurableSessionsTest, OfTwoNotesTheNewerCounts) {
  FakeStore second;
  FakeDurableTier* second_tier = nullptr;
  sources_.push_back(SourceOf("second", &second, &second_tier));
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  NameSession(chain, "s1");
  ASSERT_TRUE(Flush().ok());
  tier_->SetInService(false);
  const Chain next = chain.Fork(10, 5, 10);
  ASSERT_EQ(Store(next), 10u);
  NameSession(next, "s1");
  ASSERT_TRUE(FlushTo(TierKind::kDurable, 30 * kSecond).ok());
  const auto prestage = [&] {
    PrestageRequest prestage;
    prestage.session = "s1";
    client_->Do(&Core::Prestage, &prestage);
    return prestage.status.ok() ? prestage.staged : 0;
  };
  MakeAnother(DurableCache());
  EXPECT_EQ(prestage(), 20u);
  MakeAnother(DurableCache());
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 100);
  tier_->SetInService(false);
  EvictRequest evict;
  evict.session = "s1";
  EXPECT_EQ(prestage(), 20u);
  client_->Do(&Core::Evict, &evict);  // The first one hears nothing of it.
  EXPECT_EQ(evict.status.code(), Code::kUnavailable);
  MakeAnother(DurableCache());
  EXPECT_EQ(prestage(), 0u);
}

TEST_F(CoreDurableSessionsTest, ATierThatHangsKeepsNobodyFromTheNoteOfAnother) {
  FakeStore second;
  FakeDurableTier* second_tier = nullptr;
  sources_.push_back(SourceOf("second", &second, &second_tier));
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  NameSession(chain, "s1");
  ASSERT_TRUE(Flush().ok());
  MakeAnother(DurableCache());
  store_.hang_notes = true;
  PrestageRequest prestage;
  prestage.session = "s1";
  prestage.timeout_nanos = 5 * kSecond;
  client_->Do(&Core::Prestage, &prestage);
  EXPECT_TRUE(prestage.status.ok()) << prestage.status.ToString();
  EXPECT_EQ(prestage.staged, 10u);
}

TEST_F(CoreDurableSessionsTest, AnEvictOfASessionWaitsForItsNote) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  NameSession(chain, "s1");
  ASSERT_TRUE(Flush().ok());
  store_.fail_notes = true;
  EvictRequest evict;
  evict.session = "s1";
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.status.code(), Code::kUnavailable);
  EXPECT_EQ(store_.blobs.size(), 0u);
  EXPECT_EQ(store_.notes_written, 1u);
  store_.fail_notes = false;
  world_->Advance(3 * kSecond);  // It is tried again by itself.
  EXPECT_EQ(store_.notes_written, 2u);
}

TEST_F(CoreDurableSessionsTest, ASessionThatIsDeletedWhileItIsNotedStaysDeleted) {
  MakeDurable(DurableCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  store_.latency_nanos = 500 * kMillisecond;
  NameSession(chain, "s1");
  world_->Advance(100 * kMillisecond);
  EXPECT_EQ(store_.notes_written, 0u);  // On its way.
  EvictRequest evict;
  evict.session = "s1";
  client_->Do(&Core::Evict, &evict);
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  EXPECT_EQ(store_.notes_written, 2u);
  ASSERT_EQ(store_.notes.size(), 1u);
  const auto note = DecodeSessionNote(store_.notes.begin()->second);
  ASSERT_TRUE(note.ok());
  EXPECT_TRUE(note->keys.empty());
}

}  // namespace
}  // namespace aquifer
