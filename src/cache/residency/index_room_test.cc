// What happens when the index is full: nothing that is flushed is deleted for it, and stores go on.
#include <gtest/gtest.h>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

class IndexRoomTest : public CoreFixture {
 protected:
  static constexpr size_t kBlocks = 60;

  static CoreOptions WithRoomFor(uint32_t blocks) {
    CoreOptions options = SmallCache(64);
    options.max_blocks = blocks;
    return options;
  }
  // What a start with too small an index leaves on NVMe.
  void StoreAndShrink(const Chain& chain) {
    Make(WithRoomFor(256));
    ASSERT_EQ(Store(chain), kBlocks);
    ASSERT_TRUE(Flush().ok());
    world_->Restart(WithRoomFor(24));
    Attach();
    ASSERT_LE(Recall(chain), 24u);
    world_->Advance(5'000'000'000);
  }
  void Grow() {
    world_->Restart(WithRoomFor(256));
    Attach();
  }
};

TEST_F(IndexRoomTest, ASmallerIndexDeletesNothingThatWasFlushed) {
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  StoreAndShrink(chain);
  Grow();
  EXPECT_EQ(Recall(chain), kBlocks);
}

TEST_F(IndexRoomTest, WhatTheIndexHadNoRoomForIsDeletedWithEverything) {
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  StoreAndShrink(chain);
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  Grow();
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(IndexRoomTest, StoresGoOnWhenTheIndexIsFull) {
  Make(WithRoomFor(100));
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Chain chain(layout_, {.seed = seed, .blocks = 16});
    ASSERT_EQ(Store(chain), 16u) << seed;
    EXPECT_EQ(Recall(chain), 16u) << seed;
    EXPECT_TRUE(Flush().ok()) << seed;
  }
  EXPECT_GT(Counter("dropped_pressure"), 200u);
}

TEST_F(IndexRoomTest, StoresGoOnWhenTheIndexIsFullAndThereIsOnlyDram) {
  CoreOptions options = SmallCache(64, false);
  options.max_blocks = 40;
  Make(options);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Chain chain(layout_, {.seed = seed, .blocks = 16});
    ASSERT_EQ(Store(chain), 16u) << seed;
    EXPECT_EQ(Recall(chain), 16u) << seed;
  }
}

TEST_F(IndexRoomTest, WhatIsLeasedOrPinnedIsNotForgotten) {
  Make(WithRoomFor(40));
  const Chain kept(layout_, {.seed = 1, .blocks = 16});
  ASSERT_EQ(Store(kept), 16u);
  PinRequest pin;
  pin.chain = Slice(kept);
  pin.seconds = 3600;
  client_->Do(&Core::Pin, &pin);
  ASSERT_EQ(pin.pinned, 16u);
  for (uint64_t seed = 2; seed <= 10; ++seed) {
    ASSERT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 16})), 16u) << seed;
    EXPECT_TRUE(Flush().ok());
  }
  EXPECT_EQ(Recall(kept), 16u);
}

// Its blocks are on NVMe too, where it has no floor and they are the oldest.
TEST_F(IndexRoomTest, AnothersBlocksAreForgottenOnlyAboveItsFloorInEveryTier) {
  CoreOptions options = WithRoomFor(60);
  TenantOptions a;
  a.name = "a";
  a.dram_floor_bytes = 16 * kBlockBytes;
  options.cache.tenants = {a};
  Make(options);
  const auto owner = AttachAs("a");
  const Chain kept(layout_, {.seed = 1, .blocks = 16, .tenant = "a"});
  ASSERT_EQ(Store(kept, owner.get()), 16u);
  FlushRequest flush;
  owner->Do(&Core::Flush, &flush);
  ASSERT_TRUE(flush.status.ok());
  for (uint64_t seed = 2; seed <= 10; ++seed) {
    ASSERT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 16})), 16u) << seed;
    EXPECT_TRUE(Flush().ok());
  }
  FetchRequest fetch;
  fetch.chain = Slice(kept);
  owner->Do(&Core::Fetch, &fetch);
  for (const FetchOp& op : fetch.ops) EXPECT_TRUE(op.status.ok()) << op.status.ToString();
}

}  // namespace
}  // namespace aquifer
