// Tests the care for blocks: pins, prestaging, deletion, sessions, expiry, flush, drain, and what
// pays.
#include <optional>

#include "testing/behaviour/cache_behaviour.h"

namespace aquifer {
namespace {

// --- Pins --------------------------------------------------------------------------------------

TEST_P(CacheBehaviour, APinKeepsBlocksInMemoryUnderPressure) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 10);
  ASSERT_EQ(engine().Store(chain, {.first = 0, .count = 8}), 8u);
  EXPECT_EQ(engine().Pin(chain, 3600), 8u);  // Two of the keys are unknown.
  Crowd(&engine(), 3 * kExtentBytes);
  EXPECT_EQ(Runs(*engine().Match(chain)), "dram 8");
  EXPECT_EQ(engine().Recall(chain, {.first = 0, .count = 8}), Recalled{.right = 8});
}

TEST_P(CacheBehaviour, APinThatIsTakenAwayKeepsNothing) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 8);
  ASSERT_EQ(engine().Store(chain), 8u);
  EXPECT_EQ(engine().Pin(chain, 3600), 8u);
  EXPECT_EQ(engine().Pin(chain, 0), 8u);
  // Each round ages every block that was not used since; in the end the chain must go.
  EXPECT_TRUE(engine().Eventually([&] {
    Crowd(&engine(), kExtentBytes);
    return Runs(*engine().Match(chain)) != "dram 8";
  }));
}

TEST_P(CacheBehaviour, APinEndsByItself) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 8);
  ASSERT_EQ(engine().Store(chain), 8u);
  EXPECT_EQ(engine().Pin(chain, 1), 8u);
  EXPECT_TRUE(engine().Eventually([&] {
    Crowd(&engine(), kExtentBytes);
    return Runs(*engine().Match(chain)) != "dram 8";
  }));
}

TEST_P(CacheBehaviour, AMemoryFullOfPinsRefusesTheNextBlock) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  std::vector<Chain> pinned;
  Refusal refusal = Refusal::kNone;
  while (pinned.size() < 100) {
    const Chain chain = MakeChain(100 + pinned.size(), 1);
    const auto reserve = engine().Reserve(chain);
    if (reserve->ops[0].outcome != ReserveOutcome::kSlot) {
      refusal = reserve->ops[0].refusal;
      break;
    }
    engine().FillAndCommit(chain, {}, *reserve);
    ASSERT_EQ(engine().Pin(chain, 3600), 1u);
    pinned.push_back(chain);
  }
  EXPECT_EQ(refusal, Refusal::kFull) << RefusalName(refusal);
  EXPECT_LE(pinned.size(), 64u);
  for (const Chain& chain : pinned) EXPECT_EQ(engine().Recall(chain), Recalled{.right = 1});
}

// --- Prestaging --------------------------------------------------------------------------------

TEST_P(CacheBehaviour, PrestagingBringsAChainToMemory) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  Start(LayoutOfBytes(256 << 10));
  const Chain chain = MakeChain(1, 24);
  ASSERT_EQ(engine().Store(chain, {.first = 0, .count = 20}), 20u);
  ASSERT_TRUE(engine().Flush().ok());
  Restart();
  ASSERT_EQ(Runs(*engine().Match(chain)), "nvme 20");

  const auto prestage = engine().Prestage(chain);
  EXPECT_TRUE(prestage->status.ok());
  EXPECT_EQ(prestage->found, 20u);
  EXPECT_EQ(prestage->staged, 20u);
  EXPECT_EQ(Runs(*engine().Match(chain)), "dram 20");
  EXPECT_EQ(engine().Recall(chain, {.first = 0, .count = 20}), Recalled{.right = 20});
}

TEST_P(CacheBehaviour, PrestagingBringsASessionToMemory) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 12);
  ASSERT_EQ(engine().Store(chain), 12u);
  ASSERT_TRUE(engine().Flush().ok());
  engine().NameSession("conversation", chain);
  EXPECT_TRUE(engine().Eventually([&] {
    Crowd(&engine(), kExtentBytes);
    return Runs(*engine().Match(chain)) != "dram 12";
  }));

  const auto prestage = engine().PrestageSession("conversation");
  EXPECT_TRUE(prestage->status.ok());
  EXPECT_EQ(prestage->found, 12u);
  EXPECT_EQ(prestage->staged, 12u);
  EXPECT_EQ(Runs(*engine().Match(chain)), "dram 12");
}

