// What was deleted, or has had its time, does not come back.
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

using CoreDeletionTest = CoreFixture;

// A deletion that cannot be finished while a drive is out, of a block that is stored once more.
TEST_F(CoreDeletionTest, ABlockThatWaitsForItsDeletionHoldsNobodyElseUp) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  Make(options);
  world_->FailOpeningOf("two", true);
  Restart();
  const Chain deleted(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(deleted), 4u);
  const auto evict = Evict(deleted);
  EXPECT_EQ(evict->status.code(), Code::kUnavailable);
  ASSERT_EQ(Store(deleted), 4u);
  const Chain other(layout_, {.seed = 2, .blocks = 4});
  ASSERT_EQ(Store(other), 4u);
  world_->Advance(1'000'000'000);
  Restart();
  EXPECT_EQ(Recall(other), 4u);
}

TEST_F(CoreDeletionTest, WhatWasDeletedBeforeTheDriveOpenedDoesNotComeBack) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpening(Code::kUnavailable);
  Restart();
  const auto evict = Evict(chain);
  EXPECT_EQ(evict->status.code(), Code::kUnavailable);
  world_->FailOpening(Code::kOk);
  world_->Advance(3'000'000'000);
  EXPECT_EQ(Recall(chain), 0u);
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreDeletionTest, EveryDeletedBlockOfALongChainIsCounted) {
  Make(SmallCache(256));
  const Chain chain(layout_, {.seed = 1, .blocks = 200});
  ASSERT_EQ(Store(chain), 200u);
  // Others call in between, which drops what hangs below nothing any more.
  world_->after_task = [this] { std::ignore = world_->core().Release(client_->number(), {}); };
  const auto evict = Evict(chain);
  world_->after_task = nullptr;
  EXPECT_TRUE(evict->status.ok()) << evict->status.ToString();
  EXPECT_EQ(evict->evicted, 200u);
}

