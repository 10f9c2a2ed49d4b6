#include "cache/core.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "testing/chain.h"
#include "testing/manual_world.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = 16 << 10;
constexpr char kDrive[] = "drive";

CoreOptions SmallCache(uint64_t dram_blocks = 64, bool nvme = true) {
  CoreOptions options;
  options.extent_bytes = 16 * kBlockBytes;
  options.cache.dram_bytes = dram_blocks * kBlockBytes;
  options.cache.keep_available_bytes = 0;
  if (nvme) {
    options.cache.nvme_directories = {kDrive};
    options.cache.nvme_bytes = 64 << 20;
    options.cache.nvme_segment_bytes = 4 << 20;
  }
  return options;
}

class CoreTest : public ::testing::Test {
 protected:
  void Make(const CoreOptions& options) {
    world_ = std::make_unique<ManualWorld>(options);
    Attach();
  }
  void Attach() {
    client_ = std::make_unique<ManualClient>(world_.get(), ClientOptions{.tenant = "local"});
    RegisterLayoutRequest request;
    request.layout = layout_;
    client_->Do(&Core::RegisterLayout, &request);
    ASSERT_TRUE(request.status.ok()) << request.status.ToString();
    handle_ = request.handle;
  }
  void Restart() {
    world_->Restart();
    Attach();
  }

  ChainSlice Slice(const Chain& chain) const {
    return {.layout = handle_, .group = 0, .part = 0, .keys = chain.keys()};
  }

  // Returns how many were published. An engine that computes a block once more may get other bytes:
  // another `computation`.
  size_t Store(const Chain& chain, ManualClient* client, uint16_t computation = 0) {
    ReserveRequest reserve;
    reserve.chain = Slice(chain);
    reserve.parent = chain.parent(0);
    client->Do(&Core::Reserve, &reserve);
    CommitRequest commit;
    for (size_t i = 0; i < reserve.ops.size(); ++i) {
      if (reserve.ops[i].outcome != ReserveOutcome::kSlot) continue;
      FillPayload(chain[i], computation, reserve.ops[i].slot);
      CommitOp op;
      op.reservation = reserve.ops[i].reservation;
      op.sums = SumLanes(reserve.ops[i].slot, 0);
      commit.ops.push_back(std::move(op));
    }
    client->Do(&Core::Commit, &commit);
    size_t published = 0;
    for (const CommitOp& op : commit.ops) published += op.published ? 1 : 0;
    return published;
  }
  size_t Store(const Chain& chain) { return Store(chain, client_.get()); }

  Status Flush() {
    FlushRequest flush;
    client_->Do(&Core::Flush, &flush);
    return flush.status;
  }

  // Returns how many blocks were served; every byte of them is right.
  size_t Recall(const Chain& chain, std::vector<Code>* codes = nullptr, uint16_t computation = 0) {
    FetchRequest fetch;
    fetch.chain = Slice(chain);
    client_->Do(&Core::Fetch, &fetch);
    size_t served = 0;
    std::vector<ReleaseOp> leases;
    for (size_t i = 0; i < fetch.ops.size(); ++i) {
      if (codes != nullptr) codes->push_back(fetch.ops[i].status.code());
      if (!fetch.ops[i].status.ok()) continue;
      EXPECT_TRUE(IsPayload(chain[i], computation, fetch.ops[i].bytes)) << "block " << i;
      EXPECT_EQ(ChecksumOf(fetch.ops[i].bytes), fetch.ops[i].checksum);
      leases.push_back({.lease = fetch.ops[i].lease, .corrupt = false});
      ++served;
    }
    client_->Release(leases);
    return served;
  }

  uint64_t Counter(const std::string& name) {
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    return stats.stats.Counter(name);
  }

  const Layout layout_ = LayoutOfBytes(kBlockBytes);
  std::unique_ptr<ManualWorld> world_;
  std::unique_ptr<ManualClient> client_;
  LayoutHandle handle_ = 0;
};

TEST_F(CoreTest, WhatWasFlushedIsThereAfterARestart) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  ASSERT_EQ(Store(chain), 20u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain), 20u);
  EXPECT_EQ(Counter("fetch_hits_nvme"), 20u);
}

