// What can be done with a session whose chain has gaps: evicted from its end, or lost in the
// middle.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "testing/cache/core_fixture.h"
#include "testing/cache/fake_durable_tier.h"

namespace aquifer {
namespace {

class SessionsTest : public CoreFixture {
 protected:
  size_t Matched(const Chain& chain) {
    MatchRequest match;
    match.chain = Slice(chain);
    client_->Do(&Core::Match, &match);
    return match.matched;
  }
  std::unique_ptr<EvictRequest> EvictSession() {
    auto evict = std::make_unique<EvictRequest>();
    evict->session = "session";
    client_->Do(&Core::Evict, evict.get());
    return evict;
  }
  void StoreSession(const Chain& chain) {
    ASSERT_EQ(Store(chain), chain.size());
    Hint(chain, 0);
    world_->Run();
  }
  // Reports these blocks as damaged, which drops them.
  void Lose(const Chain& chain, const std::vector<size_t>& lost) {
    const auto fetch = Fetch(chain);
    std::vector<ReleaseOp> leases;
    for (const FetchOp& op : fetch->ops) leases.push_back({.lease = op.lease, .corrupt = false});
    for (const size_t i : lost) leases[i].corrupt = true;
    client_->Release(leases);
  }
};

TEST_F(SessionsTest, WhatIsLeftIsDeletedAlsoWhereTheEndWasEvictedBefore) {
  Make(SmallCache(16, false));
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  StoreSession(chain);
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 8})), 8u);
  const size_t left = Matched(chain);
  ASSERT_GT(left, 0u);
  ASSERT_LT(left, 10u);
  PrestageRequest prestage;
  prestage.session = "session";
  client_->Do(&Core::Prestage, &prestage);
  EXPECT_EQ(prestage.found, left);
  const auto evict = EvictSession();
  EXPECT_TRUE(evict->status.ok()) << evict->status.ToString();
  EXPECT_EQ(evict->evicted, left);
  EXPECT_EQ(Recall(chain), 0u);
  EXPECT_TRUE(EvictSession()->status.ok());  // It is known that there is nothing left.
}

// Of whom it was does not outlive what they said.
TEST_F(SessionsTest, WhereEverythingIsDeletedTheirNamesAreToo) {
  Make(SmallCache(64, false));
  StoreSession(Chain(layout_, {.seed = 1, .blocks = 10}));
  const auto other = AttachAs("other");
  SessionForecast forecast;
  forecast.session = "theirs";
  forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
  world_->core().Hint(other->number(), forecast, Key{});
  for (int i = 0; i < 1000; ++i) {
    forecast.session = "session " + std::to_string(i);
    world_->core().Hint(client_->number(), forecast, Key{});
  }
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  EXPECT_TRUE(world_->core().Sessions("local", "", 1).empty());
  EXPECT_EQ(EvictSession()->status.code(), Code::kNotFound);
  EXPECT_EQ(world_->core().Sessions("other", "", 2).size(), 1u);
}

// Neither here nor in durable tiers; what is said of its blocks counts all the same.
TEST_F(SessionsTest, ANameThatIsNoTextIsNotRemembered) {
  FakeStore store;
  DurableTierSource source;
  source.name = "store";
  source.make = [&store](const DurableTierParts& parts) -> Result<std::unique_ptr<DurableTier>> {
    return std::unique_ptr<DurableTier>(std::make_unique<FakeDurableTier>(
        "store", &store, parts.listener, parts.owner, parts.clock));
  };
  world_ = std::make_unique<ManualWorld>(SmallCache(64, false), nullptr, std::vector{source});
  Attach();
  const auto hint = [this](const std::string& name, const Chain& chain) {
    SessionForecast forecast;
    forecast.session = name;
    forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
    forecast.durability = Durability::kDurable;
    world_->core().Hint(client_->number(), forecast, chain.keys().back());
    world_->Run();
  };
  const auto flush = [this] {
    FlushRequest request;
    request.tier = TierKind::kDurable;
    client_->Do(&Core::Flush, &request);
    return request.status;
  };
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  const std::vector<std::string> none = {
      "\xFF", "a\xC3",   "\x80x", "\xED\xA0\x80", std::string(1, '\0'),
      "a\nb", "\x1B[2J", "\x7F",  "\xC2\x9B[31m", std::string(257, 'x')};
  for (const std::string& name : none) hint(name, chain);
  ASSERT_TRUE(flush().ok());
  EXPECT_EQ(store.blobs.size(), 10u);
  EXPECT_EQ(store.notes.size(), 0u);
  EXPECT_TRUE(world_->core().Sessions("local", "", 100).empty());
  for (const std::string& name : none) {
    EvictRequest evict;
    evict.session = name;
    client_->Do(&Core::Evict, &evict);
    EXPECT_EQ(evict.status.code(), Code::kNotFound) << name;
  }
  const std::vector<std::string> names = {"chat 7", "x'; echo '", std::string(256, 'x'),
                                          "\xC3\xA9"};
  for (const std::string& name : names) hint(name, chain);
  ASSERT_TRUE(flush().ok());
  EXPECT_EQ(store.notes.size(), names.size() + 1);  // And one for the block that they end with.
  std::vector<std::string> listed;
  for (const SessionSnapshot& session : world_->core().Sessions("local", "", 100)) {
    listed.push_back(session.name);
  }
  EXPECT_EQ(listed, names);
}