TEST_F(CoreDeletionTest, ABlockStoredAgainWhileItsDeletionIsUnderWayStays) {
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

TEST_F(CoreDeletionTest, ABlockEvictedWhileItIsBeingWrittenDoesNotComeBack) {
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

TEST_F(CoreDeletionTest, EverythingIsDeletedOnceAtATimeForEachTenant) {
  Make(SmallCache(512, false));
  const Chain chain(layout_, {.seed = 1, .blocks = 256});  // More than a slice.
  EvictRequest first;
  EvictRequest second;
  EvictRequest others;
  for (EvictRequest* const evict : {&first, &second, &others}) evict->everything = true;
  ASSERT_EQ(Store(chain), chain.size());
  client_->Submit(&Core::Evict, &first);
  ASSERT_FALSE(first.done());
  client_->Do(&Core::Evict, &second);
  EXPECT_EQ(second.status.code(), Code::kBusy);
  AttachAs("other")->Do(&Core::Evict, &others);
  EXPECT_TRUE(others.status.ok());
  ASSERT_TRUE(world_->RunUntil([&first] { return first.done(); }));
  EXPECT_EQ(first.evicted, chain.size());
  // One whose client is gone stands in nobody's way.
  ASSERT_EQ(Store(chain), chain.size());
  EvictRequest left;
  left.everything = true;
  const auto leaving = AttachAs("local");
  leaving->Submit(&Core::Evict, &left);
  ASSERT_FALSE(left.done());
  leaving->Detach();
  client_->Do(&Core::Evict, &second);
  EXPECT_TRUE(second.status.ok()) << second.status.ToString();
}

// The drive holds an older record of what is deleted from memory while it cannot be read.
TEST_F(CoreDeletionTest, WhatWasDeletedFromMemoryDoesNotComeBackWithTheDrive) {
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

// Nobody knows of the older record then: the block itself may be dropped before it is written.
TEST_F(CoreDeletionTest, ADriveThatComesLateLeavesNothingBehindOfWhatCouldNotBeStoredAnew) {
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_NO_FATAL_FAILURE(StoreWhereADriveIsAwayThen(chain, 1));
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
TEST_F(CoreDeletionTest, EverythingThatWasDeletedIsGoneAlsoFromADriveThatComesMeanwhile) {
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
    world_->Advance(60'000'000'000);  // In a core that nobody asks, tasks are rare.
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

// Its record is on a drive before its batch is answered, and is found with those of a drive that
// comes just then.
TEST_F(CoreDeletionTest, ABlockThatIsDroppedWhileItIsWrittenIsNotTakenOverFromItsOwnRecord) {
  CoreOptions options = SmallCache();
  options.cache.nvme_directories = {"one", "two"};
  options.cache.nvme_segment_bytes = 128 << 10;
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  for (size_t tasks = 0; tasks < 60; ++tasks) {
    SCOPED_TRACE(tasks);
    Make(options);
    world_->FailOpeningOf("two", true);
    Restart();
    world_->disk("one").Hang(true);
    ASSERT_EQ(Store(chain), 40u);
    FetchRequest fetch;
    fetch.chain = Slice(chain);
    client_->Do(&Core::Fetch, &fetch);
    std::vector<ReleaseOp> leases;
    for (const FetchOp& op : fetch.ops) leases.push_back({.lease = op.lease, .corrupt = true});
    client_->Release(leases);
    world_->after_task = [&, left = tasks]() mutable {
      world_->disk("one").Hang(left == 0);
      if (left > 0) --left;
    };
    world_->FailOpeningOf("two", false);
    world_->Advance(4'000'000'000);
    world_->after_task = nullptr;
    world_->disk("one").Hang(false);
    world_->Advance(2'000'000'000);
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    EXPECT_EQ(stats.stats.tiers[1].blocks, 0u);
    EXPECT_EQ(stats.stats.Counter("nvme_live_blocks"), 0u);
  }
}

TEST_F(CoreDeletionTest, ATimeToLiveGivenLaterHoldsAfterARestart) {
  Make(SmallCache());
  const Chain in_dram(layout_, {.seed = 1, .blocks = 4});
  const Chain on_nvme(layout_, {.seed = 2, .blocks = 4});
  ASSERT_EQ(Store(on_nvme), 4u);
  ASSERT_TRUE(Flush().ok());
  Restart();  // Now it is on NVMe alone.
  ASSERT_EQ(Store(in_dram), 4u);
  ASSERT_TRUE(Flush().ok());
  for (const Chain* chain : {&in_dram, &on_nvme}) {
    Hint(*chain, 60);
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

// The old record stays until the new one is there, and never comes back after it. Once a flush that
// was asked for after the hint has ended well, the time to live is on the drive, wherever the
// blocks were: in DRAM, on NVMe alone, or being written without it.
TEST_F(CoreDeletionTest, ATimeToLiveGivenLaterLosesNothingWhateverIoIsTheLast) {
  enum class Where : uint8_t { kDram, kNvme, kOnTheWay };
  for (const Where where : {Where::kDram, Where::kNvme, Where::kOnTheWay}) {
    const size_t blocks = where == Where::kNvme ? 70 : 3;  // The hint takes two slices.
    const Chain chain(layout_, {.seed = 1, .blocks = blocks});
    const auto live = [&](uint64_t stop_after) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(where) << ", " << stop_after);
      Make(SmallCache(128));
      if (where == Where::kOnTheWay) world_->disk(kDrive).Hang(true);
      EXPECT_EQ(Store(chain), blocks);
      if (where != Where::kOnTheWay) {
        EXPECT_TRUE(Flush().ok());
      }
      if (where == Where::kNvme) Restart();
      const uint64_t before = world_->disk(kDrive).requests_done();
      world_->disk(kDrive).StopAfter(before + stop_after);
      Hint(chain, 60);
      FlushRequest flush;
      flush.timeout_nanos = 100'000'000;
      client_->Submit(&Core::Flush, &flush);
      world_->disk(kDrive).Hang(false);
      EXPECT_TRUE(world_->RunUntil([&flush] { return flush.done(); }));
      const uint64_t requests = world_->disk(kDrive).requests_done() - before;
      Restart();
      if (where != Where::kOnTheWay || flush.status.ok()) {
        EXPECT_EQ(Recall(chain), blocks);
      }
      world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 61);
      Restart();
      if (flush.status.ok()) {
        EXPECT_EQ(Recall(chain), 0u);
      }
      return requests;
    };
    const uint64_t steps = live(1000);
    ASSERT_GT(steps, 3u);
    for (uint64_t step = 0; step <= steps; ++step) live(step);
  }
}

TEST_F(CoreDeletionTest, AFlushWaitsForTimesToLiveOfBlocksThatLeaveDramFirst) {
  Make(SmallCache(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 48});
  ASSERT_EQ(Store(chain), 48u);
  ASSERT_TRUE(Flush().ok());
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kNoSpace);
  Hint(chain, 60);
  world_->Advance(100'000'000);
  EXPECT_EQ(Counter("write_down_waiting"), 48u);
  const Chain other(layout_, {.seed = 2, .blocks = 24});
  ASSERT_EQ(Store(other), 24u);
  EXPECT_EQ(Counter("demoted_blocks"), 8u);
  const auto leased = Fetch(other);  // Nothing of it makes room.
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kOk);
  const Status flushed = Flush();
  EXPECT_TRUE(flushed.ok()) << flushed.ToString();
  world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + 61);
  Restart();
  EXPECT_EQ(Counter("blocks"), 24u);
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreDeletionTest, ADeletionDoesNotWaitForAWriteThatHangs) {
  Make(SmallCache());
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 1})), 1u);
  ASSERT_TRUE(Flush().ok());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  world_->disk(kDrive).Hang(true);
  ASSERT_EQ(Store(chain), 8u);
  world_->Advance(10'000'000'000);  // Out of service by now.
  EXPECT_EQ(Evict(chain)->status.code(), Code::kUnavailable);
  EXPECT_EQ(Evict(chain)->status.code(), Code::kUnavailable);
  world_->disk(kDrive).Hang(false);
  world_->Advance(5'000'000'000);
  EXPECT_TRUE(Evict(chain)->status.ok());
  Restart();
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreDeletionTest, WhatWaitsForADriveIsBoundedAndNothingPromisedIsLost) {
  CoreOptions options = SmallCache(256);
  options.max_deletions_remembered_per_tenant = 50;
  options.max_deletions_remembered = 60;
  Make(options);
  const Chain first(layout_, {.seed = 1, .blocks = 40});
  const Chain second(layout_, {.seed = 2, .blocks = 40});
  ASSERT_EQ(Store(first), 40u);
  ASSERT_EQ(Store(second), 40u);
  ASSERT_TRUE(Flush().ok());
  world_->FailOpening(Code::kUnavailable);
  Restart();
  EXPECT_EQ(Evict(first)->status.code(), Code::kUnavailable);
  EXPECT_EQ(Evict(first)->status.code(), Code::kUnavailable);  // It is remembered once.
  EXPECT_EQ(Counter("pending_erasures"), 40u + 1);             // And one for the tenant's marks.
  ASSERT_EQ(Store(second), 40u);
  const auto refused = Evict(second);
  EXPECT_EQ(refused->status.code(), Code::kBusy) << refused->status.ToString();
  EXPECT_NE(refused->status.message().find("30 of these blocks"), std::string::npos);
  EXPECT_EQ(Recall(second), 0u);  // From memory they are gone all the same.
  EXPECT_EQ(Counter("pending_erasures"), 50u + 1);
  const auto other = AttachAs("other");
  EvictRequest of_other;
  const Chain others(layout_, {.seed = 1, .blocks = 40, .tenant = "other"});
  of_other.chain = Slice(others);
  other->Do(&Core::Evict, &of_other);
  EXPECT_EQ(of_other.status.code(), Code::kBusy);
  EXPECT_EQ(Counter("pending_erasures"), 60u + 2);
  EvictRequest everything;  // Needs no list.
  everything.everything = true;
  other->Do(&Core::Evict, &everything);
  EXPECT_EQ(everything.status.code(), Code::kUnavailable);

  world_->FailOpening(Code::kOk);
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Counter("pending_erasures"), 0u);
  EXPECT_EQ(Recall(first), 0u);
  EXPECT_EQ(Recall(second), 30u);
  EXPECT_TRUE(Evict(second)->status.ok());
  Restart();
  EXPECT_EQ(Recall(first), 0u);
  EXPECT_EQ(Recall(second), 0u);
}

TEST_F(CoreDeletionTest, WhatNoDriveCanHoldIsNotRemembered) {
  Make(SmallCache(256));
  const Chain there(layout_, {.seed = 1, .blocks = 40});
  const Chain nowhere(layout_, {.seed = 2, .blocks = 1000});
  ASSERT_EQ(Store(there), 40u);
  ASSERT_TRUE(Flush().ok());
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kUnavailable);
  EXPECT_TRUE(Evict(nowhere)->status.ok());
  // The marks of these are not on the drive yet, and so no deletion is certain.
  EXPECT_EQ(Evict(there)->status.code(), Code::kUnavailable);
  EXPECT_EQ(Evict(nowhere)->status.code(), Code::kUnavailable);
  EXPECT_LE(Counter("pending_erasures"), 1u);
  // What is stored again waits for no mark.
  ASSERT_EQ(Store(there), 40u);
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kOk);
  world_->Advance(5'000'000'000);
  EXPECT_TRUE(Evict(nowhere)->status.ok());
  ASSERT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(there), 40u);
}

}  // namespace
}  // namespace aquifer