TEST_F(CoreTest, MoreThanDramHoldsIsServedFromNvme) {
  Make(SmallCache(32));
  const Chain chain(layout_, {.seed = 1, .blocks = 100});
  for (size_t begin = 0; begin < 100; begin += 10) {
    ReserveRequest reserve;
    reserve.chain = {.layout = handle_, .group = 0, .part = 0, .keys = chain.keys(begin, 10)};
    reserve.parent = chain.parent(begin);
    reserve.position = static_cast<uint32_t>(begin);
    client_->Do(&Core::Reserve, &reserve);
    CommitRequest commit;
    for (size_t i = 0; i < reserve.ops.size(); ++i) {
      ASSERT_EQ(reserve.ops[i].outcome, ReserveOutcome::kSlot) << begin + i;
      FillPayload(chain[begin + i], 0, reserve.ops[i].slot);
      CommitOp op;
      op.reservation = reserve.ops[i].reservation;
      op.sums = SumLanes(reserve.ops[i].slot, 0);
      commit.ops.push_back(std::move(op));
    }
    client_->Do(&Core::Commit, &commit);
    ASSERT_TRUE(Flush().ok());
  }
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 100u);
  size_t served = 0;
  for (size_t begin = 0; begin < 100; begin += 10) {
    FetchRequest fetch;
    fetch.chain = {.layout = handle_, .group = 0, .part = 0, .keys = chain.keys(begin, 10)};
    client_->Do(&Core::Fetch, &fetch);
    std::vector<ReleaseOp> leases;
    for (size_t i = 0; i < 10; ++i) {
      ASSERT_TRUE(fetch.ops[i].status.ok()) << fetch.ops[i].status.ToString();
      EXPECT_TRUE(IsPayload(chain[begin + i], 0, fetch.ops[i].bytes));
      leases.push_back({.lease = fetch.ops[i].lease, .corrupt = false});
      ++served;
    }
    client_->Release(leases);
  }
  EXPECT_EQ(served, 100u);
}

TEST_F(CoreTest, AHangingDiskTurnsIntoLateAndTheSlotWaitsForIt) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  world_->disk(kDrive).Hang(true);
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  fetch.timeout_nanos = 20'000'000;
  client_->Submit(&Core::Fetch, &fetch);
  world_->Advance(19'000'000);
  EXPECT_FALSE(fetch.done());
  world_->Advance(2'000'000);
  ASSERT_TRUE(fetch.done());
  for (const FetchOp& op : fetch.ops) EXPECT_EQ(op.status.code(), Code::kLate);
  EXPECT_GT(Counter("quarantined_bytes"), 0u);

  world_->disk(kDrive).Hang(false);
  world_->Advance(100'000'000);
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
  EXPECT_EQ(Recall(chain), 8u);
}

TEST_F(CoreTest, ADriveThatOpensLaterBringsItsBlocks) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpening(Code::kUnavailable);
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
  EXPECT_EQ(Flush().code(), Code::kUnavailable);
  world_->FailOpening(Code::kOk);
  world_->Advance(3'000'000'000);
  EXPECT_EQ(Recall(chain), 8u);
}

TEST_F(CoreTest, EachDriveStartsFailsAndComesBackOnItsOwn) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  const Chain before(layout_, {.seed = 1, .blocks = 32});
  const Chain during(layout_, {.seed = 2, .blocks = 8});
  for (const bool hang : {false, true}) {
    SCOPED_TRACE(hang ? "opening hangs" : "opening fails");
    Make(options);
    ASSERT_EQ(Store(before), 32u);
    ASSERT_TRUE(Flush().ok());
    if (hang) {
      world_->HangOpening("two");
    } else {
      world_->FailOpeningOf("two", true);
    }
    Restart();  // Does not wait for it.
    const size_t served = Recall(before);
    EXPECT_GT(served, 0u);
    EXPECT_LT(served, 32u);
    ASSERT_EQ(Store(during), 8u);
    EXPECT_TRUE(Flush().ok());
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    const TierStats& nvme = stats.stats.tiers[1];
    EXPECT_TRUE(nvme.in_service);
    ASSERT_EQ(nvme.drives.size(), 2u);
    EXPECT_EQ(nvme.drives[0].directory, "one");
    EXPECT_TRUE(nvme.drives[0].in_service && nvme.drives[0].writable);
    EXPECT_TRUE(nvme.drives[0].why.empty());
    EXPECT_FALSE(nvme.drives[1].in_service);
    EXPECT_NE(nvme.drives[1].why.find(hang ? "hangs" : "injected"), std::string::npos)
        << nvme.drives[1].why;

    if (hang) {
      world_->HangOpening("");
    } else {
      world_->FailOpeningOf("two", false);
    }
    world_->Advance(5'000'000'000);
    EXPECT_EQ(Recall(before), 32u);
    EXPECT_EQ(Recall(during), 8u);
    client_->Do(&Core::Stats, &stats);
    EXPECT_TRUE(stats.stats.tiers[1].drives[1].in_service);
    Restart();
    EXPECT_EQ(Recall(during), 8u);
  }
}