TEST_P(CacheBehaviour, PrestagingPresentOrUnknownBlocksDoesNothing) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  const auto there = engine().Prestage(chain);
  EXPECT_EQ(there->found, 4u);
  EXPECT_EQ(there->staged, 4u);
  const auto unknown = engine().Prestage(MakeChain(2, 4));
  EXPECT_TRUE(unknown->status.ok());
  EXPECT_EQ(unknown->found, 0u);
  EXPECT_EQ(unknown->staged, 0u);
  EXPECT_EQ(engine().PrestageSession("nobody")->found, 0u);
}

// --- Deletion ----------------------------------------------------------------------------------

TEST_P(CacheBehaviour, EvictedBlocksAreGoneFromEveryTier) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 10);
  ASSERT_EQ(engine().Store(chain), 10u);
  if (has_nvme()) {
    ASSERT_TRUE(engine().Flush().ok());
  }

  const auto evict = engine().Evict(chain, {.first = 6, .count = 4});
  EXPECT_TRUE(evict->status.ok());
  EXPECT_EQ(evict->evicted, 4u);
  EXPECT_EQ(engine().Matched(chain), 6u);
  EXPECT_EQ(engine().Recall(chain), (Recalled{.right = 6, .missed = 4}));
  EXPECT_EQ(engine().Evict(chain, {.first = 6, .count = 4})->evicted, 0u);

  EXPECT_EQ(engine().Store(chain), 10u);  // Deleted is not forbidden.
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 10});
}

TEST_P(CacheBehaviour, EvictingASessionDeletesItsWholeChainAndNoOther) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 6);
  const Chain other = MakeChain(2, 6);
  ASSERT_EQ(engine().Store(chain), 6u);
  ASSERT_EQ(engine().Store(other), 6u);
  engine().NameSession("first", chain);
  engine().NameSession("second", other);

  const auto evict = engine().EvictSession("first");
  EXPECT_TRUE(evict->status.ok());
  EXPECT_EQ(evict->evicted, 6u);
  EXPECT_EQ(engine().Recall(chain), Recalled{.missed = 6});
  EXPECT_EQ(engine().Recall(other), Recalled{.right = 6});
  EXPECT_EQ(engine().EvictSession("first")->evicted, 0u);
  EXPECT_EQ(engine().EvictSession("nobody")->evicted, 0u);
}

TEST_P(CacheBehaviour, EvictingEverythingDeletesTheTenantsBlocksAndNoOthers) {
  Start(LayoutOfBytes(64 << 10));
  auto joined = Join({.tenant = "other", .engine = ""});
  TestEngine other(joined.get(), layout());
  const Chain mine = MakeChain(1, 8);
  const Chain more = MakeChain(2, 8);
  const Chain theirs(layout(), {.seed = 1, .blocks = 8, .tenant = "other"});
  ASSERT_EQ(engine().Store(mine), 8u);
  ASSERT_EQ(engine().Store(more), 8u);
  ASSERT_EQ(other.Store(theirs), 8u);

  const auto evict = engine().EvictEverything();
  EXPECT_TRUE(evict->status.ok());
  EXPECT_EQ(evict->evicted, 16u);
  EXPECT_EQ(engine().Recall(mine), Recalled{.missed = 8});
  EXPECT_EQ(engine().Recall(more), Recalled{.missed = 8});
  EXPECT_EQ(other.Recall(theirs), Recalled{.right = 8});
}

TEST_P(CacheBehaviour, DeletionsSurviveAReopen) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  Start(LayoutOfBytes(64 << 10));
  const Chain by_keys = MakeChain(1, 10);
  const Chain by_session = MakeChain(2, 10);
  const Chain kept = MakeChain(3, 10);
  for (const Chain* chain : {&by_keys, &by_session, &kept}) {
    ASSERT_EQ(engine().Store(*chain), 10u);
  }
  engine().NameSession("gone", by_session);
  ASSERT_TRUE(engine().Flush().ok());
  ASSERT_EQ(engine().Evict(by_keys, {.first = 5, .count = 5})->evicted, 5u);
  ASSERT_EQ(engine().EvictSession("gone")->evicted, 10u);

  for (int round = 0; round < 2; ++round) {
    Restart();
    EXPECT_EQ(engine().Recall(by_keys), (Recalled{.right = 5, .missed = 5}));
    EXPECT_EQ(engine().Recall(by_session), Recalled{.missed = 10});
    EXPECT_EQ(engine().Recall(kept), Recalled{.right = 10});
  }
}