TEST_F(SessionsTest, ALostBlockInTheMiddleDoesNotHideWhatIsAboveIt) {
  Make(SmallCache(64, false));
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  StoreSession(chain);
  Lose(chain, {4, 5, 8, 9});
  const auto evict = EvictSession();
  EXPECT_TRUE(evict->status.ok()) << evict->status.ToString();
  EXPECT_EQ(evict->evicted, 6u);
  EXPECT_EQ(Recall(chain), 0u);
}

// Another try below the session's end, deleted by its keys: somebody still reads it, and it is
// nobody's.
TEST_F(SessionsTest, WhatIsGoneAndStillLentIsNoOtherChain) {
  for (const size_t shared : {10, 6}) {
    SCOPED_TRACE(shared);
    Make(SmallCache(64, false));
    const Chain chain(layout_, {.seed = 1, .blocks = 10});
    const Chain next = chain.Fork(10, 5, 4);
    const Chain tried = chain.Fork(shared, 6, 1);
    StoreSession(chain);
    ASSERT_EQ(Store(next), 4u);
    ASSERT_EQ(Store(tried), 1u);
    const auto lent = Fetch(tried);
    EvictRequest last;
    last.chain = Slice(tried);
    last.chain.keys = tried.keys(shared, 1);
    client_->Do(&Core::Evict, &last);
    ASSERT_EQ(last.evicted, 1u);
    const auto evict = EvictSession();
    EXPECT_TRUE(evict->status.ok()) << evict->status.ToString();
    EXPECT_EQ(evict->evicted, 14u);
    Release(*lent);
    EXPECT_EQ(Recall(next), 0u);
  }
}

TEST_F(SessionsTest, WhatAnotherChainSharesStaysAlsoAboveAGap) {
  Make(SmallCache(64, false));
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  const Chain other = chain.Fork(4, 2, 6);
  StoreSession(chain);
  Lose(chain, {4, 9});
  ASSERT_EQ(Store(other), other.size() - 4);
  const auto evict = EvictSession();
  EXPECT_TRUE(evict->status.ok()) << evict->status.ToString();
  EXPECT_EQ(Matched(chain), 4u);
  EXPECT_EQ(Recall(other), other.size());
}

TEST_F(SessionsTest, WhatAnotherChainSharesStaysAlsoWhereThatBeginsBelowTheGap) {
  for (const size_t blocks : {10, 4}) {
    SCOPED_TRACE(blocks);  // The lost one is in the middle, or the session's last.
    Make(SmallCache(64, false));
    const Chain chain(layout_, {.seed = 1, .blocks = blocks});
    const Chain other = chain.Fork(4, 2, 4);
    const Chain third = chain.Fork(4, 3, 4);
    StoreSession(chain);
    ASSERT_EQ(Store(other), 4u);
    ASSERT_EQ(Store(third), 4u);
    Lose(chain, {3});
    EXPECT_TRUE(EvictSession()->status.ok());
    EXPECT_EQ(Recall(other), other.size() - 1) << "all but the lost one";
    EXPECT_EQ(Recall(third), third.size() - 1);
  }
}

// The tail is the first to be evicted, and any block may be lost: what is left was said to go too.
TEST_F(SessionsTest, ATimeToLiveReachesWhatIsAboveAGap) {
  for (const std::vector<size_t>& lost : {std::vector<size_t>{4}, {4, 5, 7}, {8, 9}}) {
    Make(SmallCache(64, false));
    const Chain chain(layout_, {.seed = 1, .blocks = 10});
    StoreSession(chain);
    Lose(chain, lost);
    Hint(chain, 10);
    world_->Run();
    EXPECT_EQ(Recall(chain), 10 - lost.size());
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 11);
    EXPECT_EQ(Recall(chain), 0u) << "lost " << lost.size();
  }
}

TEST_F(SessionsTest, ATimeToLiveIsNoOtherChainsAlsoAboveAGap) {
  for (const size_t lost : {4, 6}) {
    SCOPED_TRACE(lost);
    Make(SmallCache(64, false));
    const Chain chain(layout_, {.seed = 1, .blocks = 10});
    const Chain other = chain.Fork(4, 2, 4);
    StoreSession(chain);
    ASSERT_EQ(Store(other), 4u);
    Lose(chain, {lost});
    Hint(chain, 10);
    world_->Run();
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 11);
    EXPECT_EQ(Recall(other), other.size());
    EXPECT_EQ(Recall(chain), 4u);
  }
}

