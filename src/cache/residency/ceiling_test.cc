// A tenant's ceiling in DRAM bounds the extents that it has, whatever sizes its blocks are.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

class CeilingTest : public CoreFixture {
 protected:
  // Four extents, of which tenant "a" may have one.
  void MakeWithCeiling(bool nvme = false) {
    CoreOptions options = SmallCache(64, nvme);
    TenantOptions a;
    a.name = "a";
    a.dram_ceiling_bytes = options.extent_bytes;
    options.cache.tenants = {a};
    Make(options);
    a_ = AttachAs("a");
  }

  std::unique_ptr<ReserveRequest> ReserveOfSize(uint64_t bytes) {
    RegisterLayoutRequest registered;
    registered.layout = LayoutOfBytes(bytes);
    a_->Do(&Core::RegisterLayout, &registered);
    EXPECT_TRUE(registered.status.ok());
    const Chain chain(registered.layout, {.seed = 1, .blocks = 1, .tenant = "a"});
    auto reserve = std::make_unique<ReserveRequest>();
    reserve->chain = {.layout = registered.handle, .group = 0, .part = 0, .keys = chain.keys()};
    reserve->parent = chain.parent(0);
    a_->Do(&Core::Reserve, reserve.get());
    return reserve;
  }

  Chain ChainOfA(uint64_t seed, size_t blocks) {
    return Chain(layout_, {.seed = seed, .blocks = blocks, .tenant = "a"});
  }

  // A fetch that cannot begin while the drive hangs, and gets everything afterwards.
  void ExpectToWaitForTheDrive(const Chain& chain) {
    FetchRequest fetch;
    fetch.chain = Slice(chain);
    fetch.timeout_nanos = 4'000'000'000;
    a_->Submit(&Core::Fetch, &fetch);
    world_->Advance(500'000'000);
    EXPECT_FALSE(fetch.done());
    world_->disk(kDrive).Hang(false);
    world_->Advance(1'000'000'000);
    ASSERT_TRUE(fetch.done());
    for (const FetchOp& op : fetch.ops) EXPECT_TRUE(op.status.ok()) << op.status.ToString();
  }

  Status FlushOfA() {
    FlushRequest flush;
    flush.timeout_nanos = 100 * kDefaultTimeoutNanos;
    a_->Do(&Core::Flush, &flush);
    return flush.status;
  }

  // What another tenant can have: 48 blocks are three extents.
  size_t StoredByOther() {
    const auto b = AttachAs("b");
    return Store(Chain(layout_, {.seed = 3, .blocks = 48, .tenant = "b"}), b.get());
  }

  std::unique_ptr<ManualClient> a_;
};

TEST_F(CeilingTest, BlocksOfSeveralSizesDoNotTakeAnExtentEach) {
  MakeWithCeiling();
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].outcome, ReserveOutcome::kSlot);
  for (const uint64_t bytes : {8192, 12288, 16384}) {
    const auto reserve = ReserveOfSize(bytes);
    EXPECT_EQ(reserve->ops[0].outcome, ReserveOutcome::kRefused);
    EXPECT_EQ(reserve->ops[0].refusal, Refusal::kQuota);
  }
  EXPECT_EQ(StoredByOther(), 48u);
}

TEST_F(CeilingTest, ItsOwnExtentIsEmptiedForAnotherSize) {
  MakeWithCeiling();
  const Chain old(layout_, {.seed = 5, .blocks = 4, .tenant = "a"});
  ASSERT_EQ(Store(old, a_.get()), 4u);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].refusal, Refusal::kWarming);
  world_->Advance(1'000'000'000);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].outcome, ReserveOutcome::kSlot);
  EXPECT_EQ(StoredByOther(), 48u);
}

TEST_F(CeilingTest, AnEmptyExtentOfItsOwnGivesWayAtOnce) {
  MakeWithCeiling();
  const auto reserve = ReserveOfSize(8192);
  ASSERT_EQ(reserve->ops[0].outcome, ReserveOutcome::kSlot);
  a_->Abort(std::vector<ReservationId>{reserve->ops[0].reservation});
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].refusal, Refusal::kWarming);
  world_->Advance(1'000'000'000);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].outcome, ReserveOutcome::kSlot);
  EXPECT_EQ(StoredByOther(), 48u);
}

