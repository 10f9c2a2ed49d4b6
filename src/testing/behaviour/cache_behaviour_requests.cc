// Tests requests and clients: which requests are refused or ignored, counters, events, and clients
// that leave in the middle of a request.
#include <poll.h>

#include <thread>

#include "testing/behaviour/cache_behaviour.h"

namespace aquifer {
namespace {

using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

// Returns success for kInvalid with a message that names the wrong field.
AssertionResult Refuses(const Status& status, std::string_view field) {
  if (status.code() != Code::kInvalid) {
    return AssertionFailure() << "expected invalid, got " << status.ToString();
  }
  if (status.message().find(field) == std::string::npos) {
    return AssertionFailure() << "expected a message about " << field << ", got "
                              << status.message();
  }
  return AssertionSuccess();
}

// Every kind of request on a chain, each made wrong in the same way.
template <class Spoil>
void ExpectAllRefuse(TestEngine* engine, const Chain& chain, std::string_view field, Spoil spoil) {
  Cache* cache = engine->cache();
  const auto submit = [&](auto* request, auto call) {
    request->chain = engine->Slice(chain);
    spoil(&request->chain);
    (cache->*call)(request);
    engine->Finish(*request);
    EXPECT_TRUE(Refuses(request->status, field)) << typeid(*request).name();
  };
  MatchRequest match;
  submit(&match, &Cache::Match);
  EXPECT_EQ(match.matched, 0u);
  FetchRequest fetch;
  submit(&fetch, &Cache::Fetch);
  ReserveRequest reserve;
  reserve.parent = chain.parent(0);
  submit(&reserve, &Cache::Reserve);
  PinRequest pin;
  pin.seconds = 10;
  submit(&pin, &Cache::Pin);
  EXPECT_EQ(pin.pinned, 0u);
  PrestageRequest prestage;
  submit(&prestage, &Cache::Prestage);
  EvictRequest evict;
  submit(&evict, &Cache::Evict);
  EXPECT_EQ(evict.evicted, 0u);
}

TEST_P(CacheBehaviour, AnUnknownLayoutHandleIsRefusedByName) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  ExpectAllRefuse(&engine(), chain, "layout", [](ChainSlice* slice) { slice->layout = 0; });
  ExpectAllRefuse(&engine(), chain, "layout", [](ChainSlice* slice) { slice->layout = 4711; });
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, AGroupOutOfRangeIsRefusedByName) {
  Start(LayoutOfBytes(64 << 10, 2));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  ExpectAllRefuse(&engine(), chain, "group", [](ChainSlice* slice) { slice->group = 2; });
  ExpectAllRefuse(&engine(), chain, "group", [](ChainSlice* slice) { slice->group = UINT16_MAX; });
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, TooManyKeysAreRefusedByName) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  const std::vector<Key> keys(4 << 20, chain[0]);
  ExpectAllRefuse(&engine(), chain, "keys", [&](ChainSlice* slice) { slice->keys = keys; });
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, TimeoutsThatAreNotPositiveAreRefusedByName) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  for (const int64_t timeout_nanos : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    SCOPED_TRACE(timeout_nanos);
    EXPECT_TRUE(Refuses(engine().Fetch(chain, {}, timeout_nanos)->status, "timeout_nanos"));
    EXPECT_TRUE(Refuses(engine().Flush(timeout_nanos), "timeout_nanos"));
    PrestageRequest prestage;
    prestage.chain = engine().Slice(chain);
    prestage.timeout_nanos = timeout_nanos;
    cache()->Prestage(&prestage);
    engine().Finish(prestage);
    EXPECT_TRUE(Refuses(prestage.status, "timeout_nanos"));
    DrainRequest drain;
    drain.timeout_nanos = timeout_nanos;
    cache()->Drain(&drain);
    engine().Finish(drain);
    EXPECT_TRUE(Refuses(drain.status, "timeout_nanos"));
  }
  EXPECT_EQ(engine().Store(MakeChain(2, 1)), 1u);  // The wrong drain drained nothing.
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, ATimeoutAsLongAsCanBeIsFine) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  const auto fetch = engine().Fetch(chain, {}, INT64_MAX);
  EXPECT_EQ(engine().CheckAndRelease(chain, {}, *fetch), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, OtherFieldsThatAreWrongAreRefusedByName) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);

  EXPECT_TRUE(Refuses(engine().Match(chain, {}, 5)->status, "have"));

  const std::vector<uint64_t> hashes(3, 1);
  ReserveRequest reserve;
  reserve.chain = engine().Slice(chain);
  reserve.engine_hashes = hashes;
  cache()->Reserve(&reserve);
  engine().Finish(reserve);
  EXPECT_TRUE(Refuses(reserve.status, "engine_hashes"));

  PinRequest pin;
  pin.chain = engine().Slice(chain);
  pin.seconds = -1;
  cache()->Pin(&pin);
  engine().Finish(pin);
  EXPECT_TRUE(Refuses(pin.status, "seconds"));

  // An Evict that names nothing: deleting everything takes `everything`.
  EvictRequest evict;
  evict.chain.layout = engine().handle();
  cache()->Evict(&evict);
  engine().Finish(evict);
  EXPECT_EQ(evict.status.code(), Code::kInvalid);
  EXPECT_FALSE(engine().EvictSession(std::string(257, 's'))->status.ok());
  EXPECT_FALSE(engine().PrestageSession(std::string(257, 's'))->status.ok());
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, ALayoutThatCannotBeStoredIsRefusedByName) {
  Start(LayoutOfBytes(64 << 10));
  RegisterLayoutRequest request;
  const auto refuses = [&](std::string_view field, auto spoil) {
    request.layout = LayoutOfHeads();
    spoil(&request.layout);
    cache()->RegisterLayout(&request);
    engine().Finish(request);
    return Refuses(request.status, field);
  };
  EXPECT_TRUE(refuses("groups", [](Layout* layout) { layout->groups.clear(); }));
  EXPECT_TRUE(refuses("kv_heads", [](Layout* layout) { layout->groups[0].kv_heads = 0; }));
  EXPECT_TRUE(refuses("tokens_per_block", [](Layout* layout) { layout->tokens_per_block = 0; }));
  EXPECT_TRUE(refuses("kv_format", [](Layout* layout) { layout->kv_format.clear(); }));
}

