// Tests Reserve, Commit and Abort: which blocks become visible, when, and to which client; ranks
// that share a slot.
#include <optional>
#include <tuple>

#include "testing/behaviour/cache_behaviour.h"

namespace aquifer {
namespace {

TEST_P(CacheBehaviour, NothingIsVisibleBeforeItsCommit) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  const auto reserve = engine().Reserve(chain);
  ASSERT_EQ(reserve->ops.size(), 4u);
  for (const ReserveOp& op : reserve->ops) ASSERT_EQ(op.outcome, ReserveOutcome::kSlot);
  EXPECT_EQ(engine().Matched(chain), 0u);
  EXPECT_EQ(engine().Recall(chain), Recalled{.missed = 4});

  const auto commit = engine().FillAndCommit(chain, {}, *reserve);
  for (const CommitOp& op : commit->ops) {
    EXPECT_TRUE(op.status.ok());
    EXPECT_TRUE(op.published);
  }
  EXPECT_EQ(engine().Matched(chain), 4u);
}

TEST_P(CacheBehaviour, AnAbortLeavesNothing) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  const auto reserve = engine().Reserve(chain);
  std::vector<ReservationId> given;
  for (const ReserveOp& op : reserve->ops) {
    ASSERT_EQ(op.outcome, ReserveOutcome::kSlot);
    FillPayload(chain[0], 0, op.slot);
    given.push_back(op.reservation);
  }
  cache()->Abort(given);

  EXPECT_EQ(engine().Matched(chain), 0u);
  EXPECT_EQ(Runs(*engine().Match(chain)), "");
  const auto commit = engine().FillAndCommit(chain, {}, *reserve);
  for (const CommitOp& op : commit->ops) EXPECT_EQ(op.status.code(), Code::kInvalid);
  EXPECT_EQ(engine().Matched(chain), 0u);
  EXPECT_EQ(engine().Store(chain), 4u);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 4});
}

TEST_P(CacheBehaviour, AStoredBlockIsNotStoredAgain) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 6);
  engine().Store(chain, {.first = 0, .count = 4});
  const auto reserve = engine().Reserve(chain);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(reserve->ops[i].outcome, i < 4 ? ReserveOutcome::kHave : ReserveOutcome::kSlot) << i;
  }
  engine().FillAndCommit(chain, {}, *reserve);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 6});
}

TEST_P(CacheBehaviour, ABlockOnNvmeAloneIsNotStoredAgain) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 4);
  ASSERT_EQ(engine().Store(chain), 4u);
  ASSERT_TRUE(engine().Flush().ok());
  Restart();
  const auto reserve = engine().Reserve(chain);
  ASSERT_EQ(reserve->ops.size(), 4u);
  for (const ReserveOp& op : reserve->ops) EXPECT_EQ(op.outcome, ReserveOutcome::kHave);
}

TEST_P(CacheBehaviour, AnotherEngineHearsThatABlockIsBeingFilled) {
  Start(LayoutOfBytes(64 << 10), Options(), {.tenant = "local", .engine = "first"});
  const Chain chain = MakeChain(1, 3);
  const auto reserve = engine().Reserve(chain);
  auto other = Join({.tenant = "local", .engine = "second"});
  TestEngine second(other.get(), layout());

  const auto refused = second.Reserve(chain);
  ASSERT_EQ(refused->ops.size(), 3u);
  for (const ReserveOp& op : refused->ops) {
    EXPECT_EQ(op.outcome, ReserveOutcome::kBeingFilled);
    EXPECT_GT(op.wait_ms, 0);
  }
  const auto match = second.Match(chain);
  EXPECT_EQ(match->matched, 0u);
  ASSERT_EQ(match->runs.size(), 1u);
  EXPECT_EQ(match->runs[0].state, RunState::kBeingFilled);
  EXPECT_EQ(match->runs[0].first, 0u);
  EXPECT_GT(match->runs[0].estimated_ms, 0);

  engine().FillAndCommit(chain, {}, *reserve);
  EXPECT_EQ(Runs(*second.Match(chain)), "dram 3");
  EXPECT_EQ(second.Recall(chain), Recalled{.right = 3});
  const auto had = second.Reserve(chain);
  for (const ReserveOp& op : had->ops) EXPECT_EQ(op.outcome, ReserveOutcome::kHave);
}

