// Tests limits: caps, eviction, quotas, and tenants that must not share by accident.
#include <optional>

#include "testing/behaviour/cache_behaviour.h"

namespace aquifer {
namespace {

// How many blocks from the front are in memory; checks that none is behind them.
size_t FrontInMemory(TestEngine* engine, const Chain& chain) {
  size_t front = 0;
  bool gap = false;
  for (size_t i = 0; i < chain.size(); ++i) {
    const auto match = engine->Match(chain, {.first = i, .count = 1});
    const bool in_memory = Runs(*match) == "dram 1";
    if (!in_memory) gap = true;
    if (in_memory && gap) ADD_FAILURE() << "block " << i << " outlived one before it";
    if (!gap) ++front;
  }
  return front;
}

// --- Caps --------------------------------------------------------------------------------------

TEST_P(CacheBehaviour, MemoryIsEvictedFromTheEndsOfChains) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain first = MakeChain(1, 40);
  const Chain second = MakeChain(2, 40);
  ASSERT_EQ(engine().Store(first), 40u);
  if (has_nvme()) {
    ASSERT_TRUE(engine().Flush().ok());
  }
  ASSERT_EQ(engine().StorePatiently(second), 40u);

  const size_t front_of_first = FrontInMemory(&engine(), first);
  const size_t front_of_second = FrontInMemory(&engine(), second);
  EXPECT_LT(front_of_first + front_of_second, 80u);
  EXPECT_GE(front_of_first + front_of_second, 56u);  // No more was evicted than needed.
  EXPECT_LE(engine().StatsOf(TierKind::kDram).used_bytes, kExtentBytes);
  if (has_nvme()) {
    EXPECT_EQ(engine().Matched(first), 40u);
    EXPECT_EQ(engine().Recall(first), Recalled{.right = 40});  // The tail comes from NVMe.
    EXPECT_EQ(engine().Recall(second).wrong, 0u);
  } else {
    EXPECT_EQ(engine().Matched(first), front_of_first);
    EXPECT_EQ(engine().Recall(first),
              (Recalled{.right = front_of_first, .missed = 40 - front_of_first}));
  }
}

TEST_P(CacheBehaviour, MoreDataThanMemoryIsServedFromNvme) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  std::vector<Chain> chains;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    chains.push_back(MakeChain(seed, 16));
    ASSERT_EQ(engine().StorePatiently(chains.back()), 16u);
    ASSERT_TRUE(engine().Flush().ok());
    EXPECT_LE(engine().StatsOf(TierKind::kDram).used_bytes, kExtentBytes);
  }
  for (int round = 0; round < 2; ++round) {
    for (const Chain& chain : chains) EXPECT_EQ(engine().Recall(chain), Recalled{.right = 16});
  }
  EXPECT_LE(engine().StatsOf(TierKind::kDram).used_bytes, kExtentBytes);
}

TEST_P(CacheBehaviour, NvmeNeverGrowsBeyondItsCap) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  options.nvme_bytes = 64 * kMiB;
  options.nvme_segment_bytes = 8 * kMiB;
  Start(LayoutOfBytes(kMiB), options);
  std::vector<Chain> chains;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    chains.push_back(MakeChain(seed, 8));
    EXPECT_EQ(engine().StorePatiently(chains.back()), 8u);
    const TierStats nvme = engine().StatsOf(TierKind::kNvme);
    EXPECT_LE(nvme.capacity_bytes, options.nvme_bytes);
    EXPECT_LE(nvme.used_bytes, nvme.capacity_bytes);
    EXPECT_LE(BytesOnDisk(), options.nvme_bytes);
  }
  // Three times the cap was stored. Some blocks may find no place.
  static_cast<void>(engine().Flush());
  EXPECT_LE(BytesOnDisk(), options.nvme_bytes);

  size_t right = 0;
  for (const Chain& chain : chains) {
    const Recalled recalled = engine().Recall(chain);
    EXPECT_EQ(recalled.right + recalled.missed, 8u) << recalled;
    right += recalled.right;
  }
  EXPECT_GE(right, 24u);  // The tier holds useful blocks, and is not empty for fear of the cap.
  Restart();
  for (const Chain& chain : chains) EXPECT_EQ(engine().Recall(chain).wrong, 0u);
  EXPECT_LE(BytesOnDisk(), options.nvme_bytes);
}

