// What a cache does when its drives fail, hang, come late, lie, or stop for good.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

using CoreDrivesTest = CoreFixture;

TEST_F(CoreDrivesTest, AHangingDiskTurnsIntoLateAndTheSlotWaitsForIt) {
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

// Which drive takes the next blocks is a matter of which is free: two that are alike share the
// work.
TEST_F(CoreDrivesTest, BlocksAreStripedOverTheDrives) {
  CoreOptions options = SmallCache(256);
  options.cache.nvme_directories = {"one", "two"};
  options.cache.nvme_bytes = 128 << 20;
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 200});
  ASSERT_EQ(Store(chain), 200u);
  ASSERT_TRUE(Flush().ok());
  for (const char* away : {"one", "two"}) {
    world_->FailOpeningOf(away, true);
    Restart();
    EXPECT_GE(Recall(chain), 50u) << away;
    world_->FailOpeningOf(away, false);
  }
}

TEST_F(CoreDrivesTest, StatsTellWhatCouldNotBeReadAtTheStart) {
  Make(SmallCache());
  MemoryMedia& media = world_->media(kDrive);
  const std::vector<std::byte> noise(kPageBytes, std::byte{0x5A});
  ASSERT_TRUE(media.Create(77, 4 << 20).ok());
  ASSERT_TRUE(media.Write(77, 0, noise).ok());
  Restart();
  StatsRequest stats;
  client_->Do(&Core::Stats, &stats);
  const DriveStats& drive = stats.stats.tiers[1].drives[0];
  EXPECT_TRUE(drive.in_service);
  EXPECT_NE(drive.why.find("file 77"), std::string::npos) << drive.why;
}

TEST_F(CoreDrivesTest, ADriveThatOpensLaterBringsItsBlocks) {
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

TEST_F(CoreDrivesTest, EachDriveStartsFailsAndComesBackOnItsOwn) {
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

// What could not be fetched is not to be counted on.
TEST_F(CoreDrivesTest, WhatADriveHoldsThatIsOutOfServiceIsNotMatched) {
  for (const bool alone : {true, false}) {
    SCOPED_TRACE(alone ? "the only drive" : "one of two drives");
    CoreOptions options = SmallCache(128);
    options.cache.nvme_bytes = 128 << 20;
    if (!alone) options.cache.nvme_directories = {kDrive, "other"};
    Make(options);
    const Chain chain(layout_, {.seed = 1, .blocks = 32});
    ASSERT_EQ(Store(chain), 32u);
    ASSERT_TRUE(Flush().ok());
    Restart();
    world_->disk(kDrive).Hang(true);
    Recall(chain);
    world_->Advance(10'000'000'000);
    MatchRequest match;
    match.chain = Slice(chain);
    client_->Do(&Core::Match, &match);
    std::vector<Code> codes;
    EXPECT_LT(Recall(chain, &codes), 32u);
    const auto first_missing =
        std::find_if(codes.begin(), codes.end(), [](Code code) { return code != Code::kOk; });
    EXPECT_EQ(match.matched, static_cast<size_t>(first_missing - codes.begin()));

    world_->disk(kDrive).Hang(false);
    world_->Advance(5'000'000'000);
    EXPECT_EQ(Recall(chain), 32u);
  }
}

TEST_F(CoreDrivesTest, WhatWasStoredBeforeTheDriveOpenedIsFlushedToIt) {
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

// Of two records of a block the one that was stored last counts, however much the other drive had
// written before it was away.
TEST_F(CoreDrivesTest, ADriveThatWasAwayDoesNotBringBackWhatWasStoredAnew) {
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

// The drive with the later one comes when the other's has been found, and maybe used.
TEST_F(CoreDrivesTest, OfTwoRecordsFromEarlierLivesTheLaterOneCountsWhicheverIsFoundFirst) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  for (const bool used : {false, true}) {
    SCOPED_TRACE(used);
    Make(options);
    const Chain chain(layout_, {.seed = 1, .blocks = 4});
    for (const uint16_t computation : {0, 1}) {
      world_->FailOpeningOf("one", computation == 0);
      world_->FailOpeningOf("two", computation == 1);
      world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1);
      Restart();
      ASSERT_EQ(Store(chain, client_.get(), computation), 4u);
      ASSERT_TRUE(Flush().ok());
    }
    world_->FailOpeningOf("one", true);
    world_->FailOpeningOf("two", false);
    Restart();
    if (used) {
      ASSERT_EQ(Recall(chain), 4u);
    }
    world_->FailOpeningOf("one", false);
    world_->Advance(3'000'000'000);
    EXPECT_EQ(Recall(chain, nullptr, 1), 4u);
    Restart();
    EXPECT_EQ(Recall(chain, nullptr, 1), 4u);
  }
}

// The drive that comes first has the same bytes from an earlier life, so that nothing is written;
// the other has what was stored in between. Which of the two counts matters less than that one
// does.
TEST_F(CoreDrivesTest, WhatADriveHadAlreadyIsNotLostWhenAnotherBringsLaterRecords) {
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  for (const bool in_dram : {true, false}) {
    SCOPED_TRACE(in_dram);
    ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain, 1));
    ASSERT_EQ(Store(chain, client_.get(), 1), 4u);
    ASSERT_TRUE(Flush().ok());
    world_->FailOpeningOf("one", true);
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1);
    Restart();
    ASSERT_EQ(Store(chain), 4u);
    world_->FailOpeningOf("two", false);
    world_->Advance(3'000'000'000);
    ASSERT_TRUE(Flush().ok());
    if (!in_dram) {
      ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 64})), 64u);
      ASSERT_TRUE(Flush().ok());
    }
    world_->FailOpeningOf("one", false);
    world_->Advance(3'000'000'000);
    ASSERT_TRUE(Flush().ok());
    EXPECT_EQ(Recall(chain, nullptr, in_dram ? 0 : 1), 4u);
    Restart();
    EXPECT_EQ(Recall(chain, nullptr, in_dram ? 0 : 1), 4u);
  }
}

