// What the tests of the DRAM pool share: a pool whose workers and owner are stepped by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_extents.h"
#include "tier/dram/dram_pool.h"

namespace aquifer {

inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kExtent = 64 * 1024;
inline constexpr uint64_t kKeep = 10 * kExtent;

inline uint64_t RoundUp(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

inline TenantId Tenant(int number) { return TenantIdOf("tenant-" + std::to_string(number)); }

class DramPoolFixture : public ::testing::Test {
 protected:
  void Make(const DramPoolOptions& options) {
    auto made = NewDramPool(options, &extents_, &workers_, &executor_);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    pool_ = *std::move(made);
  }

  // With every extent of the capacity faulted in.
  void MakeReady(uint64_t extents) {
    Make({.capacity_bytes = extents * kExtent,
          .extent_bytes = kExtent,
          .keep_available_bytes = kKeep,
          .ready_extents = UINT32_MAX});
    pool_->Tick();
    Settle();
  }

  // Runs workers and owner until nothing is left to do.
  void Settle() {
    while (workers_.RunAll() + executor_.RunAll() > 0) {
    }
  }

  SlotId MustAllocate(int tenant, uint64_t bytes) {
    auto slot = pool_->Allocate(Tenant(tenant), bytes);
    if (!slot.ok() && slot.status().code() == Code::kBusy) {
      Settle();
      slot = pool_->Allocate(Tenant(tenant), bytes);
    }
    EXPECT_TRUE(slot.ok()) << slot.status().ToString();
    return slot.ok() ? *slot : kNoSlot;
  }

  Code AllocateCode(int tenant, uint64_t bytes) {
    auto slot = pool_->Allocate(Tenant(tenant), bytes);
    return slot.ok() ? Code::kOk : slot.status().code();
  }

  uint64_t Counter(const std::string& name) {
    for (const auto& [counter, value] : pool_->Counters()) {
      if (counter == name) return value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  ManualClock clock_;
  ManualExecutor executor_{&clock_};
  ManualExecutor workers_{&clock_};
  MemoryExtents extents_;
  std::unique_ptr<DramPool> pool_;
};

}  // namespace aquifer