TEST_F(CeilingTest, OneThatWasLoweredOnNvmeHoldsFromTheStartOn) {
  const CoreOptions before = SmallCache();
  CoreOptions lowered = before;
  TenantOptions a;
  a.name = "a";
  a.nvme_ceiling_bytes = 8 * kBlockBytes;
  lowered.cache.tenants = {a};
  Make(before);
  a_ = AttachAs("a");
  const Chain chain = ChainOfA(1, 32);
  ASSERT_EQ(Store(chain, a_.get()), chain.size());
  ASSERT_TRUE(FlushOfA().ok());
  const auto matched_with = [&](const CoreOptions& options) {
    world_->Restart(options);
    a_ = AttachAs("a");
    MatchRequest match;
    match.chain = Slice(chain);
    a_->Do(&Core::Match, &match);
    world_->Advance(1'000'000'000);
    return match.matched;
  };
  EXPECT_EQ(matched_with(lowered), 8u);  // The beginning of the chain.
  EXPECT_EQ(matched_with(before), 8u);   // The rest is gone for good.
}

// It may be written unheld, where too much waits already: then only the write keeps it.
TEST_F(CeilingTest, ItsOwnExtentIsEmptiedAlsoOfWhatWasBeingWritten) {
  MakeWithCeiling(true);
  ASSERT_EQ(Store(ChainOfA(5, 4), a_.get()), 4u);
  ASSERT_TRUE(FlushOfA().ok());
  world_->disk(kDrive).Hang(true);
  ASSERT_EQ(Store(ChainOfA(6, 12), a_.get()), 12u);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].refusal, Refusal::kWarming);
  world_->disk(kDrive).Hang(false);
  world_->Advance(1'000'000'000);
  ReserveOfSize(4096);  // Its extent has closed by now.
  world_->Advance(1'000'000'000);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].outcome, ReserveOutcome::kSlot);
}

// The same where the write fails, for then it may take long.
TEST_F(CeilingTest, ItsOwnExtentIsEmptiedAlsoOfWhatCouldNotBeWritten) {
  MakeWithCeiling(true);
  ASSERT_EQ(Store(ChainOfA(5, 4), a_.get()), 4u);
  ASSERT_TRUE(FlushOfA().ok());
  world_->disk(kDrive).Hang(true);
  ASSERT_EQ(Store(ChainOfA(6, 12), a_.get()), 12u);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].refusal, Refusal::kWarming);
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kUnavailable);
  world_->disk(kDrive).Hang(false);
  world_->Advance(1'000'000'000);
  ReserveOfSize(4096);
  world_->Advance(1'000'000'000);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].outcome, ReserveOutcome::kSlot);
}

TEST_F(CeilingTest, AFetchWaitsForMemoryThatIsOnlyBeingWritten) {
  MakeWithCeiling(true);
  const Chain wanted = ChainOfA(5, 4);
  ASSERT_EQ(Store(wanted, a_.get()), 4u);
  ASSERT_TRUE(FlushOfA().ok());
  world_->disk(kDrive).Hang(true);
  ASSERT_EQ(Store(ChainOfA(6, 16), a_.get()), 16u);
  ExpectToWaitForTheDrive(wanted);
}

// The same where it is only being read, for somebody who does not keep it.
TEST_F(CeilingTest, AFetchWaitsForMemoryThatIsOnlyBeingRead) {
  MakeWithCeiling(true);
  const Chain large = ChainOfA(5, 4);
  ASSERT_EQ(Store(large, a_.get()), 4u);
  ASSERT_TRUE(FlushOfA().ok());
  ReserveOfSize(4096);
  world_->Advance(1'000'000'000);
  const auto reserve = ReserveOfSize(4096);
  ASSERT_EQ(reserve->ops[0].outcome, ReserveOutcome::kSlot);
  CommitRequest commit;
  commit.ops.resize(1);
  commit.ops[0].reservation = reserve->ops[0].reservation;
  commit.ops[0].sums = SumLanes(reserve->ops[0].slot, 0);
  a_->Do(&Core::Commit, &commit);
  ASSERT_TRUE(FlushOfA().ok());
  world_->Restart();
  a_ = AttachAs("a");

  RegisterLayoutRequest registered;
  registered.layout = LayoutOfBytes(4096);
  a_->Do(&Core::RegisterLayout, &registered);
  const Chain small(registered.layout, {.seed = 1, .blocks = 1, .tenant = "a"});
  world_->disk(kDrive).Hang(true);
  PrestageRequest prestage;
  prestage.chain = {.layout = registered.handle, .group = 0, .part = 0, .keys = small.keys()};
  a_->Submit(&Core::Prestage, &prestage);
  ExpectToWaitForTheDrive(large);
  EXPECT_EQ(prestage.staged, 1u);
}

// What its own engines hold may be theirs for ever: they are told at once.
TEST_F(CeilingTest, AFetchDoesNotWaitForMemoryThatTheTenantHolds) {
  MakeWithCeiling(true);
  const Chain wanted = ChainOfA(5, 4);
  const Chain held = ChainOfA(6, 16);
  for (const Chain* chain : {&wanted, &held}) {
    ASSERT_EQ(Store(*chain, a_.get()), chain->size());
    ASSERT_TRUE(FlushOfA().ok());
  }
  FetchRequest all;
  all.chain = Slice(held);
  a_->Do(&Core::Fetch, &all);
  FetchRequest fetch;
  fetch.chain = Slice(wanted);
  fetch.timeout_nanos = 4'000'000'000;
  a_->Submit(&Core::Fetch, &fetch);
  world_->Run();
  ASSERT_TRUE(fetch.done());
  for (const FetchOp& op : fetch.ops) EXPECT_EQ(op.status.code(), Code::kNoSpace);
}

}  // namespace
}  // namespace aquifer
