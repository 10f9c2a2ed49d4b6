// What is brought to DRAM ahead of a fetch is a guess: it is metered, and may not take everything.
#include <gtest/gtest.h>

#include <memory>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

class PrestageTest : public CoreFixture {
 protected:
  // A chain that only NVMe has, behind `newer` blocks that came after it.
  Chain OnNvme(size_t blocks, size_t newer) {
    Chain chain(layout_, {.seed = 1, .blocks = blocks});
    EXPECT_EQ(Store(chain), blocks);
    EXPECT_TRUE(Flush().ok());
    Restart();
    if (newer > 0) {
      EXPECT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = newer})), newer);
      EXPECT_TRUE(Flush().ok());
    }
    return chain;
  }

  std::unique_ptr<PrestageRequest> Prestage(const Chain& chain) {
    auto prestage = std::make_unique<PrestageRequest>();
    prestage->chain = Slice(chain);
    client_->Do(&Core::Prestage, prestage.get());
    return prestage;
  }

  uint64_t UnfetchedBlocks() { return Counter("prestaged_unfetched_bytes") / kBlockBytes; }
  uint64_t InVainBlocks() { return Counter("prestaged_in_vain_bytes") / kBlockBytes; }
};

TEST_F(PrestageTest, WhatIsFreeMayBeTakenAndAFetchMakesItNoGuess) {
  Make(SmallCache(32));
  const Chain chain = OnNvme(30, 0);
  const auto prestage = Prestage(chain);
  EXPECT_TRUE(prestage->status.ok()) << prestage->status.ToString();
  EXPECT_EQ(prestage->staged, 30u);
  EXPECT_EQ(UnfetchedBlocks(), 30u);
  EXPECT_EQ(Prestage(chain)->staged, 30u);  // Counted once.
  EXPECT_EQ(UnfetchedBlocks(), 30u);
  EXPECT_EQ(Recall(chain), 30u);
  EXPECT_EQ(UnfetchedBlocks(), 0u);
  EXPECT_EQ(InVainBlocks(), 0u);
}

TEST_F(PrestageTest, NoMoreThanHalfIsTakenFromOthers) {
  Make(SmallCache(32));
  const Chain chain = OnNvme(30, 32);
  const auto prestage = Prestage(chain);
  EXPECT_EQ(prestage->status.code(), Code::kNoSpace) << prestage->status.ToString();
  EXPECT_EQ(prestage->found, 30u);
  EXPECT_EQ(prestage->staged, 16u);
  EXPECT_EQ(UnfetchedBlocks(), 16u);
  EXPECT_EQ(Recall(chain), 30u);
  EXPECT_EQ(UnfetchedBlocks(), 0u);
}

TEST_F(PrestageTest, WhatLeavesUnfetchedWasInVain) {
  Make(SmallCache(32));
  const Chain chain = OnNvme(10, 0);
  ASSERT_EQ(Prestage(chain)->staged, 10u);
  ASSERT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 32})), 32u);
  EXPECT_EQ(UnfetchedBlocks(), 0u);
  EXPECT_EQ(InVainBlocks(), 10u);
}

TEST_F(PrestageTest, WhatCouldNotBeLoadedIsNotCounted) {
  Make(SmallCache(32));
  const Chain chain = OnNvme(10, 0);
  ASSERT_TRUE(Evict(chain)->status.ok());
  EXPECT_EQ(Prestage(chain)->staged, 0u);
  EXPECT_EQ(UnfetchedBlocks(), 0u);
}

}  // namespace
}  // namespace aquifer