// A deletion that cannot be finished while a drive is out, of a block that is stored once more.
TEST_F(CoreTest, ABlockThatWaitsForItsDeletionHoldsNobodyElseUp) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  Make(options);
  world_->FailOpeningOf("two", true);
  Restart();
  const Chain deleted(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(deleted), 4u);
  EvictRequest evict;
  evict.chain = Slice(deleted);
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.status.code(), Code::kUnavailable);
  ASSERT_EQ(Store(deleted), 4u);
  const Chain other(layout_, {.seed = 2, .blocks = 4});
  ASSERT_EQ(Store(other), 4u);
  world_->Advance(1'000'000'000);
  Restart();
  EXPECT_EQ(Recall(other), 4u);
}

// Of two records of a block the one that was stored last counts, however much the other drive had
// written before it was away.
TEST_F(CoreTest, ADriveThatWasAwayDoesNotBringBackWhatWasStoredAnew) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  Make(options);
  world_->FailOpeningOf("one", true);
  Restart();
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 40})), 40u);
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpeningOf("one", false);
  world_->FailOpeningOf("two", true);
  world_->clock().SetUnixMicros(world_->clock().UnixMicros() + 1'000);
  Restart();
  ASSERT_EQ(Store(chain, client_.get(), 1), 4u);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpeningOf("two", false);
  Restart();
  EXPECT_EQ(Recall(chain, nullptr, 1), 4u);
}

TEST_F(CoreTest, WhatIsInDramIsDurableAlsoWhenACalendarSetBackLetsAnOlderRecordWin) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  Make(options);
  world_->FailOpeningOf("one", true);
  Restart();
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpeningOf("one", false);
  world_->FailOpeningOf("two", true);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() - 3600);
  Restart();
  ASSERT_EQ(Store(chain, client_.get(), 1), 4u);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpeningOf("two", false);
  world_->Advance(5'000'000'000);
  ASSERT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain, nullptr, 1), 4u);
}

// The other drive may be writing the new records when it comes, or only making a file for them.
TEST_F(CoreTest, ADriveThatComesLateTakesNothingAwayThatIsBeingStoredAnew) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  for (const bool writing : {false, true}) {
    SCOPED_TRACE(writing);
    Make(options);
    world_->FailOpeningOf("one", true);
    Restart();
    const Chain chain(layout_, {.seed = 1, .blocks = 4});
    ASSERT_EQ(Store(chain), 4u);
    ASSERT_TRUE(Flush().ok());
    world_->FailOpeningOf("one", false);
    world_->FailOpeningOf("two", true);
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1);
    Restart();
    if (writing) {
      ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 1})), 1u);
      ASSERT_TRUE(Flush().ok());
    }
    world_->disk("one").Hang(true);
    ASSERT_EQ(Store(chain, client_.get(), 1), 4u);
    world_->FailOpeningOf("two", false);
    world_->Advance(4'000'000'000);
    world_->disk("one").Hang(false);
    ASSERT_TRUE(Flush().ok());
    Restart();
    EXPECT_EQ(Recall(chain, nullptr, 1), 4u);
  }
}