TEST_P(CacheBehaviour, AMatchReportsBlocksBeingFilledBehindReadyOnes) {
  Start(LayoutOfBytes(64 << 10), Options(), {.tenant = "local", .engine = "first"});
  const Chain chain = MakeChain(1, 7);
  engine().Store(chain, {.first = 0, .count = 2});
  const auto reserve = engine().Reserve(chain, {.first = 2, .count = 3});
  auto other = Join({.tenant = "local", .engine = "second"});
  TestEngine second(other.get(), layout());

  const auto match = second.Match(chain);
  EXPECT_EQ(match->matched, 2u);
  EXPECT_EQ(match->pays, 2u);
  ASSERT_EQ(match->runs.size(), 2u);
  EXPECT_EQ(match->runs[1].state, RunState::kBeingFilled);
  EXPECT_EQ(match->runs[1].first, 2u);
}

TEST_P(CacheBehaviour, AnotherEngineMayFillABlockThatTheFirstOneAborted) {
  Start(LayoutOfBytes(64 << 10), Options(), {.tenant = "local", .engine = "first"});
  const Chain chain = MakeChain(1, 1);
  const auto reserve = engine().Reserve(chain);
  auto other = Join({.tenant = "local", .engine = "second"});
  TestEngine second(other.get(), layout());
  cache()->Abort({&reserve->ops[0].reservation, 1});
  engine().Stats();  // When this request is answered, the abort has arrived.

  EXPECT_EQ(second.Store(chain), 1u);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 1});
}

TEST_P(CacheBehaviour, ACommitOfOneUnknownReservationIsItsOwnFailureOnly) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 2);
  const auto reserve = engine().Reserve(chain);
  CommitRequest commit;
  commit.ops.resize(4);
  for (size_t i = 0; i < 2; ++i) {
    FillPayload(chain[i], 0, reserve->ops[i].slot);
    commit.ops[2 * i].reservation = reserve->ops[i].reservation;
    commit.ops[2 * i].sums = SumLanes(reserve->ops[i].slot, 0);
  }
  commit.ops[1].reservation = 0;
  commit.ops[3].reservation = 0xDEAD'BEEF'0000;
  cache()->Commit(&commit);
  engine().Finish(commit);

  EXPECT_TRUE(commit.status.ok());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(commit.ops[i].status.code(), i % 2 == 0 ? Code::kOk : Code::kInvalid) << i;
    EXPECT_EQ(commit.ops[i].published, i % 2 == 0) << i;
  }
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 2});
}

TEST_P(CacheBehaviour, AReservationIsCommittedOnce) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 1);
  const auto reserve = engine().Reserve(chain);
  EXPECT_TRUE(engine().FillAndCommit(chain, {}, *reserve)->ops[0].published);
  const auto fetch = engine().Fetch(chain);

  CommitRequest again;
  again.ops.resize(1);
  again.ops[0].reservation = reserve->ops[0].reservation;
  cache()->Commit(&again);
  engine().Finish(again);
  EXPECT_EQ(again.ops[0].status.code(), Code::kInvalid);
  // The block is published: there is nothing to abort.
  cache()->Abort({&reserve->ops[0].reservation, 1});

  EXPECT_EQ(engine().CheckAndRelease(chain, {}, *fetch), Recalled{.right = 1});
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 1});
}