TEST_P(CacheBehaviour, TheSameLayoutMayBeRegisteredAgain) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  TestEngine again(cache(), layout());
  EXPECT_EQ(again.Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, AClientWithoutAProperTenantIsRefused) {
  Start(LayoutOfBytes(64 << 10));
  const auto empty = cache()->Join({.tenant = "", .engine = ""});
  EXPECT_TRUE(Refuses(empty.status(), "tenant"));
  const auto longest = cache()->Join({.tenant = std::string(64, 't'), .engine = ""});
  EXPECT_TRUE(longest.ok());
  const auto longer = cache()->Join({.tenant = std::string(65, 't'), .engine = ""});
  EXPECT_TRUE(Refuses(longer.status(), "tenant"));
}

TEST_P(CacheBehaviour, ARequestWithoutKeysIsAnswered) {
  Start(LayoutOfBytes(64 << 10));
  const Chain empty = MakeChain(1, 0);
  EXPECT_EQ(engine().Matched(empty), 0u);
  const auto fetch = engine().Fetch(empty);
  EXPECT_TRUE(fetch->done());
  EXPECT_TRUE(fetch->ops.empty());
  CommitRequest commit;
  cache()->Commit(&commit);
  engine().Finish(commit);
  EXPECT_TRUE(commit.status.ok());
}

TEST_P(CacheBehaviour, UnknownLeasesAndReservationsAreIgnored) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  const std::vector<ReleaseOp> leases = {
      {.lease = 0}, {.lease = 99, .corrupt = true}, {.lease = UINT64_MAX}};
  const std::vector<ReservationId> reservations = {0, 99, UINT64_MAX};
  cache()->Release(leases);
  cache()->Abort(reservations);
  cache()->Release({});
  cache()->Abort({});
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, ALeaseReleasedTwiceEndsOnlyOnce) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  const auto first = engine().Fetch(chain);
  const auto second = engine().Fetch(chain);
  engine().Release(*first);
  engine().Release(*first);
  engine().Evict(chain);
  Crowd(&engine(), 2 * kExtentBytes);
  EXPECT_EQ(engine().CheckAndRelease(chain, {}, *second), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, LeasesAndReservationsBelongToTheirClient) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 2);
  ASSERT_EQ(engine().Store(chain, {.first = 0, .count = 1}), 1u);
  const auto fetch = engine().Fetch(chain, {.first = 0, .count = 1});
  const auto reserve = engine().Reserve(chain, {.first = 1, .count = 1});
  auto other = Join({.engine = "other"});
  TestEngine stranger(other.get(), layout());

  const ReleaseOp release{.lease = fetch->ops[0].lease, .corrupt = true};
  other->Release({&release, 1});
  other->Abort({&reserve->ops[0].reservation, 1});
  CommitRequest commit;
  commit.ops.resize(1);
  commit.ops[0].reservation = reserve->ops[0].reservation;
  other->Commit(&commit);
  stranger.Finish(commit);
  EXPECT_EQ(commit.ops[0].status.code(), Code::kInvalid);

  EXPECT_EQ(engine().CheckAndRelease(chain, {.first = 0, .count = 1}, *fetch),
            Recalled{.right = 1});
  EXPECT_TRUE(engine().FillAndCommit(chain, {.first = 1, .count = 1}, *reserve)->ops[0].published);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 2});
}

