// A program of its own, because it replaces operator new, which sanitizers do too.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "testing/counted_heap.h"
#include "testing/seeded_random.h"
#include "tier/dram/dram_pool_fixture.h"

namespace aquifer {
namespace {

using DramPoolHeapTest = DramPoolFixture;

TEST_F(DramPoolHeapTest, TheSlotPathTakesNothingFromTheHeap) {
  MakeReady(4);
  std::vector<SlotId> slots;
  for (int tenant = 0; tenant < 2; ++tenant) {  // Sets up all four extents.
    for (uint32_t i = 0; i < 32; ++i) {
      slots.push_back(MustAllocate(tenant, kPage));
      pool_->Publish(slots.back(), Tenant(tenant), kPage, i);
    }
  }
  EXPECT_EQ(AllocateCode(0, kPage), Code::kNoSpace);
  const std::vector<TenantId> tenants = {Tenant(0), Tenant(1)};
  SeededRandom random(4);
  const uint64_t before = heap_allocations;
  for (uint32_t round = 0; round < 10'000; ++round) {
    const size_t at = random.Below(slots.size());
    const TenantId& tenant = tenants[at / 32];
    pool_->Retract(slots[at]);
    if (round % 2 == 0) pool_->Quarantine(slots[at]);
    pool_->Free(slots[at]);
    auto again = pool_->Allocate(tenant, kPage);
    if (!again.ok() || pool_->SlotBytes(*again).size() != kPage) std::abort();
    slots[at] = *again;
    pool_->Publish(*again, tenant, kPage, round);
    if (pool_->Allocate(tenant, kPage).ok()) std::abort();  // Full: also free.
  }
  EXPECT_EQ(heap_allocations - before, 0u);
}

}  // namespace
}  // namespace aquifer