// Nobody knows of the older record then: the block itself may be dropped before it is written.
TEST_F(CoreTest, ADriveThatComesLateLeavesNothingBehindOfWhatCouldNotBeStoredAnew) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  Make(options);
  world_->FailOpeningOf("one", true);
  Restart();
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpeningOf("one", false);
  world_->FailOpeningOf("two", true);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1);
  Restart();
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 1})), 1u);
  ASSERT_TRUE(Flush().ok());
  world_->disk("one").Hang(true);
  ASSERT_EQ(Store(chain, client_.get(), 1), 4u);
  world_->FailOpeningOf("two", false);
  world_->Advance(4'000'000'000);  // It comes while they are being written, which then fails.
  for (const char* drive : {"one", "two"}) {
    world_->disk(drive).FailAll(IoKind::kWrite, Code::kUnavailable);
  }
  world_->disk("one").Hang(false);
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  client_->Do(&Core::Fetch, &fetch);
  std::vector<ReleaseOp> leases;
  for (const FetchOp& op : fetch.ops) leases.push_back({.lease = op.lease, .corrupt = true});
  client_->Release(leases);
  for (const char* drive : {"one", "two"}) world_->disk(drive).FailAll(IoKind::kWrite, Code::kOk);
  world_->Advance(5'000'000'000);
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  ASSERT_TRUE(evict.status.ok()) << evict.status.ToString();
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
}

// At every step of its coming: what it brings is known to the tier before it is to the cache.
TEST_F(CoreTest, EverythingThatWasDeletedIsGoneAlsoFromADriveThatComesMeanwhile) {
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  size_t ended_well = 0;
  for (size_t task = 0; ended_well < 20; ++task) {
    SCOPED_TRACE(task);
    Make(SmallCache());
    ASSERT_EQ(Store(chain), 40u);
    ASSERT_TRUE(Flush().ok());
    world_->FailOpening(Code::kUnavailable);
    Restart();
    world_->FailOpening(Code::kOk);
    EvictRequest evict;
    evict.everything = true;
    size_t tasks = 0;
    world_->after_task = [&] {
      if (world_->mounted(kDrive) && tasks++ == task) client_->Submit(&Core::Evict, &evict);
    };
    world_->Advance(3'000'000'000);
    world_->after_task = nullptr;
    ASSERT_GT(tasks, task);
    ASSERT_TRUE(evict.done());
    if (!evict.status.ok()) continue;
    ++ended_well;
    EXPECT_EQ(Recall(chain), 0u);
    Restart();
    EXPECT_EQ(Recall(chain), 0u);
  }
}

// A batch is answered when all of it is written; by then the first of it may be gone again.
TEST_F(CoreTest, WhatIsReclaimedBeforeItsWriteIsAnsweredDoesNotCountAsWritten) {
  CoreOptions options = SmallCache();
  options.cache.nvme_bytes = 1 << 20;
  options.cache.nvme_segment_bytes = 128 << 10;
  Make(options);
  ASSERT_EQ(Store(Chain(layout_, {.seed = 1, .blocks = 64})), 64u);
  world_->Advance(5'000'000'000);
  StatsRequest stats;
  client_->Do(&Core::Stats, &stats);
  EXPECT_GT(stats.stats.Counter("nvme_reclaim_dropped_blocks"), 0u);
  EXPECT_EQ(stats.stats.tiers[1].blocks, stats.stats.Counter("nvme_live_blocks"));
}

TEST_F(CoreTest, WhatWasStoredBeforeTheDriveOpenedIsFlushedToIt) {
  Make(SmallCache());
  world_->FailOpening(Code::kUnavailable);
  Restart();
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  world_->FailOpening(Code::kOk);
  world_->Advance(3'000'000'000);
  ASSERT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain), 8u);
}

TEST_F(CoreTest, WhatWasDeletedBeforeTheDriveOpenedDoesNotComeBack) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpening(Code::kUnavailable);
  Restart();
  EvictRequest evict;
  evict.chain = Slice(chain);
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.status.code(), Code::kUnavailable);
  world_->FailOpening(Code::kOk);
  world_->Advance(3'000'000'000);
  EXPECT_EQ(Recall(chain), 0u);
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreTest, EveryDeletedBlockOfALongChainIsCounted) {
  Make(SmallCache(256));
  const Chain chain(layout_, {.seed = 1, .blocks = 200});
  ASSERT_EQ(Store(chain), 200u);
  EvictRequest evict;
  evict.chain = Slice(chain);
  client_->Do(&Core::Evict, &evict);
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  EXPECT_EQ(evict.evicted, 200u);
}

TEST_F(CoreTest, ABlockStoredAgainWhileItsDeletionIsUnderWayStays) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  world_->disk(kDrive).Hang(true);
  ASSERT_EQ(Store(chain), 8u);
  world_->Run();
  EvictRequest evict;
  evict.chain = Slice(chain);
  client_->Submit(&Core::Evict, &evict);
  world_->Run();
  ASSERT_EQ(Store(chain), 8u);
  world_->Run();
  world_->disk(kDrive).Hang(false);
  ASSERT_TRUE(world_->RunUntil([&evict] { return evict.done(); }));
  ASSERT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain), 8u);
}