TEST_P(CacheBehaviour, ABlockStoredAgainAfterItsDeletionSurvivesAReopen) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  ASSERT_TRUE(engine().Flush().ok());
  ASSERT_EQ(engine().EvictEverything()->evicted, 4u);
  ASSERT_EQ(engine().Store(chain), 4u);
  ASSERT_TRUE(engine().Flush().ok());
  Restart();
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

// --- Expiry ------------------------------------------------------------------------------------

TEST_P(CacheBehaviour, ATenantsBlocksExpireByItsRule) {
  CacheOptions options = Options();
  options.tenants = {{.name = "brief", .ttl_seconds = 1}};
  Start(LayoutOfBytes(64 << 10), options);
  auto joined = Join({.tenant = "brief", .engine = ""});
  TestEngine brief(joined.get(), layout());
  const Chain theirs(layout(), {.seed = 1, .blocks = 4, .tenant = "brief"});
  const Chain mine = MakeChain(1, 4);
  ASSERT_EQ(brief.Store(theirs), 4u);
  ASSERT_EQ(engine().Store(mine), 4u);

  EXPECT_TRUE(brief.Eventually([&] { return brief.Matched(theirs) == 0; }));
  EXPECT_EQ(brief.Recall(theirs), Recalled{.missed = 4});
  EXPECT_EQ(engine().Recall(mine), Recalled{.right = 4});
  EXPECT_TRUE(brief.Eventually([&] { return brief.StatsOf(TierKind::kDram).tenant_bytes == 0; }));
}

TEST_P(CacheBehaviour, ASessionsBlocksExpireByItsHint) {
  Start(LayoutOfBytes(64 << 10));
  const Chain brief = MakeChain(1, 4);
  const Chain other = MakeChain(2, 4);
  ASSERT_EQ(engine().Store(brief), 4u);
  ASSERT_EQ(engine().Store(other), 4u);
  engine().NameSession("brief", brief, 1);
  EXPECT_TRUE(engine().Eventually([&] { return engine().Matched(brief) == 0; }));
  EXPECT_EQ(engine().Recall(brief), Recalled{.missed = 4});
  EXPECT_EQ(engine().Recall(other), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, ExpirySurvivesAReopen) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  CacheOptions options = Options();
  options.tenants = {{.name = "local", .ttl_seconds = 2}};
  Start(LayoutOfBytes(64 << 10), options);
  auto joined = Join({.tenant = "other", .engine = ""});
  std::optional<TestEngine> other(std::in_place, joined.get(), layout());
  const Chain brief = MakeChain(1, 4);
  const Chain kept(layout(), {.seed = 1, .blocks = 4, .tenant = "other"});
  ASSERT_EQ(engine().Store(brief), 4u);
  ASSERT_EQ(other->Store(kept), 4u);
  ASSERT_TRUE(other->Flush().ok());
  static_cast<void>(engine().Flush());
  other.reset();
  joined.reset();

  // The options no longer have the rule; the blocks carry their own expiry.
  Restart(Options());
  EXPECT_TRUE(engine().Eventually([&] { return engine().Matched(brief) == 0; }));
  EXPECT_EQ(engine().Recall(brief), Recalled{.missed = 4});
  joined = Join({.tenant = "other", .engine = ""});
  other.emplace(joined.get(), layout());
  EXPECT_EQ(other->Recall(kept), Recalled{.right = 4});
}

// --- Flush and drain ---------------------------------------------------------------------------

TEST_P(CacheBehaviour, FlushedBlocksAreFoundAfterAReopen) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 100);
  const Chain fork = chain.Fork(50, 2, 50);
  ASSERT_EQ(engine().Store(chain), 100u);
  ASSERT_EQ(engine().Store(fork), 100u);
  EXPECT_EQ(engine().Flush().ToString(), Status().ToString());
  for (int round = 0; round < 2; ++round) {
    Restart();
    EXPECT_EQ(engine().StatsOf(TierKind::kNvme).blocks, 150u);
    EXPECT_EQ(engine().Matched(chain), 100u);
    EXPECT_EQ(engine().Matched(fork), 100u);
    EXPECT_EQ(engine().Recall(chain), Recalled{.right = 100});
    EXPECT_EQ(engine().Recall(fork), Recalled{.right = 100});
  }
}

