#include "plan/lru_stack.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <vector>

#include "gtest/gtest.h"
#include "plan/log_histogram.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

// The same by walking a list.
class WalkedStack {
 public:
  double Depth(uint64_t block) const {
    double depth = 1;
    for (const uint64_t other : order_) {
      if (other == block) return depth;
      ++depth;
    }
    return LruStack::kNever;
  }
  void Touch(const std::vector<uint64_t>& blocks) {
    for (size_t i = blocks.size(); i-- > 0;) {
      order_.remove(blocks[i]);
      order_.push_front(blocks[i]);
    }
  }
  void Rename(uint64_t from, uint64_t to) { std::replace(order_.begin(), order_.end(), from, to); }

 private:
  std::list<uint64_t> order_;
};

TEST(LruStackTest, AChainsHeadLiesAboveItsTail) {
  LruStack stack({});
  stack.Touch(std::vector<uint64_t>{10, 11, 12});
  std::vector<double> depths;
  stack.Look(std::vector<uint64_t>{10, 11, 12, 13}, &depths);
  EXPECT_EQ(depths, (std::vector<double>{1, 2, 3, LruStack::kNever}));
}

TEST(LruStackTest, DepthsAreThoseOfAListThatIsWalked) {
  LruStack stack({});
  WalkedStack walked;
  SeededRandom random(1);
  for (int round = 0; round < 4000; ++round) {
    std::vector<uint64_t> blocks;
    for (uint64_t i = random.Below(6); i > 0; --i) blocks.push_back(random.Below(200));
    for (const uint64_t block : blocks) ASSERT_EQ(stack.Depth(block), walked.Depth(block));
    stack.Touch(blocks);
    walked.Touch(blocks);
    if (round % 7 != 0) continue;
    const uint64_t from = random.Below(200);
    const uint64_t to = 1000 + static_cast<uint64_t>(round);
    if (stack.Rename(from, to)) walked.Rename(from, to);
    ASSERT_EQ(stack.Depth(to), walked.Depth(to));
    ASSERT_EQ(stack.Depth(from), walked.Depth(from));
  }
}

TEST(LruStackTest, ATagIsThatOfTheLastUse) {
  LruStack stack({});
  stack.Touch(std::vector<uint64_t>{1, 2}, 7);
  stack.Touch(std::vector<uint64_t>{2}, 9);
  EXPECT_EQ(stack.Tag(1), 7u);
  EXPECT_EQ(stack.Tag(2), 9u);
  EXPECT_EQ(stack.Tag(3), 0u);
}

TEST(LruStackTest, PastItsLimitItFollowsASampleAndScalesTheDepth) {
  constexpr uint64_t kBlocks = 100'000;
  LruStack stack({.max_tracked = 5000});
  for (uint64_t block = 0; block < kBlocks; ++block) stack.Touch(std::vector<uint64_t>{block});
  EXPECT_FALSE(stack.exact());
  EXPECT_LE(stack.tracked(), 5000u);
  EXPECT_LT(stack.bytes(), size_t{1} << 20);
  EXPECT_NEAR(stack.blocks(), kBlocks, 0.06 * kBlocks);
  int followed = 0;
  for (uint64_t block = 0; block < kBlocks; ++block) {
    const double depth = stack.Depth(block);
    if (depth == LruStack::kUnsampled) continue;
    ++followed;
    const auto right = static_cast<double>(kBlocks - block);
    ASSERT_NEAR(depth, right, 0.06 * kBlocks);
  }
  EXPECT_GT(followed, 2000);
}

TEST(LogHistogramTest, SmallWholeNumbersAreExactAndLargeOnesToAThirdOfAPercent) {
  LogHistogram histogram;
  for (int value = 1; value <= 100'000; ++value) histogram.Add(value);
  EXPECT_DOUBLE_EQ(histogram.UpTo(7), 7);
  EXPECT_DOUBLE_EQ(histogram.UpTo(511), 511);
  EXPECT_NEAR(histogram.UpTo(54'321), 54'321, 200);
  EXPECT_NEAR(histogram.Quantile(0.5), 50'000, 200);
  EXPECT_DOUBLE_EQ(histogram.UpTo(0), 0);
  EXPECT_DOUBLE_EQ(LogHistogram().Quantile(0.5), 0);
}

}  // namespace
}  // namespace aquifer
