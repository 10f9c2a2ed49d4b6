// What happens when the index is full: nothing that is flushed is deleted for it, and stores go on.
#include <gtest/gtest.h>

#include "testing/core_fixture.h"

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

}  // namespace
}  // namespace aquifer