TEST_F(CoreTest, AFullDiskDoesNotStopStores) {
  Make(SmallCache(64));
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kNoSpace);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const Chain chain(layout_, {.seed = seed, .blocks = 32});
    ASSERT_TRUE(world_->RunUntil([&] { return Store(chain) > 0 || Recall(chain) == 32; })) << seed;
    world_->Advance(1'000'000'000);
  }
}

TEST_F(CoreTest, ATenantIsNotPushedBelowItsFloor) {
  CoreOptions options = SmallCache(64);
  TenantOptions tenant;
  tenant.name = "local";
  tenant.dram_floor_bytes = 20 * kBlockBytes;
  options.cache.tenants = {tenant};
  Make(options);
  // Two extents of sixteen slots, of which only one block is above the floor.
  ASSERT_EQ(Store(Chain(layout_, {.seed = 1, .blocks = 21})), 21u);
  ASSERT_TRUE(Flush().ok());
  ManualClient other(world_.get(), {.tenant = "other"});
  RegisterLayoutRequest request;
  request.layout = layout_;
  other.Do(&Core::RegisterLayout, &request);
  for (uint64_t seed = 2; seed < 12; ++seed) {
    Store(Chain(layout_, {.seed = seed, .blocks = 16, .tenant = "other"}), &other);
    world_->Advance(100'000'000);
  }
  StatsRequest stats;
  client_->Do(&Core::Stats, &stats);
  EXPECT_GE(stats.stats.tiers[0].tenant_bytes, 20 * kBlockBytes);
}

TEST_F(CoreTest, ADriveThatCanBeReadLaterBringsItsBlocks) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  ASSERT_TRUE(Flush().ok());
  world_->FailReads(true);
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
  world_->FailReads(false);
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Recall(chain), 8u);
}

TEST_F(CoreTest, ABlockEvictedWhileItIsBeingWrittenDoesNotComeBack) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  world_->disk(kDrive).Hang(true);
  ASSERT_EQ(Store(chain), 8u);
  world_->Run();
  EvictRequest evict;
  evict.chain = Slice(chain);
  client_->Submit(&Core::Evict, &evict);
  world_->Run();
  EXPECT_FALSE(evict.done());
  world_->disk(kDrive).Hang(false);
  ASSERT_TRUE(world_->RunUntil([&evict] { return evict.done(); }));
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  EXPECT_EQ(evict.evicted, 8u);
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreTest, OneDamagedBlockIsRefusedAndTheOthersAreServed) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  // Find the third block's bytes on the media and flip one bit of them.
  std::vector<std::byte> wanted(kBlockBytes);
  FillPayload(chain[2], 0, wanted);
  MemoryMedia& media = world_->media(kDrive);
  bool flipped = false;
  for (const DiskFile& file : media.List()) {
    for (uint64_t offset = 0; offset + kBlockBytes <= file.bytes && !flipped; offset += 4096) {
      if (media.Bytes(file.number, offset, kBlockBytes) != wanted) continue;
      media.FlipBit(file.number, offset + 5000, 3);
      flipped = true;
    }
  }
  ASSERT_TRUE(flipped);
  std::vector<Code> codes;
  EXPECT_EQ(Recall(chain, &codes), 3u);
  EXPECT_EQ(codes[2], Code::kCorrupt);
  EXPECT_EQ(Counter("corrupt_blocks"), 1u);
}

