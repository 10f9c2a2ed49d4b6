// The NVMe tier's queue is bounded, and whoever fills it must leave the others their part: loads,
// write-down and deletions, and one drive's as another's.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

class TierQueueTest : public CoreFixture {
 protected:
  static CoreOptions ManyBlocks(std::vector<std::string> drives) {
    CoreOptions options = SmallCache(16384);
    options.cache.nvme_bytes = drives.size() * (128 << 20);
    options.cache.nvme_directories = std::move(drives);
    return options;
  }

  TierQueueTest() { zeros_ = true; }

  // On NVMe alone.
  void StoreOnNvme(const std::vector<const Chain*>& chains) {
    for (const Chain* chain : chains) {
      ASSERT_EQ(Store(*chain), chain->size());
      ASSERT_TRUE(Flush().ok());
    }
    Restart();
  }

  std::unique_ptr<FetchRequest> BeginFetch(const Chain& chain,
                                           int64_t timeout_nanos = kDefaultTimeoutNanos) {
    auto fetch = std::make_unique<FetchRequest>();
    fetch->chain = Slice(chain);
    fetch->timeout_nanos = timeout_nanos;
    client_->Submit(&Core::Fetch, fetch.get());
    world_->Run();
    return fetch;
  }
  size_t Served(const FetchRequest& fetch) {
    size_t served = 0;
    for (const FetchOp& op : fetch.ops) served += op.status.ok() ? 1 : 0;
    return served;
  }
  uint64_t AtDrive() { return world_->disk(kDrive).requests_pending(); }
};

// The drive is stopped to see what it has been given.
TEST_F(TierQueueTest, WriteDownLeavesRoomForLoadsAndDeletions) {
  Make(ManyBlocks({kDrive}));
  const Chain wanted(layout_, {.seed = 1, .blocks = 600});
  const Chain deleted(layout_, {.seed = 2, .blocks = 8});
  StoreOnNvme({&wanted, &deleted});
  world_->disk(kDrive).Hang(true);
  const Chain stored(layout_, {.seed = 3, .blocks = 2000});
  ASSERT_EQ(Store(stored), stored.size());
  world_->Run();
  const uint64_t writes = AtDrive();
  ASSERT_GT(writes, 0u);
  EXPECT_LE(world_->core().Snapshot().nvme_queued, 1536u);

  const auto fetch = BeginFetch(wanted);
  const uint64_t with_reads = AtDrive();
  EXPECT_GE(with_reads, writes + 256) << "loads do not reach the drive";
  EvictRequest evict;
  evict.chain = Slice(deleted);
  client_->Submit(&Core::Evict, &evict);
  world_->Run();
  EXPECT_GT(AtDrive(), with_reads) << "a deletion does not reach the drive";

  world_->disk(kDrive).Hang(false);
  ASSERT_TRUE(world_->RunUntil([&] { return fetch->done() && evict.done(); }));
  EXPECT_EQ(Served(*fetch), wanted.size());
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
}

// Its blocks are late, and its reads stay where they are for as long as it likes.
TEST_F(TierQueueTest, WhatHangsAtADriveTakesNoRoomFromTheOthers) {
  Make(ManyBlocks({"one", "two"}));
  const Chain wanted(layout_, {.seed = 1, .blocks = 4000});
  StoreOnNvme({&wanted});
  world_->disk("two").Hang(true);
  // Little by little, each for a short time.
  size_t served = 0;
  for (size_t first = 0; first < wanted.size(); first += 100) {
    FetchRequest fetch;
    fetch.chain = Slice(wanted);
    fetch.chain.keys = wanted.keys(first, 100);
    fetch.timeout_nanos = 10'000'000;
    client_->Do(&Core::Fetch, &fetch);
    served += Served(fetch);
    Release(fetch);
  }
  EXPECT_GT(world_->disk("two").requests_pending(), 1024u);
  EXPECT_GT(served, wanted.size() / 3) << "what the other drive has is not served";
  EXPECT_LT(served, wanted.size());

  const Chain other(layout_, {.seed = 2, .blocks = 100});
  ASSERT_EQ(Store(other), other.size());
  world_->Advance(6'000'000'000);  // It has been given up.
  EXPECT_TRUE(Flush().ok());
  world_->disk("two").Hang(false);
  world_->Advance(3'000'000'000);
  EXPECT_EQ(Recall(wanted), wanted.size());
}

}  // namespace
}  // namespace aquifer
