// Tests store and recall: which blocks are matched, which are fetched, and how long they stay.
#include <algorithm>

#include "testing/behaviour/cache_behaviour.h"

namespace aquifer {
namespace {

// Typical sizes: the least, one that is no multiple of anything, and the largest.
constexpr uint64_t kSizes[] = {
    4096, 5000, uint64_t{64} << 10, uint64_t{1} << 20, uint64_t{8} << 20, uint64_t{64} << 20};

TEST_P(CacheBehaviour, BlocksOfEverySizeComeBackAsTheyWereStored) {
  for (const uint64_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    CacheOptions options = Options();
    options.dram_bytes = 4 * kExtentBytes;
    options.nvme_bytes = uint64_t{8} << 30;
    if (has_nvme()) options.nvme_directories[0] += std::to_string(bytes);
    Start(LayoutOfBytes(bytes), options);
    const size_t blocks = std::clamp<size_t>(8 * kMiB / bytes, 2, 40);
    const Chain chain = MakeChain(7, blocks);

    EXPECT_EQ(engine().Store(chain), blocks);
    EXPECT_EQ(engine().Matched(chain), blocks);
    EXPECT_EQ(engine().Recall(chain), Recalled{.right = blocks});

    if (has_nvme()) {
      EXPECT_EQ(engine().Flush().ToString(), Status().ToString());
      Restart();
      EXPECT_EQ(engine().Matched(chain), blocks);
      EXPECT_EQ(engine().Recall(chain), Recalled{.right = blocks});
    }
    Stop();
  }
}

TEST_P(CacheBehaviour, BlocksOfSeveralSizesLiveSideBySide) {
  CacheOptions options = Options();
  options.dram_bytes = 4 * kExtentBytes;
  Start(LayoutOfBytes(64 << 10), options);
  TestEngine small(cache(), LayoutOfBytes(4096));
  TestEngine large(cache(), LayoutOfBytes(kMiB));
  const Chain chain = MakeChain(1, 8);
  const Chain small_chain(small.layout(), {.seed = 1, .blocks = 8});
  const Chain large_chain(large.layout(), {.seed = 1, .blocks = 8});

  EXPECT_EQ(engine().Store(chain), 8u);
  EXPECT_EQ(small.Store(small_chain), 8u);
  EXPECT_EQ(large.Store(large_chain), 8u);

  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 8});
  EXPECT_EQ(small.Recall(small_chain), Recalled{.right = 8});
  EXPECT_EQ(large.Recall(large_chain), Recalled{.right = 8});
}

TEST_P(CacheBehaviour, EveryGroupOfALayoutHasBlocksOfItsOwn) {
  Start(LayoutOfBytes(64 << 10, 3));
  const Chain chain = MakeChain(1, 4);
  EXPECT_EQ(engine().Store(chain, {.group = 1}), 4u);

  EXPECT_EQ(engine().Matched(chain, {.group = 0}), 0u);
  EXPECT_EQ(engine().Matched(chain, {.group = 1}), 4u);
  EXPECT_EQ(engine().Matched(chain, {.group = 2}), 0u);
  EXPECT_EQ(engine().Recall(chain, {.group = 1}), Recalled{.right = 4});
  EXPECT_EQ(engine().Recall(chain, {.group = 0}), Recalled{.missed = 4});

  EXPECT_EQ(engine().Store(chain, {.group = 0}), 4u);
  EXPECT_EQ(engine().Recall(chain, {.group = 0}), Recalled{.right = 4});
  EXPECT_EQ(engine().Recall(chain, {.group = 1}), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, EveryPartOfABlockIsABlockOfItsOwn) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  EXPECT_EQ(engine().Store(chain, {.part = 1}), 4u);
  EXPECT_EQ(engine().Matched(chain, {.part = 0}), 0u);
  EXPECT_EQ(engine().Matched(chain, {.part = 1}), 4u);
  EXPECT_EQ(engine().Recall(chain, {.part = 1}), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, AnUnknownChainMatchesNothing) {
  Start(LayoutOfBytes(64 << 10));
  const auto match = engine().Match(MakeChain(1, 10));
  EXPECT_TRUE(match->status.ok());
  EXPECT_EQ(match->matched, 0u);
  EXPECT_EQ(match->pays, 0u);
  EXPECT_EQ(Runs(*match), "");
}

TEST_P(CacheBehaviour, AMatchEndsAtTheFirstHole) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 10);
  EXPECT_EQ(engine().Store(chain, {.first = 0, .count = 3}), 3u);
  EXPECT_EQ(engine().Store(chain, {.first = 4, .count = 6}), 6u);

  const auto match = engine().Match(chain);
  EXPECT_EQ(match->matched, 3u);
  EXPECT_EQ(Runs(*match), "dram 3");
  EXPECT_EQ(match->pays, 3u);

  EXPECT_EQ(engine().Store(chain, {.first = 3, .count = 1}), 1u);
  EXPECT_EQ(engine().Matched(chain), 10u);
}