TEST_P(CacheBehaviour, AClientThatLeavesInTheMiddleLeavesThePoolUsable) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain kept = MakeChain(1, 8);
  ASSERT_EQ(engine().Store(kept), 8u);
  const Chain abandoned = MakeChain(2, 32);
  for (int round = 0; round < 5; ++round) {
    auto joined = Join({.engine = "leaver"});
    TestEngine leaver(joined.get(), layout());
    const auto fetch = leaver.Fetch(kept);
    EXPECT_TRUE(fetch->ops[0].status.ok());
    const auto reserve = leaver.Reserve(abandoned);
    EXPECT_EQ(reserve->ops[0].outcome, ReserveOutcome::kSlot) << round;
  }
  EXPECT_EQ(engine().Matched(abandoned), 0u);
  EXPECT_TRUE(engine().Eventually([&] { return engine().Store(abandoned) == 32; }));
  EXPECT_EQ(engine().Recall(abandoned), Recalled{.right = 32});
}

TEST_P(CacheBehaviour, TheFirstClientMayLeaveBeforeTheOthers) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  auto joined = Join({.engine = "stays"});
  Stop();
  TestEngine stays(joined.get(), layout());
  EXPECT_EQ(stays.Recall(chain), Recalled{.right = 4});
  EXPECT_EQ(stays.Store(MakeChain(2, 4)), 4u);
}

TEST_P(CacheBehaviour, ARequestMayBeUsedAgainAndAgain) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 8);
  FetchRequest fetch;
  MatchRequest match;
  for (size_t stored = 0; stored <= 8; stored += 4) {
    match.chain = engine().Slice(chain);
    cache()->Match(&match);
    engine().Finish(match);
    EXPECT_EQ(match.matched, stored);
    fetch.chain = engine().Slice(chain, {.first = 0, .count = stored});
    cache()->Fetch(&fetch);
    engine().Finish(fetch);
    EXPECT_EQ(engine().CheckAndRelease(chain, {}, fetch), Recalled{.right = stored});
    engine().Store(chain, {.first = stored, .count = 4});
  }
}

