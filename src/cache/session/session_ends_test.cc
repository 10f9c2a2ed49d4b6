// What is forgotten or not asked about where sessions of their own class are many. What they do in
// general is in core_durable_sessions_test.cc.
#include "cache/session/session_ends.h"

#include <gtest/gtest.h>

#include <string>

#include "testing/cache/core_durable_fixture.h"

namespace aquifer {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kBlocks = 6;

// The tenant's class is not durable; sessions are, by their hints.
class SessionEndsTest : public CoreDurableFixture {
 protected:
  static CoreOptions With(const SessionEndsBounds& bounds) {
    CoreOptions options = SmallCache(128, /*nvme=*/false);
    options.session_ends = bounds;
    return options;
  }
  Chain Session(uint64_t number) const {
    return Chain(layout_, {.seed = number, .blocks = kBlocks});
  }
  void StoreAndHint(uint64_t count) {
    for (uint64_t number = 1; number <= count; ++number) {
      ASSERT_EQ(Store(Session(number)), kBlocks);
      NameSession(Session(number), std::to_string(number), Durability::kDurable);
    }
    ASSERT_TRUE(Flush().ok());
  }
  // On another node, which knows of none of them, while nobody can say where they end.
  void BeginElsewhere(const SessionEndsBounds& bounds, uint64_t count) {
    MakeDurable(With({}));
    ASSERT_NO_FATAL_FAILURE(StoreAndHint(count));
    MakeAnother(With(bounds));
    for (uint64_t number = 1; number <= count; ++number) {
      ASSERT_EQ(Recall(Session(number)), kBlocks);
    }
    tier_->SetInService(false);
  }
  void ComeBack() {
    tier_->SetInService(true);
    world_->Advance(30 * kSecond);
  }
  size_t DurableBehind(const Chain& chain) const { return BlobsOf(chain) - kBlocks; }
};

TEST_F(SessionEndsTest, PastTheMostTheOldestEndIsForgotten) {
  MakeDurable(With({.max_ends = 2}));
  ASSERT_NO_FATAL_FAILURE(StoreAndHint(3));
  store_.notes.clear();  // Nobody else knows either.
  const Chain third = Session(3).Fork(kBlocks, 9, 2);
  const Chain first = Session(1).Fork(kBlocks, 9, 2);
  ASSERT_EQ(Store(third), 2u);
  ASSERT_EQ(Store(first), 2u);
  world_->Advance(30 * kSecond);
  EXPECT_EQ(DurableBehind(third), 2u);
  EXPECT_EQ(DurableBehind(first), 0u);
  NameSession(first, "1", Durability::kDurable);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(DurableBehind(first), 2u) << "the next hint says it again";
}

TEST_F(SessionEndsTest, WhereTooManyEndsAreAskedAboutNobodyIsAskedAboutTheNext) {
  ASSERT_NO_FATAL_FAILURE(BeginElsewhere({.max_asked = 1}, 2));
  const Chain first = Session(1).Fork(kBlocks, 9, 2);
  const Chain second = Session(2).Fork(kBlocks, 9, 2);
  ASSERT_EQ(Store(first), 2u);
  ASSERT_EQ(Store(second), 2u);
  ComeBack();
  EXPECT_EQ(DurableBehind(first), 2u);
  EXPECT_EQ(DurableBehind(second), 0u);
}

TEST_F(SessionEndsTest, WhereTooManyBlocksGoOnFromAnEndTheOthersStayWhatTheyAre) {
  ASSERT_NO_FATAL_FAILURE(BeginElsewhere({.max_following = 5}, 1));
  const Chain chain = Session(1).Fork(kBlocks, 9, 10);
  ASSERT_EQ(Store(chain), 10u);
  ComeBack();
  EXPECT_EQ(DurableBehind(chain), 3u);  // The end itself counts, and one is kept free.
}

TEST_F(SessionEndsTest, NoEndOutlivesTheDeletionOfAllThatTheTenantHas) {
  constexpr uint64_t kEnds = 200;  // More than are forgotten at a time.
  CoreOptions options = SmallCache(256, /*nvme=*/false);
  MakeDurable(options);
  const Chain chain(layout_, {.seed = 1, .blocks = kEnds});
  ASSERT_EQ(Store(chain), kEnds);
  for (uint64_t i = 1; i <= kEnds; ++i) {
    NameSession(Chain(layout_, {.seed = 1, .blocks = i}), std::to_string(i), Durability::kDurable);
  }
  ASSERT_TRUE(Flush().ok());
  ASSERT_EQ(BlobsOf(chain), kEnds);
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  ASSERT_TRUE(evict.status.ok()) << evict.status.ToString();
  ASSERT_EQ(Store(chain), kEnds);
  world_->Advance(30 * kSecond);
  EXPECT_EQ(BlobsOf(chain), 0u);
}

}  // namespace
}  // namespace aquifer