TEST_P(CacheBehaviour, AMatchBeginsBehindTheBlocksThatTheEngineHas) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 10);
  engine().Store(chain, {.first = 0, .count = 3});
  engine().Store(chain, {.first = 4, .count = 6});

  EXPECT_EQ(engine().Match(chain, {}, 2)->matched, 1u);
  EXPECT_EQ(engine().Match(chain, {}, 3)->matched, 0u);
  EXPECT_EQ(engine().Match(chain, {}, 10)->matched, 0u);
  const auto match = engine().Match(chain, {}, 4);
  EXPECT_EQ(match->matched, 6u);
  ASSERT_EQ(match->runs.size(), 1u);
  EXPECT_EQ(match->runs[0].first, 4u);  // An index into the keys, not into the matched blocks.
  EXPECT_EQ(match->runs[0].count, 6u);
}

TEST_P(CacheBehaviour, ChainsShareTheirCommonPrefix) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 6);
  const Chain fork = chain.Fork(4, 2, 5);
  EXPECT_EQ(engine().Store(chain), 6u);
  EXPECT_EQ(engine().Matched(fork), 4u);

  const auto reserve = engine().Reserve(fork);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(reserve->ops[i].outcome, ReserveOutcome::kHave) << i;
  for (size_t i = 4; i < 9; ++i) EXPECT_EQ(reserve->ops[i].outcome, ReserveOutcome::kSlot) << i;
  engine().FillAndCommit(fork, {}, *reserve);
  EXPECT_EQ(engine().Recall(fork), Recalled{.right = 9});
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 6});
}

TEST_P(CacheBehaviour, SixtyFiveThousandKeysAreMatchedInOneRequest) {
  constexpr size_t kBlocks = 65'536;
  CacheOptions options = Options();
  options.dram_bytes = 5 * kExtentBytes;
  Start(LayoutOfBytes(4096), options);
  const Chain chain = MakeChain(1, kBlocks);
  EXPECT_EQ(engine().Matched(chain), 0u);
  EXPECT_EQ(engine().Store(chain), kBlocks);

  const auto match = engine().Match(chain);
  EXPECT_TRUE(match->status.ok());
  EXPECT_EQ(match->matched, kBlocks);
  EXPECT_EQ(engine().Match(chain, {}, kBlocks - 1)->matched, 1u);
  EXPECT_EQ(engine().Recall(chain, {.first = kBlocks - 100}), Recalled{.right = 100});
}

TEST_P(CacheBehaviour, AMissingBlockIsItsOwnFailureOnly) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 5);
  engine().Store(chain, {.first = 0, .count = 2});
  engine().Store(chain, {.first = 3, .count = 2});

  const auto fetch = engine().Fetch(chain);
  EXPECT_TRUE(fetch->status.ok());
  ASSERT_EQ(fetch->ops.size(), 5u);
  EXPECT_EQ(fetch->completed(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(fetch->ops[i].status.code(), i == 2 ? Code::kNotFound : Code::kOk) << i;
  }
  EXPECT_EQ(fetch->ops[2].lease, 0u);
  EXPECT_EQ(engine().CheckAndRelease(chain, {}, *fetch), (Recalled{.right = 4, .missed = 1}));
}