TEST_F(CoreTest, AReservationOverdueIsVoidAndItsSlotWaitsForTheRank) {
  CoreOptions options = SmallCache(64, false);
  options.cache.overdue_nanos = 1'000'000'000;
  Make(options);
  ManualClient other(world_.get(), {.tenant = "local", .engine = "other"});
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  ReserveRequest first;
  first.chain = Slice(chain);
  first.parent = chain.parent(0);
  client_->Do(&Core::Reserve, &first);
  ASSERT_EQ(first.ops[0].outcome, ReserveOutcome::kSlot);
  ReserveRequest second;
  second.chain = Slice(chain);
  second.parent = chain.parent(0);
  other.Do(&Core::Reserve, &second);
  EXPECT_EQ(second.ops[0].outcome, ReserveOutcome::kBeingFilled);
  EXPECT_GT(second.ops[0].wait_ms, 0);

  world_->Advance(2'000'000'000);
  EXPECT_EQ(Counter("overdue_reservations"), 1u);
  EXPECT_EQ(Counter("quarantined_bytes"), kBlockBytes);
  EXPECT_EQ(Store(chain, &other), 1u);
  CommitRequest commit;
  commit.ops.resize(1);
  commit.ops[0].reservation = first.ops[0].reservation;
  client_->Do(&Core::Commit, &commit);
  EXPECT_EQ(commit.ops[0].status.code(), Code::kInvalid);
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
  EXPECT_EQ(Recall(chain), 1u);
}

TEST_F(CoreTest, ALeaseOverdueIsCountedOnceAndNotTakenBack) {
  CoreOptions options = SmallCache(64, false);
  options.cache.overdue_nanos = 1'000'000'000;
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 3});
  ASSERT_EQ(Store(chain), 3u);
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  client_->Do(&Core::Fetch, &fetch);
  world_->Advance(900'000'000);
  EXPECT_EQ(Counter("overdue_leases"), 0u);
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Counter("overdue_leases"), 3u);
  EXPECT_EQ(Counter("overdue_reservations"), 0u);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(IsPayload(chain[i], 0, fetch.ops[i].bytes));
  std::vector<ReleaseOp> leases;
  for (const FetchOp& op : fetch.ops) leases.push_back({.lease = op.lease, .corrupt = false});
  client_->Release(leases);
  EXPECT_EQ(Recall(chain), 3u);
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Counter("overdue_leases"), 3u);
}

TEST_F(CoreTest, ARequestThatIsDoneLeavesNoTimerBehind) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  const size_t before = world_->timers();
  for (int i = 0; i < 100; ++i) {
    Restart();
    for (int again = 0; again < 3; ++again) ASSERT_TRUE(Flush().ok());
    ASSERT_EQ(Recall(chain), 4u);  // From NVMe, with a deadline.
  }
  for (int again = 0; again < 100; ++again) ASSERT_TRUE(Flush().ok());
  EXPECT_LE(world_->timers(), before + 4);
}

TEST_F(CoreTest, AnEngineIsForgottenWithItsLastClient) {
  Make(SmallCache(64, false));
  const uint64_t before = Counter("engines");
  for (int i = 0; i < 100; ++i) {
    ManualClient first(world_.get(), {.tenant = "local", .engine = std::to_string(i)});
    ManualClient second(world_.get(), {.tenant = "local", .engine = std::to_string(i)});
    EXPECT_EQ(Counter("engines"), before + 1);
    first.Detach();
    EXPECT_EQ(Counter("engines"), before + 1);
    second.Detach();
    world_->Run();
  }
  EXPECT_EQ(Counter("engines"), before);
}