TEST_P(CacheBehaviour, ABlockWhoseSumsWereWrongIsNeverServedFromNvme) {
  if (!has_nvme()) GTEST_SKIP() << "there is no NVMe tier";
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 3);
  const auto reserve = engine().Reserve(chain);
  CommitRequest commit;
  for (size_t i = 0; i < 3; ++i) {
    FillPayload(chain[i], 0, reserve->ops[i].slot);
    CommitOp& op = commit.ops.emplace_back();
    op.reservation = reserve->ops[i].reservation;
    op.sums = SumLanes(reserve->ops[i].slot, 0);
    if (i == 1) op.sums.a ^= 1;
  }
  cache()->Commit(&commit);
  engine().Finish(commit);
  static_cast<void>(engine().Flush());  // Flush() may report the block that was not worth keeping.
  Restart();

  const auto fetch = engine().Fetch(chain, {.first = 1, .count = 1});
  EXPECT_FALSE(fetch->ops[0].status.ok());
  engine().Release(*fetch);
  EXPECT_EQ(engine().Recall(chain, {.first = 0, .count = 1}), Recalled{.right = 1});
  EXPECT_EQ(engine().Recall(chain, {.first = 2, .count = 1}).wrong, 0u);
}

TEST_P(CacheBehaviour, AKeyTwiceInOneRequestIsOneBlock) {
  Start(LayoutOfBytes(64 << 10));
  ASSERT_EQ(engine().Store(MakeChain(2, 1)), 1u);  // Memory is there.
  const Chain chain = MakeChain(1, 1);
  const std::vector<Key> twice(2, chain[0]);
  ReserveRequest reserve;
  reserve.chain = engine().Slice(chain);
  reserve.chain.keys = twice;
  reserve.parent = chain.parent(0);
  cache()->Reserve(&reserve);
  engine().Finish(reserve);
  ASSERT_EQ(reserve.ops.size(), 2u);
  CommitRequest commit;
  for (const ReserveOp& op : reserve.ops) {
    ASSERT_EQ(op.outcome, ReserveOutcome::kSlot) << RefusalName(op.refusal);
    FillPayload(chain[0], 0, op.slot);
    CommitOp& added = commit.ops.emplace_back();
    added.reservation = op.reservation;
    added.sums = SumLanes(op.slot, 0);
  }
  cache()->Commit(&commit);
  engine().Finish(commit);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 1});
  EXPECT_EQ(engine().StatsOf(TierKind::kDram).blocks, 2u);
}

TEST_P(CacheBehaviour, AParentThatDoesNotFitHarmsNothing) {
  Start(LayoutOfBytes(64 << 10));
  const Chain chain = MakeChain(1, 6);
  ASSERT_EQ(engine().Store(chain, {.first = 0, .count = 4}), 4u);
  // Three false claims: a block that follows the first one but says it is far down; one that is its
  // own parent; one whose parent comes after it.
  const std::tuple<Key, Key, uint32_t> claims[] = {
      {chain[4], chain[0], 40}, {chain[5], chain[5], 5}, {chain[0], chain[3], 9}};
  for (const auto& [key, parent, position] : claims) {
    ReserveRequest reserve;
    reserve.chain = engine().Slice(chain);
    reserve.chain.keys = {&key, 1};
    reserve.parent = parent;
    reserve.position = position;
    cache()->Reserve(&reserve);
    engine().Finish(reserve);
    if (reserve.status.ok() && reserve.ops[0].outcome == ReserveOutcome::kSlot) {
      cache()->Abort({&reserve.ops[0].reservation, 1});
    }
  }
  EXPECT_EQ(engine().Recall(chain, {.first = 0, .count = 4}), Recalled{.right = 4});
  EXPECT_EQ(engine().Store(chain), 6u);
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 6});
}

TEST_P(CacheBehaviour, AReservationThatIsHeldTooLongIsVoid) {
  CacheOptions options = Options();
  options.overdue_nanos = 100'000'000;
  Start(LayoutOfBytes(64 << 10), options, {.tenant = "local", .engine = "hangs"});
  const Chain chain = MakeChain(1, 1);
  const auto reserve = engine().Reserve(chain);
  auto joined = Join({.tenant = "local", .engine = "waits"});
  TestEngine waits(joined.get(), layout());
  // The other client need not wait for ever.
  EXPECT_TRUE(waits.Eventually([&] { return waits.Store(chain) == 1; }));
  // The late client may still write: no other block has that slot.
  const auto late = engine().FillAndCommit(chain, {}, *reserve);
  EXPECT_FALSE(late->ops[0].status.ok());
  EXPECT_FALSE(late->ops[0].published);
  EXPECT_EQ(waits.Recall(chain), Recalled{.right = 1});
  EXPECT_GE(waits.Counter("overdue_reservations"), 1u);
}