TEST_P(CacheBehaviour, AFetchAnswersInChainOrder) {
  Start(LayoutOfBytes(256 << 10));
  const Chain chain = MakeChain(1, 64);
  ASSERT_EQ(engine().Store(chain), 64u);
  if (has_nvme()) {
    ASSERT_TRUE(engine().Flush().ok());
    Restart();
  }

  FetchRequest fetch;
  fetch.chain = engine().Slice(chain);
  fetch.timeout_nanos = 30 * kDefaultTimeoutNanos;
  cache()->Fetch(&fetch);
  size_t seen = 0;
  EXPECT_TRUE(engine().Eventually([&] {
    cache()->Poll();
    EXPECT_GE(fetch.completed(), seen);
    for (; seen < fetch.completed(); ++seen) {
      // The first completed() answers can be used at once, whatever the rest does.
      EXPECT_TRUE(fetch.ops[seen].status.ok()) << seen << fetch.ops[seen].status.ToString();
      EXPECT_TRUE(IsPayload(chain[seen], 0, fetch.ops[seen].bytes)) << seen;
    }
    return fetch.done();
  }));
  EXPECT_EQ(seen, 64u);
  engine().Release(fetch);
}

TEST_P(CacheBehaviour, AFetchOfManyBlocksUnderOneKeyLendsEach) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 1);
  engine().Store(chain);
  const std::vector<Key> same(8, chain[0]);
  FetchRequest fetch;
  fetch.chain = engine().Slice(chain);
  fetch.chain.keys = same;
  cache()->Fetch(&fetch);
  engine().Finish(fetch);
  ASSERT_EQ(fetch.ops.size(), 8u);
  for (const FetchOp& op : fetch.ops) {
    ASSERT_TRUE(op.status.ok());
    EXPECT_TRUE(IsPayload(chain[0], 0, op.bytes));
  }
  engine().Release(fetch);
}

TEST_P(CacheBehaviour, ALeaseKeepsTheBytesOfAnEvictedBlock) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 8);
  ASSERT_EQ(engine().Store(chain), 8u);
  const auto fetch = engine().Fetch(chain);

  const auto evict = engine().Evict(chain);
  EXPECT_TRUE(evict->status.ok());
  EXPECT_EQ(evict->evicted, 8u);
  EXPECT_EQ(engine().Matched(chain), 0u);
  // A client that takes memory now must not take that of the fetch.
  Crowd(&engine(), 2 * kExtentBytes);

  EXPECT_EQ(engine().CheckAndRelease(chain, {}, *fetch), Recalled{.right = 8});
  EXPECT_EQ(engine().Recall(chain), Recalled{.missed = 8});
}

TEST_P(CacheBehaviour, ALeaseKeepsABlockInMemoryUnderPressure) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfBytes(kMiB), options);
  const Chain chain = MakeChain(1, 8);
  ASSERT_EQ(engine().Store(chain), 8u);
  const auto fetch = engine().Fetch(chain);
  Crowd(&engine(), 3 * kExtentBytes);

  EXPECT_EQ(Runs(*engine().Match(chain)), "dram 8");
  EXPECT_EQ(engine().CheckAndRelease(chain, {}, *fetch), Recalled{.right = 8});
}

