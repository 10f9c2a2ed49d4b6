#include "block/codec/plane_overlap.h"

#include <gtest/gtest.h>

#include <vector>

#include "testing/seeded_random.h"

namespace aquifer {
namespace {

// Marks every byte of the set; false when one was marked before.
bool Mark(const StridedSet& set, std::vector<bool>* bytes) {
  bool fresh = true;
  for (uint64_t i = 0; i < set.axes[0].count; ++i) {
    for (uint64_t j = 0; j < set.axes[1].count; ++j) {
      for (uint64_t k = 0; k < set.axes[2].count; ++k) {
        const uint64_t at =
            set.base + i * set.axes[0].stride + j * set.axes[1].stride + k * set.axes[2].stride;
        for (uint64_t byte = at; byte < at + set.run_bytes; ++byte) {
          if (byte >= bytes->size()) bytes->resize(byte + 1);
          if ((*bytes)[byte]) fresh = false;
          (*bytes)[byte] = true;
        }
      }
    }
  }
  return fresh;
}

TEST(PlaneOverlapTest, AnExtentThatIsNoNumberIsSaidToBeTheLargest) {
  EXPECT_EQ((StridedSet{0, 16, {{{4, 100}, {2, 1000}, {1, UINT64_MAX}}}}).Extent(), 1316u);
  EXPECT_EQ((StridedSet{0, 16, {{{UINT64_MAX, 2}, {}, {}}}}).Extent(), UINT64_MAX);
  EXPECT_EQ((StridedSet{0, 16, {{{2, UINT64_MAX}, {}, {}}}}).Extent(), UINT64_MAX);
  EXPECT_EQ((StridedSet{0, 16, {{{0, 16}, {}, {}}}}).Extent(), UINT64_MAX);
  EXPECT_FALSE((StridedSet{0, 16, {{{2, UINT64_MAX}, {}, {}}}}).Nested());
}

TEST(PlaneOverlapTest, NestedSetsNeverMeetThemselves) {
  SeededRandom random(1);
  int nested = 0;
  for (int round = 0; round < 3000; ++round) {
    StridedSet set{.base = 0, .run_bytes = 1 + random.Below(6), .axes = {}};
    for (auto& axis : set.axes) axis = {1 + random.Below(4), random.Below(60)};
    std::vector<bool> bytes;
    if (!set.Nested()) continue;
    ++nested;
    EXPECT_TRUE(Mark(set, &bytes));
  }
  EXPECT_GT(nested, 500);
}

TEST(PlaneOverlapTest, SetsOfEqualStridesAreToldApartExactly) {
  SeededRandom random(2);
  int counts[2] = {};
  for (int round = 0; round < 20000; ++round) {
    StridedSet first{.base = random.Below(200), .run_bytes = 1 + random.Below(6), .axes = {}};
    for (auto& axis : first.axes) axis = {1 + random.Below(4), random.Below(60)};
    StridedSet second = first;
    second.base = random.Below(200);
    second.run_bytes = 1 + random.Below(6);
    if (!first.Nested() || !second.Nested()) continue;
    std::vector<bool> bytes;
    Mark(first, &bytes);
    const bool overlap = !Mark(second, &bytes);
    counts[overlap ? 1 : 0] += 1;
    const StridedSet sets[] = {first, second};
    EXPECT_EQ(FindOverlap(sets).has_value(), overlap);
  }
  EXPECT_GT(counts[0], 500);
  EXPECT_GT(counts[1], 500);
}

TEST(PlaneOverlapTest, SetsOfOtherStridesAreNeverSaidToBeApartWhenTheyMeet) {
  SeededRandom random(3);
  int apart = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<StridedSet> sets(3);
    const StridedSet::Axis pages = {1 + random.Below(4), 20 + random.Below(100)};
    for (StridedSet& set : sets) {
      set = {
          .base = random.Below(300), .run_bytes = 1 + random.Below(6), .axes = {{pages, {}, {}}}};
      for (size_t i = 1; i < 3; ++i) set.axes[i] = {1 + random.Below(3), random.Below(12)};
    }
    if (!sets[0].Nested() || !sets[1].Nested() || !sets[2].Nested()) continue;
    const auto found = FindOverlap(sets);
    if (found.has_value()) {
      EXPECT_LT(found->first, found->second);
      continue;
    }
    ++apart;
    std::vector<bool> bytes;
    for (const StridedSet& set : sets) EXPECT_TRUE(Mark(set, &bytes));
  }
  EXPECT_GT(apart, 500);
}

}  // namespace
}  // namespace aquifer