// The older one is written once more while the drive with the later one is away: its time to live
// is another, or its segment is needed. It is as old as before.
TEST_F(CoreDrivesTest, AnOldRecordIsNoYoungerForBeingWrittenOnceMore) {
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  for (const bool moved : {false, true}) {
    for (const bool at_start : {false, true}) {
      SCOPED_TRACE(std::to_string(moved) + std::to_string(at_start));
      CoreOptions options = SmallCache();
      options.cache.nvme_bytes = 5 << 20;
      options.cache.nvme_segment_bytes = 512 << 10;
      ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain, 1, options));
      ASSERT_EQ(Store(chain, client_.get(), 1), 4u);
      ASSERT_TRUE(Flush().ok());
      world_->FailOpeningOf("one", true);
      world_->FailOpeningOf("two", false);
      world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1);
      Restart();
      if (moved) {
        PinRequest pin;
        pin.chain = Slice(chain);
        pin.seconds = 1000;
        client_->Do(&Core::Pin, &pin);
        for (uint64_t seed = 2; seed < 40; ++seed) {  // Twice what the drive holds.
          ASSERT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 8})), 8u);
          std::ignore = Flush();  // Some are dropped for others at once.
        }
        ASSERT_GE(Counter("nvme_reclaim_moved_blocks"), 4u);
      } else {
        Hint(chain, 1000);
        ASSERT_TRUE(Flush().ok());
      }
      ASSERT_EQ(Recall(chain), 4u);
      world_->FailOpeningOf("one", false);
      if (at_start) {
        Restart();
      } else {
        world_->Advance(3'000'000'000);
      }
      EXPECT_EQ(Recall(chain, nullptr, 1), 4u);
      Restart();
      EXPECT_EQ(Recall(chain, nullptr, 1), 4u);
    }
  }
}

TEST_F(CoreDrivesTest, ABlockStoredAnewHasItsOwnTimeAlsoWhereADriveBringsTheSameBytesWithLess) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  Hint(chain, 100);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpening(Code::kUnavailable);
  Restart();
  ASSERT_EQ(Store(chain), 4u);
  world_->FailOpening(Code::kOk);
  world_->Advance(3'000'000'000);
  ASSERT_TRUE(Flush().ok());
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1000);
  Restart();
  EXPECT_EQ(Recall(chain), 4u);
}