TEST_P(CacheBehaviour, ABlockThatItsReaderFoundCorruptIsDroppedAndCounted) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  const auto fetch = engine().Fetch(chain, {.first = 1, .count = 1});
  ASSERT_TRUE(fetch->ops[0].status.ok());
  const uint64_t before = engine().Counter("corrupt_blocks");

  const ReleaseOp release{.lease = fetch->ops[0].lease, .corrupt = true};
  cache()->Release({&release, 1});

  EXPECT_EQ(engine().Matched(chain), 1u);
  EXPECT_EQ(engine().Counter("corrupt_blocks"), before + 1);
  EXPECT_EQ(engine().Recall(chain, {.first = 0, .count = 1}), Recalled{.right = 1});
  EXPECT_EQ(engine().Recall(chain, {.first = 1, .count = 1}), Recalled{.missed = 1});
  EXPECT_EQ(engine().Recall(chain).wrong, 0u);  // Blocks below it may be gone as well.
  EXPECT_TRUE(engine().Eventually([&] { return engine().Store(chain) == 4; }));  // Again.
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, AFetchPastItsDeadlineIsAnsweredAndTheBlockIsNotLost) {
  Start(LayoutOfBytes(kMiB));
  const Chain chain = MakeChain(1, 16);
  ASSERT_EQ(engine().Store(chain), 16u);
  if (has_nvme()) {
    ASSERT_TRUE(engine().Flush().ok());
    Restart();
  }
  // A nanosecond after the call is over before any thread has seen the request.
  const auto fetch = engine().Fetch(chain, {}, 1);
  EXPECT_EQ(fetch->completed(), 16u);
  EXPECT_EQ(engine().CheckAndRelease(chain, {}, *fetch), Recalled{.late = 16});
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 16});
}

TEST_P(CacheBehaviour, ACancelledFetchIsAnsweredAndTheBlocksAreNotLost) {
  Start(LayoutOfBytes(kMiB));
  const Chain chain = MakeChain(1, 32);
  ASSERT_EQ(engine().Store(chain), 32u);
  if (has_nvme()) {
    ASSERT_TRUE(engine().Flush().ok());
    Restart();
  }
  FetchRequest fetch;
  fetch.chain = engine().Slice(chain);
  fetch.timeout_nanos = 60 * kDefaultTimeoutNanos;
  cache()->Fetch(&fetch);
  cache()->Cancel(&fetch);
  engine().Finish(fetch);
  EXPECT_EQ(fetch.completed(), 32u);
  const Recalled cancelled = engine().CheckAndRelease(chain, {}, fetch);
  EXPECT_EQ(cancelled.right + cancelled.late, 32u) << cancelled;

  cache()->Cancel(&fetch);  // The request is done: nothing happens.
  EXPECT_TRUE(fetch.done());
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 32});
}

TEST_P(CacheBehaviour, ABlockOnNvmeIsFetchedFromThereAndThenFromMemory) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  Start(LayoutOfBytes(256 << 10));
  const Chain chain = MakeChain(1, 20);
  ASSERT_EQ(engine().Store(chain), 20u);
  ASSERT_TRUE(engine().Flush().ok());
  Restart();

  const auto match = engine().Match(chain);
  EXPECT_EQ(Runs(*match), "nvme 20");
  EXPECT_GT(match->runs[0].estimated_ms, 0);
  const auto fetch = engine().Fetch(chain);
  for (const FetchOp& op : fetch->ops) EXPECT_EQ(op.tier, TierKind::kNvme);
  EXPECT_EQ(engine().CheckAndRelease(chain, {}, *fetch), Recalled{.right = 20});

  EXPECT_EQ(Runs(*engine().Match(chain)), "dram 20");
  const auto again = engine().Fetch(chain);
  for (const FetchOp& op : again->ops) EXPECT_EQ(op.tier, TierKind::kDram);
  EXPECT_EQ(engine().CheckAndRelease(chain, {}, *again), Recalled{.right = 20});
}

TEST_P(CacheBehaviour, TwoFetchesOfTheSameBlocksFromNvmeAreBothAnswered) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  Start(LayoutOfBytes(256 << 10));
  const Chain chain = MakeChain(1, 20);
  ASSERT_EQ(engine().Store(chain), 20u);
  ASSERT_TRUE(engine().Flush().ok());
  Restart();

  FetchRequest first;
  FetchRequest second;
  for (FetchRequest* fetch : {&first, &second}) {
    fetch->chain = engine().Slice(chain);
    fetch->timeout_nanos = 30 * kDefaultTimeoutNanos;
    cache()->Fetch(fetch);
  }
  engine().Finish(first);
  engine().Finish(second);
  EXPECT_EQ(engine().CheckAndRelease(chain, {}, first), Recalled{.right = 20});
  EXPECT_EQ(engine().CheckAndRelease(chain, {}, second), Recalled{.right = 20});
}

}  // namespace
}  // namespace aquifer
