// A Residency over DRAM in memory, for tests of what stands on it: one tenant, one layout, and no
// other tier.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "aquifer/cache.h"
#include "base/check.h"
#include "cache/residency/catalog.h"
#include "cache/residency/residency.h"
#include "policy/eviction/leaf_recency.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_extents.h"
#include "tier/dram/dram_pool.h"

namespace aquifer {

class ResidencyFixture : public ::testing::Test {
 protected:
  static constexpr uint64_t kBlockBytes = uint64_t{16} << 10;
  static constexpr uint64_t kDramBytes = 64 * kBlockBytes;

  ResidencyFixture() {
    dram_ = *NewDramPool({.capacity_bytes = kDramBytes, .extent_bytes = kDramBytes}, &extents_,
                         &executor_, &executor_);
    tenant_ = *catalog_.Tenant("tenant", TenantOptions{.name = "tenant"});
    layout_ = *catalog_.Learn(tenant_, Digest{}, 0, kBlockBytes);
    residency_ = std::make_unique<Residency>(
        ResidencyParts{.catalog = &catalog_,
                       .dram = dram_.get(),
                       .clock = &clock_,
                       .index = *Index::Create({.max_blocks = 256, .hash_seed = 2}),
                       .dram_order = *NewLeafRecency({.max_blocks = 256}),
                       .nvme_order = *NewLeafRecency({.max_blocks = 256}),
                       .dram_quota = Quota({.capacity_bytes = kDramBytes}),
                       .nvme_quota = Quota({.capacity_bytes = 1}),
                       .extent_bytes = kDramBytes});
    dram_->Tick();
    executor_.RunAll();
  }

  static Key KeyOf(uint32_t position) {
    Key key{};
    key.bytes[0] = static_cast<std::byte>(position + 1);
    return key;
  }
  BlockName NameOf(uint32_t position) const {
    return {.tenant = tenant_, .group = 0, .part = 0, .key = KeyOf(position)};
  }
  // The next of one chain, with a slot.
  BlockRef AddFilling(uint32_t position) {
    Result<SlotId> slot = residency_->TakeSlot(tenant_, kBlockBytes);
    for (int tries = 0; !slot.ok() && tries < 3; ++tries) {  // An extent is on its way.
      executor_.AdvanceAndRun(1'000'000);
      dram_->Tick();
      executor_.RunAll();
      slot = residency_->TakeSlot(tenant_, kBlockBytes);
    }
    AQ_CHECK(slot.ok());
    return *residency_->AddFilling({.name = NameOf(position),
                                    .parent = position == 0 ? Key{} : KeyOf(position - 1),
                                    .position = position,
                                    .layout = layout_,
                                    .state = BlockState::kFilling,
                                    .now_nanos = clock_.NowNanos()},
                                   *slot);
  }
  BlockRef AddResident(uint32_t position) {
    const BlockRef ref = AddFilling(position);
    residency_->Publish(ref, Checksum{});
    return ref;
  }
  BlockState StateOf(BlockRef ref) const { return residency_->at(ref).state; }

  ManualClock clock_;
  ManualExecutor executor_{&clock_};
  MemoryExtents extents_;
  Catalog catalog_{16};
  std::unique_ptr<DramPool> dram_;
  std::unique_ptr<Residency> residency_;
  uint16_t tenant_ = 0;
  uint16_t layout_ = 0;
};

}  // namespace aquifer