TEST_P(CacheBehaviour, AFlushToATierThatIsNotThereSaysSo) {
  Start(LayoutOfBytes(64 << 10));
  ASSERT_EQ(engine().Store(MakeChain(1, 2)), 2u);
  FlushRequest flush;
  flush.tier = has_nvme() ? TierKind::kDurable : TierKind::kNvme;
  cache()->Flush(&flush);
  engine().Finish(flush);
  EXPECT_FALSE(flush.status.ok());
  EXPECT_FALSE(flush.status.message().empty());
  EXPECT_EQ(engine().Recall(MakeChain(1, 2)), Recalled{.right = 2});
}

TEST_P(CacheBehaviour, ADrainedCacheTakesNothingNewAndLeavesNothingUnsafe) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 20);
  ASSERT_EQ(engine().Store(chain), 20u);
  const auto drain = engine().Drain();
  EXPECT_EQ(drain->status.ok(), has_nvme()) << drain->status.ToString();
  EXPECT_EQ(drain->left, has_nvme() ? 0u : 20u);

  const auto reserve = engine().Reserve(MakeChain(2, 2));
  ASSERT_EQ(reserve->ops.size(), 2u);
  for (const ReserveOp& op : reserve->ops) {
    EXPECT_EQ(op.outcome, ReserveOutcome::kRefused);
    EXPECT_EQ(op.refusal, Refusal::kDraining);
  }
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 20});  // The cache still serves.
  if (has_nvme()) {
    Restart();
    EXPECT_EQ(engine().Recall(chain), Recalled{.right = 20});
    EXPECT_EQ(engine().Store(MakeChain(2, 2)), 2u);
  }
}

// --- What pays ---------------------------------------------------------------------------------

void Report(TestEngine* engine, double milliseconds_per_token) {
  for (const uint32_t tokens : {256u, 512u, 1024u, 2048u, 4096u, 8192u}) {
    engine->cache()->ReportPrefill({.layout = engine->handle(),
                                    .tokens = tokens,
                                    .context_tokens = 0,
                                    .milliseconds = milliseconds_per_token * tokens});
  }
}

TEST_P(CacheBehaviour, LoadingPaysWhenRecomputingIsSlow) {
  Start(LayoutOfBytes(256 << 10));
  const Chain chain = MakeChain(1, 20);
  ASSERT_EQ(engine().Store(chain), 20u);
  EXPECT_EQ(engine().Match(chain)->pays, 20u);  // Nothing was reported: loading always pays.
  EXPECT_EQ(engine().Match(chain)->recompute_ms, 0);
  if (has_nvme()) {
    ASSERT_TRUE(engine().Flush().ok());
    Restart();
  }
  Report(&engine(), 50);
  const auto match = engine().Match(chain);
  EXPECT_EQ(match->matched, 20u);
  EXPECT_EQ(match->pays, 20u);
  EXPECT_GT(match->recompute_ms, match->load_ms);
}

TEST_P(CacheBehaviour, AMatchIsCutOffWhereRecomputingIsFaster) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier, and memory is always faster";
  Start(LayoutOfBytes(kMiB));
  const Chain chain = MakeChain(1, 20);
  ASSERT_EQ(engine().Store(chain), 20u);
  ASSERT_TRUE(engine().Flush().ok());
  Restart();
  Report(&engine(), 1e-6);
  const auto match = engine().Match(chain);
  EXPECT_EQ(match->matched, 20u);  // It is there all the same.
  EXPECT_EQ(match->pays, 0u);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 20});
}

TEST_P(CacheBehaviour, AnAssumedPrefillTimeServesUntilAnEngineReports) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier, and memory is always faster";
  CacheOptions options = Options();
  options.assumed_prefill_ms_per_token = 1e-6;
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 10);
  ASSERT_EQ(engine().Store(chain), 10u);
  ASSERT_TRUE(engine().Flush().ok());
  Restart();
  EXPECT_EQ(engine().Match(chain)->pays, 0u);
  Report(&engine(), 50);
  EXPECT_EQ(engine().Match(chain)->pays, 10u);
}

}  // namespace
}  // namespace aquifer