TEST_F(SessionsTest, ATimeToLiveIsNoOtherChainsWhoseOwnBlockIsTheGap) {
  for (const size_t blocks : {10, 4}) {
    SCOPED_TRACE(blocks);  // The lost one is in the middle, or the session's last.
    Make(SmallCache(64, false));
    const Chain chain(layout_, {.seed = 1, .blocks = blocks});
    const Chain other = chain.Fork(4, 2, 4);
    const Chain third = chain.Fork(4, 3, 4);
    StoreSession(chain);
    ASSERT_EQ(Store(other), 4u);
    ASSERT_EQ(Store(third), 4u);
    Lose(chain, {3});
    Hint(chain, 10);
    world_->Run();
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 11);
    EXPECT_EQ(Recall(other), other.size() - 1) << "all but the lost one";
  }
}

// Only a client that makes keys up gets there. It must not keep anybody busy for ever.
TEST_F(SessionsTest, AChainThatIsItsOwnBeginningEnds) {
  Make(SmallCache(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  StoreSession(chain);
  Lose(chain, {5, 6, 7, 8, 9});
  // Its sixth block once more, below its last one.
  ReserveRequest reserve;
  reserve.chain = Slice(chain);
  reserve.chain.keys = chain.keys(5, 1);
  reserve.parent = chain.keys().back();
  reserve.position = 5;
  client_->Do(&Core::Reserve, &reserve);
  ASSERT_EQ(reserve.ops[0].outcome, ReserveOutcome::kSlot);
  CommitRequest commit;
  commit.ops.push_back({.reservation = reserve.ops[0].reservation,
                        .sums = SumLanes(reserve.ops[0].slot, 0),
                        .status = {}});
  client_->Do(&Core::Commit, &commit);
  ASSERT_TRUE(commit.ops[0].published);
  Hint(chain, 10);
  EXPECT_TRUE(Flush().ok()) << "the hint goes on for ever";
  PrestageRequest prestage;
  prestage.session = "session";
  client_->Do(&Core::Prestage, &prestage);
  EXPECT_TRUE(prestage.done());
  EvictSession();
}

TEST_F(SessionsTest, AFinishedSessionGoesBeforeOneThatWasUsedLongerAgo) {
  Make(SmallCache(32, false));
  const Chain finished(layout_, {.seed = 1, .blocks = 10});
  const Chain older(layout_, {.seed = 2, .blocks = 10});
  ASSERT_EQ(Store(older), 10u);
  world_->Advance(1'000'000'000);
  ASSERT_EQ(Store(finished), 10u);
  SessionForecast forecast;
  forecast.session = "session";
  forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
  forecast.state = SessionState::kFinished;
  world_->core().Hint(client_->number(), forecast, finished.keys().back());
  world_->Run();
  ASSERT_EQ(Store(Chain(layout_, {.seed = 3, .blocks = 20})), 20u);
  EXPECT_LE(Matched(finished), 2u);
  EXPECT_EQ(Matched(older), 10u);
}

TEST_F(SessionsTest, ASessionThatIsDueOutlivesOneThatWasUsedSinceAndIsNot) {
  CoreOptions options = SmallCache(32, false);
  options.cache.eviction = EvictionPolicy::kLearned;
  Make(options);
  const auto store = [&](uint64_t seed, int64_t return_seconds) {
    const Chain chain(layout_, {.seed = seed, .blocks = 10});
    EXPECT_EQ(Store(chain), 10u);
    SessionForecast forecast;
    forecast.session = "session";
    forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
    forecast.state = SessionState::kWillContinue;
    forecast.return_seconds = return_seconds;
    world_->core().Hint(client_->number(), forecast, chain.keys().back());
    world_->Run();
    return chain;
  };
  const Chain soon = store(1, 30);
  world_->Advance(1'000'000'000);
  const Chain tomorrow = store(2, 86'400);
  ASSERT_EQ(Store(Chain(layout_, {.seed = 3, .blocks = 20})), 20u);
  EXPECT_LE(Matched(tomorrow), 2u);
  EXPECT_EQ(Matched(soon), 10u);
}

TEST_F(SessionsTest, WhatIsNotKnownAnyMoreIsNotCalledDeleted) {
  Make(SmallCache(64, false));
  const Chain chain(layout_, {.seed = 1, .blocks = 10});
  ASSERT_EQ(Store(chain), 10u);
  Lose(chain, {9});
  Hint(chain, 0);  // Too late to know what came before its last block.
  world_->Run();
  EXPECT_EQ(EvictSession()->status.code(), Code::kNotFound);
}

}  // namespace
}  // namespace aquifer