TEST_F(CoreDrivesTest, ATimeToLiveIsThatOfTheLaterRecordWhicheverIsFoundFirst) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  for (const bool later : {false, true}) {
    world_->FailOpeningOf("one", !later);
    world_->FailOpeningOf("two", later);
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1);
    Restart();
    ASSERT_EQ(Store(chain), 4u);
    if (later) Hint(chain, 100);
    ASSERT_TRUE(Flush().ok());
  }
  world_->FailOpeningOf("one", true);
  world_->FailOpeningOf("two", false);
  Restart();
  ASSERT_EQ(Recall(chain), 4u);
  world_->FailOpeningOf("one", false);
  world_->Advance(3'000'000'000);
  EXPECT_EQ(Recall(chain), 4u);
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 1000);
  EXPECT_EQ(Recall(chain), 0u);
}

// Its sequence is lower than the old record's, on the drive that was away. It may have left DRAM.
TEST_F(CoreDrivesTest, WhatWasStoredAnewCountsAlsoWhereTheCalendarWasSetBackMeanwhile) {
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  for (const bool in_dram : {true, false}) {
    SCOPED_TRACE(in_dram);
    ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain, -3600));
    ASSERT_EQ(Store(chain, client_.get(), 1), 4u);
    ASSERT_TRUE(Flush().ok());
    if (!in_dram) {
      ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 64})), 64u);
      ASSERT_TRUE(Flush().ok());
    }
    world_->FailOpeningOf("two", false);
    world_->Advance(5'000'000'000);
    ASSERT_TRUE(Flush().ok());
    EXPECT_EQ(Recall(chain, nullptr, 1), 4u);
    Restart();
    EXPECT_EQ(Recall(chain, nullptr, 1), 4u);
  }
}

// The other drive may be writing the new records when it comes, or only making a file for them.
TEST_F(CoreDrivesTest, ADriveThatComesLateTakesNothingAwayThatIsBeingStoredAnew) {
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  for (const bool writing : {false, true}) {
    SCOPED_TRACE(writing);
    ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain, 1));
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

// What is being written is of blocks that a reader called damaged. The drive that comes brings what
// it had of them, and gets some of the new records before the whole batch is answered: neither
// counts, and an old record whose place a new one has taken would look damaged.
TEST_F(CoreDrivesTest, ADriveThatComesLateBringsNothingOfWhatIsDroppedWhileItIsWritten) {
  CoreOptions options = SmallCache(256);  // All of the chain may be under way at once.
  options.cache.nvme_segment_bytes = 128 << 10;
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain, 1, options));
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 1})), 1u);
  ASSERT_TRUE(Flush().ok());  // It has made a file.
  world_->disk("one").Hang(true);
  ASSERT_EQ(Store(chain, client_.get(), 1), 40u);
  const auto held = Fetch(chain);
  std::vector<ReleaseOp> damaged;
  for (const FetchOp& op : held->ops) damaged.push_back({.lease = op.lease, .corrupt = true});
  client_->Release(damaged);
  world_->FailOpeningOf("two", false);
  world_->Advance(4'000'000'000);
  const auto fetch = Fetch(chain);
  for (const FetchOp& op : fetch->ops) EXPECT_EQ(op.status.code(), Code::kNotFound);
  world_->disk("one").Hang(false);
  world_->Advance(1'000'000'000);
  EXPECT_EQ(Recall(chain), 0u);
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreDrivesTest, ADriveThatCanBeReadLaterBringsItsBlocks) {
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

TEST_F(CoreDrivesTest, AFullDiskDoesNotStopStores) {
  Make(SmallCache(64));
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kNoSpace);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const Chain chain(layout_, {.seed = seed, .blocks = 32});
    ASSERT_TRUE(world_->RunUntil([&] { return Store(chain) > 0 || Recall(chain) == 32; })) << seed;
    world_->Advance(1'000'000'000);
  }
}

TEST_F(CoreDrivesTest, OneDamagedBlockIsRefusedAndTheOthersAreServed) {
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

// Every single I/O of a small cache's life is once the last one before a crash. What Flush()
// acknowledged is there afterwards, what Evict() acknowledged is not, and nothing is ever wrong.
TEST_F(CoreDrivesTest, ACrashAfterAnyIoLosesNothingAcknowledged) {
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

// A batch is answered when all of it is written; by then the first of it may be gone again.
TEST_F(CoreDrivesTest, WhatIsReclaimedBeforeItsWriteIsAnsweredDoesNotCountAsWritten) {
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

// Each drive alone could take from the tenant what is above its floor.
TEST_F(CoreDrivesTest, TwoDrivesThatReclaimAtOnceDoNotPushATenantBelowItsFloor) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  options.cache.nvme_bytes = 2 << 20;
  options.cache.nvme_segment_bytes = 128 << 10;
  TenantOptions tenant;
  tenant.name = "local";
  tenant.nvme_floor_bytes = 8 * kBlockBytes;
  options.cache.tenants = {tenant};
  Make(options);
  for (uint64_t seed = 100; seed < 114; ++seed) {
    ASSERT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 1})), 1u);
  }
  ASSERT_TRUE(Flush().ok());
  const auto other = AttachAs("other");
  uint64_t least = UINT64_MAX;
  for (uint64_t seed = 2; seed < 20; ++seed) {
    Store(Chain(layout_, {.seed = seed, .blocks = 32, .tenant = "other"}), other.get());
    world_->Advance(1'000'000'000);
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    least = std::min(least, stats.stats.tiers[1].tenant_bytes);
  }
  EXPECT_GE(least, 8 * kBlockBytes);
  EXPECT_LT(least, 14 * kBlockBytes);
}