TEST_P(CacheBehaviour, SeveralDirectoriesAreOneTier) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  CacheOptions options = Options();
  options.nvme_directories.push_back(options.nvme_directories[0] + "-second");
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 40);
  ASSERT_EQ(engine().Store(chain), 40u);
  ASSERT_TRUE(engine().Flush().ok());
  Restart();
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 40});
  EXPECT_LE(BytesOnDisk(), options.nvme_bytes);
}

// --- Quotas ------------------------------------------------------------------------------------

TEST_P(CacheBehaviour, ATenantStaysBelowItsCeilingInMemory) {
  CacheOptions options = Options();
  options.dram_bytes = 3 * kExtentBytes;
  options.tenants = {{.name = "small", .dram_ceiling_bytes = kExtentBytes}};
  Start(LayoutOfBytes(kMiB), options);
  auto joined = Join({.tenant = "small", .engine = ""});
  TestEngine small(joined.get(), layout());
  for (int round = 0; round < 8; ++round) {
    Crowd(&small, 16 * kMiB, "small");
    // No other tenant has blocks. The slots in use, which no quota counts, are therefore all its
    // own.
    EXPECT_LE(small.StatsOf(TierKind::kDram).used_bytes, kExtentBytes);
  }
  EXPECT_GE(small.StatsOf(TierKind::kDram).tenant_bytes, kExtentBytes / 2);
}

TEST_P(CacheBehaviour, ATenantAtItsCeilingWithEverythingPinnedHearsOfItsQuota) {
  CacheOptions options = Options();
  options.dram_bytes = 3 * kExtentBytes;
  options.tenants = {{.name = "local", .dram_ceiling_bytes = kExtentBytes}};
  Start(LayoutOfBytes(kMiB), options);
  Refusal refusal = Refusal::kNone;
  for (uint64_t seed = 1; seed <= 100 && refusal == Refusal::kNone; ++seed) {
    const Chain chain = MakeChain(seed, 1);
    const auto reserve = engine().Reserve(chain);
    refusal = reserve->ops[0].refusal;
    engine().FillAndCommit(chain, {}, *reserve);
    engine().Pin(chain, 3600);
  }
  EXPECT_EQ(refusal, Refusal::kQuota) << RefusalName(refusal);
}

TEST_P(CacheBehaviour, ATenantsFloorIsNotEvictedForOthers) {
  CacheOptions options = Options();
  options.dram_bytes = 3 * kExtentBytes;
  options.tenants = {{.name = "safe", .dram_floor_bytes = kExtentBytes}};
  Start(LayoutOfBytes(kMiB), options);
  auto joined = Join({.tenant = "safe", .engine = ""});
  TestEngine safe(joined.get(), layout());
  const Chain chain(layout(), {.seed = 1, .blocks = 40, .tenant = "safe"});
  ASSERT_EQ(safe.Store(chain), 40u);
  EXPECT_GT(Crowd(&engine(), 6 * kExtentBytes), 100u);
  EXPECT_EQ(Runs(*safe.Match(chain)), "dram 40");
  EXPECT_EQ(safe.Recall(chain), Recalled{.right = 40});
}

TEST_P(CacheBehaviour, MemoryMovesToTheTenantThatUsesIt) {
  CacheOptions options = Options();
  options.dram_bytes = 3 * kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  Crowd(&engine(), 3 * kExtentBytes);
  auto joined = Join({.tenant = "other", .engine = ""});
  TestEngine other(joined.get(), layout());
  const Chain chain(layout(), {.seed = 1, .blocks = 40, .tenant = "other"});
  EXPECT_TRUE(other.Eventually([&] { return other.Store(chain) == 40; }));
  EXPECT_EQ(other.Recall(chain), Recalled{.right = 40});
  EXPECT_LE(engine().StatsOf(TierKind::kDram).used_bytes, options.dram_bytes);
}

