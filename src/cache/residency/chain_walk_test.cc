#include "cache/residency/chain_walk.h"

#include <vector>

#include "testing/cache/residency_fixture.h"

namespace aquifer {
namespace {

class ChainWalkTest : public ResidencyFixture {
 protected:
  std::vector<Key> Keys(size_t max, BlockName* next, bool* whole) {
    std::vector<Key> keys;
    more_ = walk_.Keys(max, next, &keys, whole);
    return keys;
  }

  const ChainWalk walk_{residency_.get()};
  bool more_ = false;
};

TEST_F(ChainWalkTest, AChainIsWalkedFromItsEndInSlices) {
  for (uint32_t i = 0; i < 5; ++i) AddResident(i);
  BlockName next = NameOf(4);
  bool whole = false;
  EXPECT_EQ(Keys(3, &next, &whole), (std::vector{KeyOf(4), KeyOf(3), KeyOf(2)}));
  EXPECT_TRUE(more_);
  EXPECT_FALSE(whole);
  EXPECT_EQ(Keys(3, &next, &whole), (std::vector{KeyOf(1), KeyOf(0)}));
  EXPECT_FALSE(more_);
  EXPECT_TRUE(whole);
}

TEST_F(ChainWalkTest, AWalkEndsWhereNothingIsKnown) {
  for (uint32_t i = 2; i < 5; ++i) AddResident(i);
  BlockName next = NameOf(4);
  bool whole = true;
  EXPECT_EQ(Keys(10, &next, &whole).size(), 3u);
  EXPECT_FALSE(more_);
  EXPECT_FALSE(whole);
}

TEST_F(ChainWalkTest, AWalkGoesThroughBlocksThatAreGoneWhereASessionEndsBelow) {
  residency_->WantLink(NameOf(2));
  for (uint32_t i = 0; i < 3; ++i) AddResident(i);
  residency_->Drop(residency_->index().Find(NameOf(2)), Leave::kCorrupt);
  std::vector<BlockRef> refs;
  BlockName next = NameOf(2);
  walk_.Up(10, &next, [&](BlockRef ref, const Key&, uint32_t) { refs.push_back(ref); });
  ASSERT_EQ(refs.size(), 3u);
  EXPECT_EQ(refs[0], BlockRef{kNoBlock});
  EXPECT_NE(refs[1], BlockRef{kNoBlock});
}

TEST_F(ChainWalkTest, BlocksOfOtherChainsBelowAreSeen) {
  AddResident(0);
  AddResident(1);
  EXPECT_EQ(walk_.HasOtherBelow(NameOf(0), KeyOf(1)), false);
  EXPECT_EQ(walk_.HasOtherBelow(NameOf(0), KeyOf(9)), true);
  EXPECT_EQ(walk_.HasOtherBelow(NameOf(0), std::nullopt), false) << "one alone is no other";
  EXPECT_EQ(walk_.HasOtherBelow(NameOf(1), std::nullopt), false);
}

TEST_F(ChainWalkTest, ANotedBlockIsHeldOnlyAsLongAsItIsTheSame) {
  const BlockRef ref = AddResident(0);
  const NotedBlock noted = walk_.Note(ref);
  EXPECT_TRUE(walk_.Holds(noted));
  residency_->Drop(ref, Leave::kAsked);
  EXPECT_FALSE(walk_.Holds(noted));
  NotedBlock taken = noted;
  taken.ref = AddResident(5);
  EXPECT_FALSE(walk_.Holds(taken)) << "the ref is another block's";
}

}  // namespace
}  // namespace aquifer