// --- Ranks -------------------------------------------------------------------------------------

// One rank of an engine: a client that writes and commits its own heads.
class Rank {
 public:
  Rank(std::unique_ptr<Cache> cache, const Layout& layout)
      : cache_(std::move(cache)), engine_(cache_.get(), layout) {}

  ReserveOp Reserve(const Chain& chain) { return engine_.Reserve(chain)->ops[0]; }

  CommitOp Commit(const Chain& chain, const ReserveOp& reserve, uint32_t begin, uint32_t end) {
    CommitRequest commit;
    commit.ops.resize(1);
    CommitOp& op = commit.ops[0];
    op.reservation = reserve.reservation;
    op.head_begin = begin;
    op.head_end = end;
    for (const BlockPiece& piece : PiecesOfHeads(engine_.layout(), begin, end)) {
      const auto bytes = reserve.slot.subspan(piece.offset, piece.bytes);
      FillPayload(chain[0], 0, bytes, piece.offset);
      op.sums = op.sums + SumLanes(bytes, piece.offset);
    }
    cache_->Commit(&commit);
    engine_.Finish(commit);
    return commit.ops[0];
  }

  void Abort(const ReserveOp& reserve) {
    cache_->Abort({&reserve.reservation, 1});
    engine_.Stats();  // When this request is answered, the abort has arrived.
  }

  TestEngine& engine() { return engine_; }

 private:
  std::unique_ptr<Cache> cache_;
  TestEngine engine_;
};

constexpr const char* kSharded = "sharded";

TEST_P(CacheBehaviour, FourRanksOfOneEngineStoreABlockTogether) {
  Start(LayoutOfHeads());
  const Chain chain = MakeChain(1, 1);
  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<ReserveOp> reserved;
  for (size_t i = 0; i < 4; ++i) {
    ranks.push_back(std::make_unique<Rank>(Join({.engine = kSharded}), layout()));
    reserved.push_back(ranks[i]->Reserve(chain));
    ASSERT_EQ(reserved[i].outcome, ReserveOutcome::kSlot) << i;
  }
  // One slot: the other ranks see what one rank writes.
  reserved[3].slot[0] = std::byte{0x5A};
  EXPECT_EQ(reserved[0].slot[0], std::byte{0x5A});

  for (const size_t rank : {2, 0, 3, 1}) {
    EXPECT_EQ(engine().Matched(chain), 0u);
    const auto begin = static_cast<uint32_t>(2 * rank);
    const CommitOp commit = ranks[rank]->Commit(chain, reserved[rank], begin, begin + 2);
    EXPECT_TRUE(commit.status.ok()) << commit.status.ToString();
    EXPECT_EQ(commit.published, rank == 1);
  }
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 1});
  if (has_nvme()) {
    ranks.clear();
    ASSERT_TRUE(engine().Flush().ok());
    Restart();
    EXPECT_EQ(engine().Recall(chain), Recalled{.right = 1});
  }
}

TEST_P(CacheBehaviour, AHeadRangeThatOverlapsAnotherIsRefused) {
  Start(LayoutOfHeads());
  const Chain chain = MakeChain(1, 1);
  Rank first(Join({.engine = kSharded}), layout());
  Rank second(Join({.engine = kSharded}), layout());
  const ReserveOp mine = first.Reserve(chain);
  const ReserveOp yours = second.Reserve(chain);
  EXPECT_TRUE(first.Commit(chain, mine, 0, 5).status.ok());

  const CommitOp overlapping = second.Commit(chain, yours, 4, 8);
  EXPECT_EQ(overlapping.status.code(), Code::kInvalid);
  EXPECT_FALSE(overlapping.published);
  EXPECT_EQ(engine().Matched(chain), 0u);
}