TEST_P(CacheBehaviour, MemoryMovesToTheBlockSizeThatIsStored) {
  CacheOptions options = Options();
  Start(LayoutOfBytes(kMiB), options);
  Crowd(&engine(), 2 * kExtentBytes);
  TestEngine small(cache(), LayoutOfBytes(64 << 10));
  const Chain chain(small.layout(), {.seed = 1, .blocks = 100});
  EXPECT_TRUE(small.Eventually([&] { return small.Store(chain) == 100; }));
  EXPECT_EQ(small.Recall(chain), Recalled{.right = 100});
}

TEST_P(CacheBehaviour, ATenantStaysBelowItsCeilingOnNvme) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  CacheOptions options = Options();
  options.nvme_segment_bytes = 16 * kMiB;
  options.tenants = {{.name = "small", .nvme_ceiling_bytes = 64 * kMiB}};
  Start(LayoutOfBytes(kMiB), options);
  auto joined = Join({.tenant = "small", .engine = ""});
  TestEngine small(joined.get(), layout());
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const Chain chain(layout(), {.seed = seed, .blocks = 16, .tenant = "small"});
    small.Store(chain);
    // At the ceiling Flush() may report that not all blocks got there.
    static_cast<void>(small.Flush());
    // Bytes that the tier itself can count, whoever is charged for them: no other tenant has any.
    const TierStats nvme = small.StatsOf(TierKind::kNvme);
    EXPECT_LE(small.Counter("nvme_live_blocks") * kMiB, 64 * kMiB);
    EXPECT_LE(nvme.tenant_bytes, 64 * kMiB);
  }
  EXPECT_GT(small.Counter("nvme_live_blocks"), 0u);
}

TEST_P(CacheBehaviour, ATenantsFloorOnNvmeIsNotReclaimedForOthers) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  CacheOptions options = Options();
  options.nvme_bytes = 128 * kMiB;
  options.nvme_segment_bytes = 8 * kMiB;
  options.tenants = {{.name = "safe", .nvme_floor_bytes = 32 * kMiB}};
  Start(LayoutOfBytes(kMiB), options);
  auto joined = Join({.tenant = "safe", .engine = ""});
  std::optional<TestEngine> safe(std::in_place, joined.get(), layout());
  const Chain chain(layout(), {.seed = 1, .blocks = 16, .tenant = "safe"});
  ASSERT_EQ(safe->Store(chain), 16u);
  ASSERT_TRUE(safe->Flush().ok());
  Crowd(&engine(), 4 * options.nvme_bytes);
  static_cast<void>(engine().Flush());

  safe.reset();
  joined.reset();
  Restart();
  joined = Join({.tenant = "safe", .engine = ""});
  safe.emplace(joined.get(), layout());
  EXPECT_EQ(safe->Recall(chain), Recalled{.right = 16});
}

TEST_P(CacheBehaviour, AClientWithTooManyReservationsIsRefused) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 200);
  const auto reserve = engine().Reserve(chain);
  size_t slots = 0;
  std::vector<ReservationId> given;
  for (const ReserveOp& op : reserve->ops) {
    if (op.outcome == ReserveOutcome::kSlot) given.push_back(op.reservation);
    slots += op.outcome == ReserveOutcome::kSlot ? 1 : 0;
  }
  EXPECT_LE(slots, 64u);
  const Refusal last = reserve->ops.back().refusal;
  EXPECT_TRUE(last == Refusal::kFull || last == Refusal::kTooMany) << RefusalName(last);
  cache()->Abort(given);
  EXPECT_EQ(engine().Store(chain, {.first = 0, .count = 16}), 16u);
}

