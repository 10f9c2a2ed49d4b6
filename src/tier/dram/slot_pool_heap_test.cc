// A program of its own, because it replaces operator new, which sanitizers do too.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "testing/counted_heap.h"
#include "testing/seeded_random.h"
#include "tier/dram/dram_tier_fixture.h"

namespace aquifer {
namespace {

using SlotPoolHeapTest = DramTierFixture;

TEST_F(SlotPoolHeapTest, TheSlotPathTakesNothingFromTheHeap) {
  MakeReady(4);
  std::vector<SlotId> slots;
  std::vector<BlockMeta> metas;
  for (int tenant = 0; tenant < 2; ++tenant) {  // Sets up all four extents.
    for (int i = 0; i < 32; ++i) {
      metas.push_back(MetaOf(tenant, static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u));
      slots.push_back(MustAllocate(tenant, kPage));
      tier_->Publish(slots.back(), metas.back());
    }
  }
  EXPECT_EQ(AllocateCode(0, kPage), Code::kNoSpace);
  SeededRandom random(4);
  const uint64_t before = heap_allocations;
  for (int round = 0; round < 10'000; ++round) {
    const size_t at = random.Below(slots.size());
    const SlotId slot = tier_->Find(metas[at].id);
    if (slot != slots[at]) std::abort();
    tier_->Retract(slot);
    if (round % 2 == 0) tier_->Quarantine(slot);
    tier_->Free(slot);
    auto again = tier_->Allocate(metas[at].id.tenant, kPage);
    if (!again.ok() || tier_->SlotBytes(*again).size() != kPage) std::abort();
    slots[at] = *again;
    tier_->Publish(*again, metas[at]);
    if (!tier_->Probe(metas[at].id).ok()) std::abort();
    if (tier_->Allocate(metas[at].id.tenant, kPage).ok()) std::abort();  // Full: also free.
  }
  EXPECT_EQ(heap_allocations - before, 0u);
}

}  // namespace
}  // namespace aquifer