TEST_P(CacheBehaviour, AHeadRangeOutsideTheBlockIsRefused) {
  Start(LayoutOfHeads());
  const Chain chain = MakeChain(1, 1);
  const auto reserve = engine().Reserve(chain);
  FillPayload(chain[0], 0, reserve->ops[0].slot);
  CommitRequest commit;
  commit.ops.resize(1);
  for (const auto& [begin, end] : {std::pair(0u, 9u), std::pair(8u, 9u), std::pair(5u, 3u)}) {
    commit.ops[0].reservation = reserve->ops[0].reservation;
    commit.ops[0].head_begin = begin;
    commit.ops[0].head_end = end;
    cache()->Commit(&commit);
    engine().Finish(commit);
    EXPECT_EQ(commit.ops[0].status.code(), Code::kInvalid) << begin << " " << end;
    EXPECT_FALSE(commit.ops[0].published);
  }
  EXPECT_EQ(engine().Matched(chain), 0u);
}

TEST_P(CacheBehaviour, ARankThatAbortsVoidsTheReservationForAll) {
  Start(LayoutOfHeads());
  const Chain chain = MakeChain(1, 1);
  Rank first(Join({.engine = kSharded}), layout());
  Rank second(Join({.engine = kSharded}), layout());
  Rank third(Join({.engine = kSharded}), layout());
  const ReserveOp one = first.Reserve(chain);
  const ReserveOp two = second.Reserve(chain);
  const ReserveOp three = third.Reserve(chain);
  EXPECT_TRUE(first.Commit(chain, one, 0, 4).status.ok());
  second.Abort(two);

  const CommitOp late = third.Commit(chain, three, 4, 8);
  EXPECT_EQ(late.status.code(), Code::kInvalid);
  EXPECT_FALSE(late.published);
  EXPECT_EQ(engine().Matched(chain), 0u);

  // All ranks have let go, so the block may be stored anew.
  EXPECT_TRUE(engine().Eventually([&] { return engine().Store(chain) == 1; }));
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 1});
}

TEST_P(CacheBehaviour, ARankThatDiesVoidsTheReservationForAll) {
  Start(LayoutOfHeads());
  const Chain chain = MakeChain(1, 1);
  Rank first(Join({.engine = kSharded}), layout());
  std::optional<Rank> second(std::in_place, Join({.engine = kSharded}), layout());
  const ReserveOp one = first.Reserve(chain);
  second->Reserve(chain);
  second.reset();

  // The bytes of the slot are still the first rank's to write.
  const CommitOp commit = first.Commit(chain, one, 0, 8);
  EXPECT_EQ(commit.status.code(), Code::kInvalid);
  EXPECT_EQ(engine().Matched(chain), 0u);
  EXPECT_TRUE(engine().Eventually([&] { return engine().Store(chain) == 1; }));
  EXPECT_EQ(engine().Recall(chain), Recalled{.right = 1});
}

TEST_P(CacheBehaviour, AVoidSlotIsNobodyElsesWhileARankMayWriteIt) {
  CacheOptions options = Options();
  options.dram_bytes = kExtentBytes;
  Start(LayoutOfHeads(), options);
  const Chain chain = MakeChain(1, 1);
  Rank first(Join({.engine = kSharded}), layout());
  Rank second(Join({.engine = kSharded}), layout());
  const ReserveOp one = first.Reserve(chain);
  const ReserveOp two = second.Reserve(chain);
  second.Abort(two);

  // The first rank's copy is still under way. Blocks stored meanwhile keep their bytes.
  const Chain others = MakeChain(2, 2 * kExtentBytes / (64 << 10));
  engine().Store(others);
  std::fill(one.slot.begin(), one.slot.end(), std::byte{0xEE});
  EXPECT_EQ(engine().Recall(others).wrong, 0u);
  first.Abort(one);
}

TEST_P(CacheBehaviour, AllRanksRecallABlockThatOneRankStoredWhole) {
  Start(LayoutOfHeads());
  const Chain chain = MakeChain(1, 4);
  EXPECT_EQ(engine().Store(chain), 4u);
  Rank first(Join({.engine = kSharded}), layout());
  Rank second(Join({.engine = kSharded}), layout());
  EXPECT_EQ(first.engine().Recall(chain), Recalled{.right = 4});
  EXPECT_EQ(second.engine().Recall(chain), Recalled{.right = 4});
}

}  // namespace
}  // namespace aquifer