// The drive holds an older record of what is deleted from memory while it cannot be read.
TEST_F(CoreTest, WhatWasDeletedFromMemoryDoesNotComeBackWithTheDrive) {
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  const Chain unseen(layout_, {.seed = 2, .blocks = 8});
  for (const bool everything : {false, true}) {
    Make(SmallCache());
    ASSERT_EQ(Store(chain), 8u);
    ASSERT_EQ(Store(unseen), 8u);
    ASSERT_TRUE(Flush().ok());
    world_->FailOpening(Code::kUnavailable);
    Restart();
    ASSERT_EQ(Store(chain), 8u);
    EvictRequest evict;
    evict.chain = Slice(chain);
    evict.everything = everything;
    client_->Do(&Core::Evict, &evict);
    EXPECT_EQ(evict.status.code(), Code::kUnavailable);
    EXPECT_EQ(evict.evicted, 8u);
    world_->FailOpening(Code::kOk);
    world_->Advance(5'000'000'000);
    EXPECT_EQ(Recall(chain), 0u) << everything;
    EXPECT_EQ(Recall(unseen), everything ? 0u : 8u);
    Restart();
    EXPECT_EQ(Recall(chain), 0u) << everything;
    EXPECT_EQ(Recall(unseen), everything ? 0u : 8u);
  }
}

TEST_F(CoreTest, MemoryPressureMakesThePoolSmaller) {
  CoreOptions options = SmallCache(64);
  options.cache.keep_available_bytes = 1 << 20;
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 60});
  ASSERT_EQ(Store(chain), 60u);
  ASSERT_TRUE(Flush().ok());
  const uint64_t before = world_->core().extent_bytes();
  world_->extents().SetAvailableBytes(0);
  world_->Advance(2'000'000'000);
  EXPECT_LT(world_->core().extent_bytes(), before);
  world_->extents().SetAvailableBytes(uint64_t{1} << 30);
  world_->Advance(2'000'000'000);
  EXPECT_EQ(Recall(chain), 60u);
}

TEST_F(CoreTest, CapacityMovesToATenantThatNeedsIt) {
  Make(SmallCache(64));
  const Chain first(layout_, {.seed = 1, .blocks = 64});
  ASSERT_EQ(Store(first), 64u);
  ASSERT_TRUE(Flush().ok());
  ManualClient other(world_.get(), {.tenant = "second"});
  RegisterLayoutRequest request;
  request.layout = layout_;
  other.Do(&Core::RegisterLayout, &request);
  const Chain second(layout_, {.seed = 2, .blocks = 16, .tenant = "second"});
  size_t stored = 0;
  ASSERT_TRUE(world_->RunUntil([&] {
    stored += Store(second, &other);
    return stored == 16;
  }));
  EXPECT_EQ(Recall(first), 64u);  // From NVMe where it had to go.
}

TEST_F(CoreTest, PrefillReportsDecideWhatPays) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  ASSERT_EQ(Store(chain), 40u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 40u);
  EXPECT_EQ(match.pays, 40u);  // Nothing reported: loading is taken to pay.
  for (int i = 0; i < 20; ++i) {
    world_->core().ReportPrefill(client_->number(), {.layout = handle_,
                                                     .tokens = static_cast<uint32_t>(100 + 10 * i),
                                                     .context_tokens = 0,
                                                     .milliseconds = 1e-6 * (100 + 10 * i)});
  }
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 40u);
  EXPECT_EQ(match.pays, 0u);
  ASSERT_EQ(match.runs.size(), 1u);
  EXPECT_EQ(match.runs[0].tier, TierKind::kNvme);
  EXPECT_GT(match.runs[0].estimated_ms, 0);
}

TEST_F(CoreTest, ATimeToLiveGivenLaterHoldsAfterARestart) {
  Make(SmallCache());
  const Chain in_dram(layout_, {.seed = 1, .blocks = 4});
  const Chain on_nvme(layout_, {.seed = 2, .blocks = 4});
  ASSERT_EQ(Store(on_nvme), 4u);
  ASSERT_TRUE(Flush().ok());
  Restart();  // Now it is on NVMe alone.
  ASSERT_EQ(Store(in_dram), 4u);
  ASSERT_TRUE(Flush().ok());
  for (const Chain* chain : {&in_dram, &on_nvme}) {
    SessionForecast forecast;
    forecast.session = "s";
    forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
    forecast.ttl_seconds = 60;
    world_->core().Hint(client_->number(), forecast, (*chain)[3]);
    world_->Run();
  }
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(Recall(in_dram), 4u);
  EXPECT_EQ(Recall(on_nvme), 4u);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 61);
  Restart();
  EXPECT_EQ(Recall(in_dram), 0u);
  EXPECT_EQ(Recall(on_nvme), 0u);
}

// The old record stays until the new one is there, and never comes back after it.
TEST_F(CoreTest, ATimeToLiveGivenLaterLosesNothingWhateverIoIsTheLast) {
  const Chain chain(layout_, {.seed = 1, .blocks = 3});
  const auto live = [&](uint64_t stop_after) {
    Make(SmallCache());
    EXPECT_EQ(Store(chain), 3u);
    EXPECT_TRUE(Flush().ok());
    const uint64_t before = world_->disk(kDrive).requests_done();
    world_->disk(kDrive).StopAfter(before + stop_after);
    SessionForecast forecast;
    forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
    forecast.ttl_seconds = 60;
    world_->core().Hint(client_->number(), forecast, chain[2]);
    FlushRequest flush;
    flush.timeout_nanos = 100'000'000;
    client_->Do(&Core::Flush, &flush);
    const uint64_t requests = world_->disk(kDrive).requests_done() - before;
    Restart();
    EXPECT_EQ(Recall(chain), 3u) << "stopped after " << stop_after;
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 61);
    Restart();
    if (flush.status.ok()) {
      EXPECT_EQ(Recall(chain), 0u) << "stopped after " << stop_after;
    }
    return requests;
  };
  const uint64_t steps = live(1000);
  ASSERT_GT(steps, 3u);
  for (uint64_t step = 0; step <= steps; ++step) live(step);
}

