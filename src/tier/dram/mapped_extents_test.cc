// Extents that other processes have mapped: they are asked back before they are closed, and stay
// charged until the last of them has let go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tier/dram/dram_pool_fixture.h"

namespace aquifer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MappedExtentsTest : public DramPoolFixture {
 protected:
  void MakeReadyAndListen(uint64_t extents) {
    MakeReady(extents);
    pool_->on_wanted_back = [this](uint32_t extent) { wanted_.push_back(extent); };
  }
  size_t ExtentCount() const { return pool_->Extents().size(); }

  std::vector<uint32_t> wanted_;
};

TEST_F(MappedExtentsTest, ASlotLiesWhereItsPlaceSays) {
  MakeReadyAndListen(1);
  const SlotId first = MustAllocate(1, 3 * kPage);
  const SlotId second = MustAllocate(1, 3 * kPage);
  EXPECT_EQ(pool_->PlaceOf(first).extent, pool_->SlotExtent(first));
  EXPECT_EQ(pool_->PlaceOf(second).extent, pool_->SlotExtent(second));
  const auto apart = pool_->SlotBytes(second).data() - pool_->SlotBytes(first).data();
  EXPECT_EQ(static_cast<int64_t>(pool_->PlaceOf(second).offset) -
                static_cast<int64_t>(pool_->PlaceOf(first).offset),
            apart);
}

TEST_F(MappedExtentsTest, ARetiredOneIsAskedBackOnceItIsEmptyAndClosedWhenAllHaveReturnedIt) {
  MakeReadyAndListen(2);
  const SlotId slot = MustAllocate(1, kPage);
  const uint32_t extent = pool_->SlotExtent(slot);
  pool_->AddMapper(extent);
  pool_->AddMapper(extent);
  pool_->Retire(extent);
  EXPECT_THAT(wanted_, IsEmpty());  // The slot is in use.
  pool_->Free(slot);
  EXPECT_THAT(wanted_, ElementsAre(extent));
  pool_->RemoveMapper(extent);
  Settle();
  EXPECT_EQ(ExtentCount(), 1u);
  EXPECT_EQ(extents_.outstanding(), 2u) << "still charged";
  pool_->RemoveMapper(extent);
  Settle();
  EXPECT_EQ(ExtentCount(), 0u);
  EXPECT_THAT(wanted_, ElementsAre(extent)) << "asked once";
}

TEST_F(MappedExtentsTest, OneThatIsReturnedWhileASlotIsInUseClosesWithTheSlot) {
  MakeReadyAndListen(1);
  const SlotId slot = MustAllocate(1, kPage);
  const uint32_t extent = pool_->SlotExtent(slot);
  pool_->AddMapper(extent);
  pool_->Retire(extent);
  pool_->RemoveMapper(extent);
  EXPECT_EQ(ExtentCount(), 1u);
  pool_->Free(slot);
  EXPECT_EQ(ExtentCount(), 0u);
  EXPECT_THAT(wanted_, IsEmpty());
}

TEST_F(MappedExtentsTest, ATenantThatNeedsRoomWaitsForTheMapperAndThenTakesAnother) {
  MakeReadyAndListen(2);
  const SlotId one = MustAllocate(1, kPage);
  const SlotId two = MustAllocate(1, kExtent);  // The other extent.
  for (const SlotId slot : {one, two}) pool_->AddMapper(pool_->SlotExtent(slot));
  pool_->Free(one);
  pool_->Free(two);
  // One of the two is asked back, and no more while it is on its way.
  EXPECT_EQ(AllocateCode(2, kPage), Code::kBusy);
  EXPECT_EQ(AllocateCode(2, kPage), Code::kBusy);
  EXPECT_EQ(wanted_.size(), 1u);
  // A mapper that hangs does not hold everyone up for ever.
  for (int tick = 0; tick < 30; ++tick) pool_->Tick();
  EXPECT_EQ(AllocateCode(2, kPage), Code::kBusy);
  ASSERT_EQ(wanted_.size(), 2u);
  pool_->RemoveMapper(wanted_[1]);
  Settle();
  EXPECT_EQ(AllocateCode(2, kPage), Code::kOk);
}

}  // namespace
}  // namespace aquifer