TEST_P(CacheBehaviour, TheEventDescriptorTellsWhenToPoll) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  while (cache()->Poll() != 0) {
  }
  FetchRequest fetch;
  for (int round = 0; round < 100; ++round) {
    fetch.chain = engine().Slice(chain);
    cache()->Fetch(&fetch);
    while (!fetch.done()) {
      if (cache()->Poll() != 0) continue;
      pollfd waiting{.fd = cache()->event_fd(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(poll(&waiting, 1, 30'000), 1) << "the answer came without an event";
    }
    EXPECT_EQ(engine().CheckAndRelease(chain, {}, fetch), Recalled{.right = 4});
  }
}

TEST_P(CacheBehaviour, AWaitEndsWithItsTime) {
  Start(LayoutOfBytes(64 << 10));
  MatchRequest match;
  EXPECT_TRUE(cache()->Wait(match, 1));  // Never submitted: there is nothing to wait for.
  const Chain chain = MakeChain(1, 4);
  match.chain = engine().Slice(chain);
  cache()->Match(&match);
  static_cast<void>(cache()->Wait(match, 1));
  engine().Finish(match);
  EXPECT_TRUE(match.done());
}

TEST_P(CacheBehaviour, TheStatsReportBlocksAndEvents) {
  Start(LayoutOfBytes(kMiB));
  const Chain chain = MakeChain(1, 10);
  const uint64_t hits = engine().Counter("fetch_hits_dram");
  ASSERT_EQ(engine().Store(chain), 10u);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 10});
  const CacheStats stats = engine().Stats();
  EXPECT_EQ(stats.Counter("fetch_hits_dram"), hits + 10);
  EXPECT_EQ(stats.Counter("corrupt_blocks"), 0u);
  EXPECT_EQ(stats.Counter("no_such_counter"), 0u);
  const TierStats dram = engine().StatsOf(TierKind::kDram);
  EXPECT_TRUE(dram.in_service);
  EXPECT_EQ(dram.blocks, 10u);
  EXPECT_EQ(dram.capacity_bytes, Options().dram_bytes);
  EXPECT_GE(dram.used_bytes, 10 * kMiB);
  EXPECT_LE(dram.used_bytes, dram.capacity_bytes);
  if (has_nvme()) {
    ASSERT_TRUE(engine().Flush().ok());
    const TierStats nvme = engine().StatsOf(TierKind::kNvme);
    EXPECT_TRUE(nvme.in_service);
    EXPECT_EQ(nvme.blocks, 10u);
    EXPECT_GE(nvme.tenant_bytes, 10 * kMiB);
  } else {
    EXPECT_EQ(stats.tiers.size(), 1u);
  }
}

TEST_P(CacheBehaviour, ClientsInTwoThreadsSeeEachOthersBlocks) {
  Start(LayoutOfBytes(64 << 10));
  constexpr size_t kChains = 40;
  const auto work = [&](Cache* client, uint64_t own, uint64_t others) {
    TestEngine mine(client, layout());
    for (uint64_t i = 0; i < kChains; ++i) {
      EXPECT_EQ(mine.Store(Chain(layout(), {.seed = own + i, .blocks = 4})), 4u);
      const Recalled theirs = mine.Recall(Chain(layout(), {.seed = others + i, .blocks = 4}));
      EXPECT_EQ(theirs.right + theirs.missed, 4u) << theirs;
    }
  };
  auto first = Join({.engine = "first"});
  auto second = Join({.engine = "second"});
  std::thread one(work, first.get(), 1000, 2000);
  std::thread two(work, second.get(), 2000, 1000);
  one.join();
  two.join();
  for (uint64_t i = 0; i < kChains; ++i) {
    EXPECT_EQ(engine().Recall(MakeChain(1000 + i, 4)), Recalled{.right = 4});
    EXPECT_EQ(engine().Recall(MakeChain(2000 + i, 4)), Recalled{.right = 4});
  }
}

TEST_P(CacheBehaviour, TwoEnginesThatStoreTheSameChainAtOnceStoreItOnce) {
  Start(LayoutOfBytes(64 << 10));
  auto first = Join({.engine = "first"});
  auto second = Join({.engine = "second"});
  const auto work = [&](Cache* client) {
    TestEngine mine(client, layout());
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      const Chain chain(layout(), {.seed = seed, .blocks = 8});
      mine.Store(chain);
      EXPECT_EQ(mine.Recall(chain).wrong, 0u);
    }
  };
  std::thread one(work, first.get());
  std::thread two(work, second.get());
  one.join();
  two.join();
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(engine().Recall(MakeChain(seed, 8)), Recalled{.right = 8});
  }
}

}  // namespace
TEST_P(CacheBehaviour, AFloodOfHintsIsBoundedAndCounted) {
  Start(LayoutOfBytes(64 << 10), Options());
  const Chain chain = MakeChain(1, 64);
  ASSERT_EQ(engine().Store(chain), 64u);
  SessionForecast forecast;
  forecast.session = "session";
  forecast.chain = engine().Slice(chain);
  // Each takes the cache longer than it takes the caller.
  bool dropped = false;
  for (int round = 0; round < 1000 && !dropped; ++round) {
    for (int i = 0; i < 4096; ++i) engine().cache()->Hint(forecast);
    dropped = engine().Counter("dropped_notes") > 0;
  }
  EXPECT_TRUE(dropped);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 64});
}

TEST_P(CacheBehaviour, RequestsBeyondTheBoundAreRefusedAndTheOthersAreAnswered) {
  Start(LayoutOfBytes(64 << 10), Options());
  const Chain chain = MakeChain(1, 64);
  ASSERT_EQ(engine().Store(chain), 64u);
  std::vector<std::unique_ptr<MatchRequest>> requests;
  for (int i = 0; i < 3000; ++i) {
    requests.push_back(std::make_unique<MatchRequest>());
    requests.back()->chain = engine().Slice(chain);
    engine().cache()->Match(requests.back().get());
  }
  size_t answered = 0;
  for (const auto& request : requests) {
    engine().Finish(*request);
    if (request->status.ok()) {
      EXPECT_EQ(request->matched, 64u);
      ++answered;
    } else {
      EXPECT_EQ(request->status.code(), Code::kBusy);
    }
  }
  EXPECT_GE(answered, 1024u);
  EXPECT_EQ(engine().Matched(chain), 64u);
}

}  // namespace aquifer