TEST_F(CoreTest, ADrainWithoutTimeForAllSavesTheHottest) {
  Make(SmallCache(2048));
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kNoSpace);
  const Chain cold(layout_, {.seed = 1, .blocks = 600});
  const Chain hot(layout_, {.seed = 2, .blocks = 600});
  ASSERT_EQ(Store(cold), 600u);  // Older, and so first in the order of arrival.
  world_->Advance(1'000'000'000);
  ASSERT_EQ(Store(hot), 600u);
  world_->Advance(1'000'000'000);
  ASSERT_EQ(Recall(hot), 600u);
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kOk);
  world_->disk(kDrive).StopAfter(world_->disk(kDrive).requests_done() + 580);
  DrainRequest drain;
  drain.timeout_nanos = 5'000'000'000;
  client_->Do(&Core::Drain, &drain);
  EXPECT_EQ(drain.status.code(), Code::kLate);
  EXPECT_GT(drain.left, 0u);
  Restart();
  EXPECT_GE(Recall(hot), 300u);
  EXPECT_EQ(Recall(cold), 0u);
}

TEST_F(CoreTest, ADrainIsOfEveryTenant) {
  Make(SmallCache());
  ManualClient other(world_.get(), {.tenant = "other"});
  RegisterLayoutRequest request;
  request.layout = layout_;
  other.Do(&Core::RegisterLayout, &request);
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kNoSpace);
  const Chain chain(layout_, {.seed = 1, .blocks = 8, .tenant = "other"});
  ASSERT_EQ(Store(chain, &other), 8u);
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kOk);
  DrainRequest drain;
  client_->Do(&Core::Drain, &drain);
  EXPECT_TRUE(drain.status.ok()) << drain.status.ToString();
  EXPECT_EQ(drain.left, 0u);
  const Chain late(layout_, {.seed = 2, .blocks = 1, .tenant = "other"});
  ReserveRequest reserve;
  reserve.chain = Slice(late);
  reserve.parent = late.parent(0);
  other.Do(&Core::Reserve, &reserve);
  EXPECT_EQ(reserve.ops[0].refusal, Refusal::kDraining);
}

// Every single I/O of a small cache's life is once the last one before a crash. What Flush()
// acknowledged is there afterwards, what Evict() acknowledged is not, and nothing is ever wrong.
TEST_F(CoreTest, ACrashAfterAnyIoLosesNothingAcknowledged) {
  CoreOptions options = SmallCache(32);
  options.cache.nvme_bytes = (1 << 20) + kPageBytes;  // Four segments and a lock.
  options.cache.nvme_segment_bytes = 256 << 10;
  const auto live = [&](uint64_t stop_after) {
    Make(options);
    if (stop_after != 0) world_->disk(kDrive).StopAfter(stop_after);
    std::set<uint64_t> kept;
    std::set<uint64_t> evicted;
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const Chain chain(layout_, {.seed = seed, .blocks = 3});
      Store(chain);
      FlushRequest flush;
      flush.timeout_nanos = 100'000'000;
      client_->Do(&Core::Flush, &flush);
      if (flush.status.ok()) kept.insert(seed);
      if (seed % 3 == 0) {
        const Chain gone(layout_, {.seed = seed - 1, .blocks = 3});
        EvictRequest evict;
        evict.chain = Slice(gone);
        client_->Submit(&Core::Evict, &evict);
        world_->Advance(200'000'000);
        kept.erase(seed - 1);
        if (evict.done() && evict.status.ok()) evicted.insert(seed - 1);
        if (!evict.done()) {
          client_->Detach();
          Attach();
        }
      }
    }
    const uint64_t requests = world_->disk(kDrive).requests_done();
    Restart();
    for (const uint64_t seed : kept) {
      EXPECT_EQ(Recall(Chain(layout_, {.seed = seed, .blocks = 3})), 3u)
          << "stopped after " << stop_after << ", chain " << seed;
    }
    for (const uint64_t seed : evicted) {
      EXPECT_EQ(Recall(Chain(layout_, {.seed = seed, .blocks = 3})), 0u)
          << "stopped after " << stop_after << ", chain " << seed;
    }
    return requests;
  };
  const uint64_t steps = live(0);
  ASSERT_GT(steps, 20u);
  for (uint64_t step = 1; step <= steps; ++step) live(step);
}

}  // namespace
}  // namespace aquifer