// It hangs while older records there are marked as replaced. Whoever writes those blocks once more
// is told, and so a deletion of others is answered.
TEST_F(CoreDrivesTest, ADriveThatHangsWhileRecordsAreReplacedHoldsUpNoDeletion) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 32});
  const Chain other(layout_, {.seed = 2, .blocks = 1});
  ASSERT_EQ(Store(chain), 32u);
  ASSERT_TRUE(Flush().ok());
  world_->disk("one").Hang(true);
  Hint(chain, 1000);
  world_->Advance(20'000'000'000);
  ASSERT_EQ(Store(other), 1u);
  EvictRequest evict;
  evict.chain = Slice(other);
  client_->Submit(&Core::Evict, &evict);
  EXPECT_TRUE(world_->RunUntil([&] { return evict.done(); }));
  world_->disk("one").Hang(false);
  world_->Advance(5'000'000'000);
  EXPECT_TRUE(evict.done());
  EXPECT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain), 32u);
}

// Old records are reclaimed while new ones replace them, and the drive goes out of service and
// comes back at any time meanwhile. What it holds in the end is what the cache knows of.
TEST_F(CoreDrivesTest, ADriveThatGoesWhileRecordsAreReplacedHoldsWhatTheCacheKnowsOf) {
  CoreOptions options = SmallCache();
  options.cache.nvme_bytes = 1 << 20;
  options.cache.nvme_segment_bytes = 128 << 10;
  const Chain chain(layout_, {.seed = 1, .blocks = 48});
  const auto live = [&](uint64_t hang_after) {
    Make(options);
    EXPECT_EQ(Store(chain), 48u);
    std::ignore = Flush();
    const uint64_t before = world_->disk(kDrive).requests_done();
    Hint(chain, 100'000);
    world_->disk(kDrive).StopAfter(before + hang_after);
    world_->Advance(7'000'000'000);
    world_->disk(kDrive).StopAfter(UINT64_MAX);
    world_->disk(kDrive).Hang(false);  // What waited goes on.
    world_->Advance(10'000'000'000);
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    EXPECT_EQ(stats.stats.tiers[1].blocks, stats.stats.Counter("nvme_live_blocks"))
        << "request " << hang_after;
    return world_->disk(kDrive).requests_done() - before;
  };
  const uint64_t steps = live(UINT32_MAX);
  ASSERT_GT(steps, 20u);
  for (uint64_t step = 0; step <= steps; ++step) live(step);
}

}  // namespace
}  // namespace aquifer
