// A tenant's ceiling in DRAM bounds the extents that it has, whatever sizes its blocks are.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "testing/core_fixture.h"

namespace aquifer {
namespace {

class CeilingTest : public CoreFixture {
 protected:
  // Four extents, of which tenant "a" may have one.
  void MakeWithCeiling() {
    CoreOptions options = SmallCache(64, false);
    TenantOptions a;
    a.name = "a";
    a.dram_ceiling_bytes = options.extent_bytes;
    options.cache.tenants = {a};
    Make(options);
    a_ = AttachAs("a");
  }

  std::unique_ptr<ReserveRequest> ReserveOfSize(uint64_t bytes) {
    RegisterLayoutRequest registered;
    registered.layout = LayoutOfBytes(bytes);
    a_->Do(&Core::RegisterLayout, &registered);
    EXPECT_TRUE(registered.status.ok());
    const Chain chain(registered.layout, {.seed = 1, .blocks = 1, .tenant = "a"});
    auto reserve = std::make_unique<ReserveRequest>();
    reserve->chain = {.layout = registered.handle, .group = 0, .part = 0, .keys = chain.keys()};
    reserve->parent = chain.parent(0);
    a_->Do(&Core::Reserve, reserve.get());
    return reserve;
  }

  // What another tenant can have: 48 blocks are three extents.
  size_t StoredByOther() {
    const auto b = AttachAs("b");
    return Store(Chain(layout_, {.seed = 3, .blocks = 48, .tenant = "b"}), b.get());
  }

  std::unique_ptr<ManualClient> a_;
};

TEST_F(CeilingTest, BlocksOfSeveralSizesDoNotTakeAnExtentEach) {
  MakeWithCeiling();
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].outcome, ReserveOutcome::kSlot);
  for (const uint64_t bytes : {8192, 12288, 16384}) {
    const auto reserve = ReserveOfSize(bytes);
    EXPECT_EQ(reserve->ops[0].outcome, ReserveOutcome::kRefused);
    EXPECT_EQ(reserve->ops[0].refusal, Refusal::kQuota);
  }
  EXPECT_EQ(StoredByOther(), 48u);
}

TEST_F(CeilingTest, ItsOwnExtentIsEmptiedForAnotherSize) {
  MakeWithCeiling();
  const Chain old(layout_, {.seed = 5, .blocks = 4, .tenant = "a"});
  ASSERT_EQ(Store(old, a_.get()), 4u);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].refusal, Refusal::kWarming);
  world_->Advance(1'000'000'000);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].outcome, ReserveOutcome::kSlot);
  EXPECT_EQ(StoredByOther(), 48u);
}

TEST_F(CeilingTest, AnEmptyExtentOfItsOwnGivesWayAtOnce) {
  MakeWithCeiling();
  const auto reserve = ReserveOfSize(8192);
  ASSERT_EQ(reserve->ops[0].outcome, ReserveOutcome::kSlot);
  a_->Abort(std::vector<ReservationId>{reserve->ops[0].reservation});
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].refusal, Refusal::kWarming);
  world_->Advance(1'000'000'000);
  EXPECT_EQ(ReserveOfSize(4096)->ops[0].outcome, ReserveOutcome::kSlot);
  EXPECT_EQ(StoredByOther(), 48u);
}

}  // namespace
}  // namespace aquifer