// --- Tenants -----------------------------------------------------------------------------------

TEST_P(CacheBehaviour, EqualTokensOfTwoTenantsHaveNothingInCommon) {
  Start(LayoutOfBytes(64 << 10));
  auto joined = Join({.tenant = "other", .engine = ""});
  TestEngine other(joined.get(), layout());
  const Chain mine = MakeChain(1, 4);
  const Chain theirs(layout(), {.seed = 1, .blocks = 4, .tenant = "other"});
  ASSERT_EQ(engine().Store(mine), 4u);
  EXPECT_NE(mine[0], theirs[0]);  // The root contains the tenant.
  EXPECT_EQ(other.Matched(theirs), 0u);
  EXPECT_EQ(other.Recall(theirs), Recalled{.missed = 4});
}

TEST_P(CacheBehaviour, TheVerySameKeyOfAnotherTenantIsAMiss) {
  Start(LayoutOfBytes(64 << 10));
  auto joined = Join({.tenant = "other", .engine = ""});
  TestEngine other(joined.get(), layout());
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  if (has_nvme()) {
    ASSERT_TRUE(engine().Flush().ok());
  }

  EXPECT_EQ(other.Matched(chain), 0u);
  EXPECT_EQ(other.Recall(chain), Recalled{.missed = 4});
  EXPECT_EQ(other.Evict(chain)->evicted, 0u);
  EXPECT_EQ(other.Pin(chain, 10), 0u);
  EXPECT_EQ(other.Prestage(chain)->found, 0u);
  // The answer to a store does not reveal either that another tenant has the block.
  const auto reserve = other.Reserve(chain);
  CommitRequest commit;
  for (const ReserveOp& op : reserve->ops) {
    ASSERT_EQ(op.outcome, ReserveOutcome::kSlot);
    std::fill(op.slot.begin(), op.slot.end(), std::byte{0x77});
    CommitOp& added = commit.ops.emplace_back();
    added.reservation = op.reservation;
    added.sums = SumLanes(op.slot, 0);
  }
  joined->Commit(&commit);
  other.Finish(commit);

  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
  const auto fetch = other.Fetch(chain);
  for (const FetchOp& op : fetch->ops) {
    ASSERT_TRUE(op.status.ok());
    EXPECT_EQ(op.bytes[0], std::byte{0x77});
  }
  other.Release(*fetch);
}

TEST_P(CacheBehaviour, TheSameSessionNameOfAnotherTenantIsAnotherSession) {
  Start(LayoutOfBytes(64 << 10));
  auto joined = Join({.tenant = "other", .engine = ""});
  TestEngine other(joined.get(), layout());
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  engine().NameSession("talk", chain);
  EXPECT_EQ(other.EvictSession("talk")->evicted, 0u);
  EXPECT_EQ(other.PrestageSession("talk")->found, 0u);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, AnotherCacheSaltIsAnotherChain) {
  Start(LayoutOfBytes(64 << 10));
  const Chain alice(layout(), {.seed = 1, .blocks = 4, .cache_salt = "alice"});
  const Chain bob(layout(), {.seed = 1, .blocks = 4, .cache_salt = "bob"});
  ASSERT_EQ(engine().Store(alice), 4u);
  EXPECT_EQ(engine().Recall(bob), Recalled{.missed = 4});
  EXPECT_EQ(engine().Recall(alice), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, ATenantsBytesAreItsOwnInTheStats) {
  Start(LayoutOfBytes(kMiB));
  auto joined = Join({.tenant = "other", .engine = ""});
  TestEngine other(joined.get(), layout());
  ASSERT_EQ(engine().Store(MakeChain(1, 10)), 10u);
  EXPECT_GE(engine().StatsOf(TierKind::kDram).tenant_bytes, 10 * kMiB);
  EXPECT_EQ(other.StatsOf(TierKind::kDram).tenant_bytes, 0u);
}

}  // namespace
}  // namespace aquifer
