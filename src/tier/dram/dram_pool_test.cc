#include "tier/dram/dram_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "testing/memory_extents.h"
#include "testing/seeded_random.h"
#include "tier/dram/dram_pool_fixture.h"

namespace aquifer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using DramPoolTest = DramPoolFixture;

// --- Options and sizes

TEST_F(DramPoolTest, OptionsThatCannotWorkAreRefused) {
  for (const DramPoolOptions& options :
       std::vector<DramPoolOptions>{{.capacity_bytes = kExtent - 1, .extent_bytes = kExtent},
                                    {.capacity_bytes = kExtent, .extent_bytes = 0},
                                    {.capacity_bytes = kExtent, .extent_bytes = kPage + 1},
                                    {.capacity_bytes = uint64_t{1} << 44}}) {
    auto made = NewDramPool(options, &extents_, &workers_, &executor_);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), Code::kInvalid);
    EXPECT_FALSE(made.status().message().empty());
  }
}

TEST_F(DramPoolTest, SlotsOf4KiBTo64MiBAreWholePagesThatDoNotOverlap) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  Make({.capacity_bytes = 1024 * kMiB, .ready_extents = 1});
  std::map<std::byte*, std::byte*> taken;  // Begin to end.
  for (const uint64_t bytes :
       {uint64_t{1}, kPage - 1, kPage, kPage + 1, 64 * 1024ul, kMiB, 2 * kMiB, 5 * kMiB + 1,
        8 * kMiB, 33 * kMiB, 64 * kMiB - 1, 64 * kMiB}) {
    for (int i = 0; i < 2; ++i) {
      const SlotId slot = MustAllocate(1, bytes);
      const std::span<std::byte> memory = pool_->SlotBytes(slot);
      EXPECT_EQ(memory.size(), RoundUp(bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % kPage, 0u);
      memory.front() = memory.back() = std::byte{1};
      const auto after = taken.lower_bound(memory.data());
      EXPECT_TRUE(after == taken.end() || memory.data() + memory.size() <= after->first);
      EXPECT_TRUE(after == taken.begin() || std::prev(after)->second <= memory.data());
      taken.emplace(memory.data(), memory.data() + memory.size());
    }
  }
}

TEST_F(DramPoolTest, AnExtentOfSmallSlotsGivesEveryOneOfThem) {
  Make({.capacity_bytes = uint64_t{64} << 20, .ready_extents = 1});
  std::vector<SlotId> slots;
  slots.reserve(16384);
  for (int i = 0; i < 16384; ++i) slots.push_back(MustAllocate(1, kPage));
  EXPECT_EQ(AllocateCode(1, kPage), Code::kNoSpace);
  std::ranges::sort(slots);
  EXPECT_EQ(std::ranges::adjacent_find(slots), slots.end());
  EXPECT_EQ(pool_->usage().slot_bytes, uint64_t{64} << 20);
}

TEST_F(DramPoolTest, ASlotLargerThanAnExtentIsInvalidAndSoIsAnEmptyOne) {
  MakeReady(2);
  EXPECT_EQ(AllocateCode(1, kExtent + 1), Code::kInvalid);
  EXPECT_EQ(AllocateCode(1, 0), Code::kInvalid);
  EXPECT_EQ(AllocateCode(1, kExtent), Code::kOk);
}

// --- Extents

TEST_F(DramPoolTest, TheFirstAllocationIsBusyWhileItsExtentIsFaultedIn) {
  Make({.capacity_bytes = 4 * kExtent,
        .extent_bytes = kExtent,
        .keep_available_bytes = 0,
        .ready_extents = 0});
  EXPECT_EQ(AllocateCode(1, kPage), Code::kBusy);
  EXPECT_EQ(extents_.outstanding(), 0u);  // Made by a worker, not by the owner.
  workers_.RunAll();
  EXPECT_EQ(AllocateCode(1, kPage), Code::kBusy);
  executor_.RunAll();
  EXPECT_EQ(AllocateCode(1, kPage), Code::kOk);
}

TEST_F(DramPoolTest, TheStockIsMadeAheadOfNeedAndRefilled) {
  Make({.capacity_bytes = 8 * kExtent,
        .extent_bytes = kExtent,
        .keep_available_bytes = 0,
        .ready_extents = 3});
  EXPECT_EQ(pool_->usage().extent_bytes, 0u);
  pool_->Tick();
  Settle();
  EXPECT_EQ(pool_->usage().extent_bytes, 3 * kExtent);
  EXPECT_THAT(pool_->Extents(), IsEmpty());  // Nobody's yet.

  MustAllocate(1, kPage);
  EXPECT_EQ(pool_->Extents().size(), 1u);
  Settle();
  EXPECT_EQ(pool_->usage().extent_bytes, 4 * kExtent);
}

TEST_F(DramPoolTest, AStockWithoutLimitFillsTheCapacity) {
  MakeReady(5);
  EXPECT_EQ(extents_.outstanding_bytes(), 5 * kExtent);
  EXPECT_EQ(pool_->usage().extent_bytes, 5 * kExtent);
}

TEST_F(DramPoolTest, AFullPoolHasNoSpaceButIsBusyWhileAnExtentGoesOrComes) {
  MakeReady(2);
  const SlotId first = MustAllocate(1, kExtent);
  MustAllocate(2, kExtent);
  EXPECT_EQ(AllocateCode(3, kPage), Code::kNoSpace);

  const uint32_t extent = pool_->SlotExtent(first);
  pool_->Retire(extent);
  EXPECT_EQ(AllocateCode(3, kPage), Code::kNoSpace);  // Its slot is still taken.
  pool_->Free(first);
  EXPECT_EQ(AllocateCode(3, kPage), Code::kBusy);  // Being destroyed,
  EXPECT_EQ(pool_->usage().extent_bytes, 2 * kExtent);
  workers_.RunAll();
  executor_.RunAll();
  EXPECT_EQ(AllocateCode(3, kPage), Code::kBusy);  // being made.
  Settle();
  EXPECT_EQ(AllocateCode(3, kPage), Code::kOk);
}

TEST_F(DramPoolTest, ARetiredExtentTakesNoNewSlotsDrainsAndCloses) {
  MakeReady(2);
  std::vector<std::pair<std::byte*, bool>> told;
  pool_->on_extent = [&](std::span<std::byte> bytes, bool added) {
    EXPECT_EQ(bytes.size(), kExtent);
    told.emplace_back(bytes.data(), added);
  };
  const SlotId first = MustAllocate(1, kExtent / 4);
  const SlotId second = MustAllocate(1, kExtent / 4);
  std::byte* const memory = pool_->SlotBytes(first).data();
  const uint32_t extent = pool_->SlotExtent(first);
  ASSERT_EQ(pool_->SlotExtent(second), extent);

  pool_->Retire(extent);
  pool_->Retire(extent);  // Again is harmless.
  EXPECT_TRUE(pool_->Extents()[0].retired);
  EXPECT_NE(pool_->SlotExtent(MustAllocate(1, kExtent / 4)), extent);

  pool_->Free(first);
  EXPECT_THAT(told, IsEmpty());
  pool_->Free(second);
  EXPECT_THAT(told, ElementsAre(std::pair(memory, false)));
  EXPECT_EQ(pool_->Extents().size(), 1u);
  EXPECT_EQ(pool_->usage().extent_bytes, 2 * kExtent);
  EXPECT_EQ(Counter("extents_closed"), 0u);  // The bytes are charged until they are gone.
  workers_.RunOne();
  executor_.RunOne();
  EXPECT_EQ(Counter("extents_closed"), 1u);
  pool_->Retire(extent);  // Closed: also harmless.
}

TEST_F(DramPoolTest, AnEmptyExtentClosesAtOnceAndItsNameNeverComesBack) {
  MakeReady(1);
  std::vector<uint32_t> names;
  for (int round = 0; round < 10; ++round) {
    const SlotId slot = MustAllocate(round, kPage);
    names.push_back(pool_->SlotExtent(slot));
    pool_->Free(slot);
    EXPECT_EQ(pool_->Extents().size(), 1u);
    pool_->Retire(names.back());
    EXPECT_THAT(pool_->Extents(), IsEmpty());
    Settle();
  }
  EXPECT_EQ(std::ranges::adjacent_find(names, std::greater_equal()), names.end());
  EXPECT_EQ(Counter("extents_made"), 11u);  // The last one is ready.
}

TEST_F(DramPoolTest, FullerExtentsAreFilledFirstSoThatEmptierOnesDrain) {
  MakeReady(3);
  std::map<uint32_t, std::vector<SlotId>> by_extent;
  for (int i = 0; i < 48; ++i) {
    const SlotId slot = MustAllocate(1, kPage);
    by_extent[pool_->SlotExtent(slot)].push_back(slot);
  }
  ASSERT_EQ(by_extent.size(), 3u);
  std::vector<uint32_t> names;
  names.reserve(by_extent.size());
  for (const auto& [name, slots] : by_extent) names.push_back(name);
  const auto free = [&](uint32_t name, int count) {
    for (int i = 0; i < count; ++i) {
      pool_->Free(by_extent[name].back());
      by_extent[name].pop_back();
    }
  };
  free(names[0], 12);
  free(names[1], 4);
  free(names[2], 8);
  std::vector<uint32_t> order;
  order.reserve(24);
  for (int i = 0; i < 24; ++i) order.push_back(pool_->SlotExtent(MustAllocate(1, kPage)));
  std::vector<uint32_t> expected(4, names[1]);
  expected.insert(expected.end(), 8, names[2]);
  expected.insert(expected.end(), 12, names[0]);
  EXPECT_EQ(order, expected);
}

TEST_F(DramPoolTest, AnExtentThatWasEmptiedGivesItsSlotsInOrderAgain) {
  MakeReady(1);
  std::vector<SlotId> slots;
  for (uint64_t i = 0; i < kExtent / kPage; ++i) slots.push_back(MustAllocate(1, kPage));
  SeededRandom random(1);
  for (size_t left = slots.size(); left > 0; --left) {
    std::swap(slots[random.Below(left)], slots[left - 1]);
    pool_->Free(slots[left - 1]);
  }
  std::vector<std::byte*> places;
  for (uint64_t i = 0; i < kExtent / kPage; ++i) {
    places.push_back(pool_->SlotBytes(MustAllocate(1, kPage)).data());
  }
  EXPECT_EQ(AllocateCode(1, kPage), Code::kNoSpace);
  for (size_t i = 1; i < places.size(); ++i) EXPECT_EQ(places[i], places[i - 1] + kPage);
}

TEST_F(DramPoolTest, AnExtentThatNobodyUsesGoesWhenSomebodyElseWantsTheRoom) {
  MakeReady(2);
  const SlotId kept = MustAllocate(1, kPage);
  const SlotId freed = MustAllocate(2, kPage);
  const uint32_t empty = pool_->SlotExtent(freed);
  pool_->Free(freed);
  EXPECT_EQ(pool_->Extents().size(), 2u);  // It stays as long as nobody else wants it,
  pool_->Free(MustAllocate(2, kPage));
  EXPECT_EQ(pool_->Extents()[1].extent, empty);
  EXPECT_EQ(AllocateCode(3, kPage), Code::kBusy);  // or the same tenant in another size.
  EXPECT_EQ(pool_->Extents().size(), 1u);
  EXPECT_EQ(AllocateCode(3, kPage), Code::kBusy);
  Settle();
  EXPECT_EQ(AllocateCode(3, kPage), Code::kOk);
  EXPECT_EQ(AllocateCode(4, kPage), Code::kNoSpace);
  pool_->Free(kept);
  EXPECT_EQ(AllocateCode(1, kExtent), Code::kBusy);
}

TEST_F(DramPoolTest, EveryExtentThatIsMadeOrClosedIsToldOf) {
  Make({.capacity_bytes = 3 * kExtent,
        .extent_bytes = kExtent,
        .keep_available_bytes = kKeep,
        .ready_extents = 2});
  std::map<std::byte*, int> known;
  pool_->on_extent = [&](std::span<std::byte> bytes, bool added) {
    known[bytes.data()] += added ? 1 : -1;
  };
  pool_->Tick();
  Settle();
  pool_->Free(MustAllocate(1, kPage));
  Settle();
  EXPECT_EQ(known.size(), 3u);
  for (const auto& [memory, count] : known) EXPECT_EQ(count, 1);
  extents_.SetAvailableBytes(0);
  pool_->Tick();
  Settle();
  EXPECT_EQ(pool_->Tick(), 0u);  // Two were ready and one was empty.
  for (const auto& [memory, count] : known) EXPECT_EQ(count, 0);
}

// --- Memory pressure and failures

TEST_F(DramPoolTest, NoMoreIsTakenThanTheHostCanSpare) {
  extents_.SetAvailableBytes(kKeep + 3 * kExtent + kExtent / 2);
  MakeReady(8);
  EXPECT_EQ(extents_.outstanding(), 3u);
  EXPECT_EQ(pool_->usage().extent_bytes, 3 * kExtent);
  for (int i = 0; i < 3; ++i) MustAllocate(1, kExtent);
  EXPECT_EQ(AllocateCode(1, kPage), Code::kNoSpace);
  EXPECT_GE(extents_.AvailableBytes(), kKeep);

  // The host has room again; it is noticed at the next tick.
  extents_.SetAvailableBytes(kKeep + kExtent);
  EXPECT_EQ(AllocateCode(1, kPage), Code::kNoSpace);
  EXPECT_EQ(pool_->Tick(), 0u);
  EXPECT_EQ(AllocateCode(1, kPage), Code::kBusy);
  Settle();
  EXPECT_EQ(AllocateCode(1, kPage), Code::kOk);
  EXPECT_EQ(extents_.AvailableBytes(), kKeep);
}

TEST_F(DramPoolTest, UnderPressureReadyExtentsGoFirstAndTheRestIsAskedFor) {
  MakeReady(6);
  std::vector<SlotId> slots;
  slots.reserve(4);
  for (int i = 0; i < 4; ++i) slots.push_back(MustAllocate(1, kExtent));
  extents_.SetAvailableBytes(kKeep - 3 * kExtent - 1);
  pool_->Tick();  // Asks a worker what is available.
  Settle();

  EXPECT_EQ(pool_->Tick(), 2 * kExtent);  // Four are missing, and two were ready.
  Settle();
  EXPECT_EQ(pool_->usage().extent_bytes, 4 * kExtent);
  EXPECT_EQ(pool_->Tick(), 2 * kExtent);

  // What is retired counts as on its way, also while it drains and while it is destroyed.
  pool_->Retire(pool_->SlotExtent(slots[0]));
  EXPECT_EQ(pool_->Tick(), kExtent);
  pool_->Retire(pool_->SlotExtent(slots[1]));
  pool_->Free(slots[0]);
  EXPECT_EQ(pool_->Tick(), 0u);
  pool_->Free(slots[1]);
  EXPECT_EQ(pool_->Tick(), 0u);
  Settle();
  EXPECT_EQ(pool_->Tick(), 0u);
  Settle();
  EXPECT_EQ(pool_->Tick(), 0u);
  Settle();
  EXPECT_GE(extents_.AvailableBytes(), kKeep);
  EXPECT_EQ(pool_->usage().extent_bytes, 2 * kExtent);
}

TEST_F(DramPoolTest, NobodyHasToLookWhileMemoryLasts) {
  constexpr uint64_t kSecondsWorth = 20'000'000'000;
  extents_.SetAvailableBytes(kKeep + 2 * kExtent + kSecondsWorth);
  Make({.capacity_bytes = 2 * kExtent,
        .extent_bytes = kExtent,
        .keep_available_bytes = kKeep,
        .ready_extents = 2});
  EXPECT_EQ(pool_->EaseNanos(), 0);  // Nobody knows yet.
  pool_->Tick();
  EXPECT_EQ(pool_->EaseNanos(), 0);
  Settle();
  pool_->Tick();
  Settle();
  EXPECT_EQ(pool_->EaseNanos(), 500'000'000);
  extents_.SetAvailableBytes(kKeep);
  pool_->Tick();
  Settle();
  EXPECT_EQ(pool_->EaseNanos(), 0);
}

TEST_F(DramPoolTest, PressureNeverAsksForMoreThanThereIs) {
  MakeReady(3);
  MustAllocate(1, kPage);
  extents_.SetAvailableBytes(0);
  pool_->Tick();
  Settle();
  EXPECT_EQ(pool_->Tick(), kExtent);
}

TEST_F(DramPoolTest, AFailureToFaultInIsRetriedAtTheNextTick) {
  Make({.capacity_bytes = 4 * kExtent,
        .extent_bytes = kExtent,
        .keep_available_bytes = 0,
        .ready_extents = 1});
  extents_.FailNext(2, Code::kNoSpace);
  EXPECT_EQ(AllocateCode(1, kPage), Code::kBusy);
  Settle();
  EXPECT_EQ(AllocateCode(1, kPage), Code::kNoSpace);
  EXPECT_EQ(Counter("extents_failed"), 1u);
  EXPECT_EQ(pool_->usage().extent_bytes, 0u);
  pool_->Tick();
  Settle();
  EXPECT_EQ(Counter("extents_failed"), 2u);
  pool_->Tick();
  Settle();
  EXPECT_EQ(AllocateCode(1, kPage), Code::kOk);
}

TEST_F(DramPoolTest, ADestroyedExtentEndsTheBackOff) {
  Make({.capacity_bytes = 3 * kExtent,
        .extent_bytes = kExtent,
        .keep_available_bytes = 0,
        .ready_extents = 0});
  const SlotId slot = MustAllocate(1, kExtent);
  extents_.FailNext(1, Code::kNoSpace);
  EXPECT_EQ(AllocateCode(2, kExtent), Code::kBusy);
  Settle();
  EXPECT_EQ(AllocateCode(2, kExtent), Code::kNoSpace);
  pool_->Free(slot);
  pool_->Retire(pool_->Extents()[0].extent);
  Settle();
  EXPECT_EQ(AllocateCode(2, kExtent), Code::kOk);  // Without a tick.
}

// Counts how far the host was pushed below what must stay available.
class WatchedExtents final : public ExtentSource {
 public:
  explicit WatchedExtents(ExtentSource* source) : source_(source) {}
  Result<std::unique_ptr<Extent>> New(uint64_t bytes) override {
    auto extent = source_->New(bytes);
    const uint64_t available = source_->AvailableBytes();
    uint64_t least = least_available;
    while (available < least && !least_available.compare_exchange_weak(least, available)) {
    }
    return extent;
  }
  uint64_t AvailableBytes() override { return source_->AvailableBytes(); }

  std::atomic<uint64_t> least_available = UINT64_MAX;

 private:
  ExtentSource* const source_;
};

TEST_F(DramPoolTest, MakersSideBySideLeaveTheHostItsMemory) {
  for (int round = 0; round < 20; ++round) {
    MemoryExtents memory(kKeep + (5 + round % 3) * kExtent + kPage);
    WatchedExtents watched(&memory);
    const auto executor = NewThreadExecutor({.name = "owner"}, SystemClock());
    auto workers = NewThreadWorkerPool(3, "worker");
    auto made = NewDramPool({.capacity_bytes = 64 * kExtent,
                             .extent_bytes = kExtent,
                             .keep_available_bytes = kKeep,
                             .ready_extents = UINT32_MAX},
                            &watched, workers.get(), executor.get());
    ASSERT_TRUE(made.ok());
    const auto on_owner = [&](const std::function<void()>& task) {
      std::promise<void> done;
      executor->Post([&] {
        task();
        done.set_value();
      });
      done.get_future().wait();
    };
    while (memory.AvailableBytes() >= kKeep + kExtent) on_owner([&] { (*made)->Tick(); });
    EXPECT_GE(watched.least_available.load(), kKeep);
    on_owner([&] { made->reset(); });
    workers.reset();
    executor->Stop();
  }
}

// Another maker's turn comes between a maker's look at the host's memory and what it does then.
class InterleavedExtents final : public ExtentSource {
 public:
  explicit InterleavedExtents(ExtentSource* source) : source_(source) {}
  Result<std::unique_ptr<Extent>> New(uint64_t bytes) override { return source_->New(bytes); }
  uint64_t AvailableBytes() override {
    const uint64_t available = source_->AvailableBytes();
    if (between) std::exchange(between, nullptr)();
    return available;
  }

  std::function<void()> between;

 private:
  ExtentSource* const source_;
};

TEST_F(DramPoolTest, AMakerBesideAnotherLeavesItsMemoryToIt) {
  extents_.SetAvailableBytes(kKeep + kExtent + kPage);
  InterleavedExtents interleaved(&extents_);
  auto made = NewDramPool({.capacity_bytes = 4 * kExtent,
                           .extent_bytes = kExtent,
                           .keep_available_bytes = kKeep,
                           .ready_extents = 2},
                          &interleaved, &workers_, &executor_);
  ASSERT_TRUE(made.ok());
  (*made)->Tick();
  int turns = 0;
  interleaved.between = [&] { turns += workers_.RunOne() ? 1 : 0; };
  workers_.RunAll();
  EXPECT_EQ(turns, 1);
  EXPECT_EQ(extents_.AvailableBytes(), kKeep + kPage);  // One was made, and not both.
  executor_.RunAll();
}

TEST_F(DramPoolTest, AQuarantinedSlotIsCountedAndChargedUntilItIsFreed) {
  MakeReady(1);
  const SlotId slot = MustAllocate(1, 2 * kPage);
  MustAllocate(1, 2 * kPage);
  pool_->Quarantine(slot);
  EXPECT_EQ(pool_->usage().quarantined_bytes, 2 * kPage);
  EXPECT_EQ(pool_->usage().slot_bytes, 4 * kPage);
  while (AllocateCode(1, 2 * kPage) == Code::kOk) {
  }
  EXPECT_EQ(pool_->usage().slot_bytes, kExtent);
  pool_->Free(slot);
  EXPECT_EQ(pool_->usage().quarantined_bytes, 0u);
  EXPECT_EQ(pool_->usage().slot_bytes, kExtent - 2 * kPage);
  EXPECT_EQ(*pool_->Allocate(Tenant(1), 2 * kPage), slot);
}

// --- Blocks

using SlotsAndBlocks = std::vector<std::pair<SlotId, uint32_t>>;

TEST_F(DramPoolTest, VisitingAnExtentShowsItsBlocksInOrder) {
  MakeReady(2);
  std::vector<SlotId> slots;
  for (uint32_t i = 0; i < 6; ++i) slots.push_back(MustAllocate(1, kPage));
  for (const uint32_t i : {0u, 2u, 3u, 4u}) pool_->Publish(slots[i], Tenant(1), kPage, 100 + i);
  pool_->Retract(slots[3]);  // Somebody still uses it.
  const uint32_t extent = pool_->SlotExtent(slots[0]);
  const auto visit = [&](uint32_t begin, uint32_t end, bool* more) {
    SlotsAndBlocks found;
    *more = pool_->VisitSlots(
        extent, begin, end, [&](SlotId slot, uint32_t block) { found.emplace_back(slot, block); });
    return found;
  };
  bool more = false;
  EXPECT_EQ(visit(0, 3, &more), (SlotsAndBlocks{{slots[0], 100}, {slots[2], 102}}));
  EXPECT_TRUE(more);
  EXPECT_EQ(visit(3, UINT32_MAX, &more), (SlotsAndBlocks{{slots[4], 104}}));
  EXPECT_FALSE(more);

  pool_->Retire(extent);
  for (const uint32_t i : {0u, 2u, 4u}) pool_->Retract(slots[i]);
  for (const SlotId slot : slots) pool_->Free(slot);
  EXPECT_THAT(visit(0, UINT32_MAX, &more), IsEmpty()) << "it is closed";
  EXPECT_FALSE(more);
}

using DramPoolDeathTest = DramPoolTest;

TEST_F(DramPoolDeathTest, MisuseByOurOwnCodeIsCaught) {
  MakeReady(2);
  const SlotId slot = MustAllocate(1, kPage);
  const SlotId published = MustAllocate(1, kPage);
  pool_->Publish(published, Tenant(1), kPage, 1);
  EXPECT_DEATH(pool_->Free(published), "kPublished");
  EXPECT_DEATH(pool_->Quarantine(published), "kTaken");
  EXPECT_DEATH(pool_->Publish(published, Tenant(1), kPage, 2), "kTaken");
  EXPECT_DEATH(pool_->Publish(slot, Tenant(2), kPage, 1), "tenant");  // Another tenant's memory.
  EXPECT_DEATH(pool_->Publish(slot, Tenant(1), kPage + 1, 1), "slot_bytes");
  EXPECT_DEATH(pool_->Retract(slot), "kPublished");
  pool_->Free(slot);
  EXPECT_DEATH(pool_->Free(slot), "kFree");
  EXPECT_DEATH(pool_->SlotBytes(slot), "kFree");
  EXPECT_DEATH(pool_->SlotBytes(kNoSlot), "IndexOf");
  EXPECT_DEATH(pool_->Retire(1000), "next_name_");
}

// --- Properties of long random runs

struct Held {
  SlotId slot = kNoSlot;
  int tenant = 0;
};

TEST_F(DramPoolTest, TheCapHoldsToTheByteUnderRandomLoad) {
  constexpr uint64_t kCap = 9 * kExtent + kExtent - 1;
  Make({.capacity_bytes = kCap,
        .extent_bytes = kExtent,
        .keep_available_bytes = 0,
        .ready_extents = 2});
  SeededRandom random(1);
  std::vector<Held> held;
  uint64_t most = 0;
  for (int step = 0; step < 200'000; ++step) {
    switch (random.Below(10)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const int tenant = static_cast<int>(random.Below(4));
        auto slot = pool_->Allocate(Tenant(tenant), kPage << random.Below(5));
        if (slot.ok()) held.push_back({.slot = *slot, .tenant = tenant});
        break;
      }
      case 4:
      case 5:
      case 6:
        if (!held.empty()) {
          std::swap(held[random.Below(held.size())], held.back());
          pool_->Free(held.back().slot);
          held.pop_back();
        }
        break;
      case 7:
        if (const auto infos = pool_->Extents(); !infos.empty() && random.Below(4) == 0) {
          pool_->Retire(infos[random.Below(infos.size())].extent);
        }
        break;
      case 8:
        workers_.RunOne();
        break;
      default:
        executor_.RunOne();
        if (random.Below(50) == 0) pool_->Tick();
        if (random.Below(500) == 0) extents_.FailNext(random.Below(3), Code::kNoSpace);
    }
    const uint64_t charged = pool_->usage().extent_bytes;
    most = std::max(most, charged);
    ASSERT_LE(charged, kCap);
    ASSERT_LE(extents_.outstanding_bytes(), charged);
  }
  EXPECT_EQ(most, 9 * kExtent);
  for (const Held& one : held) pool_->Free(one.slot);
  EXPECT_EQ(pool_->usage().slot_bytes, 0u);
  for (const ExtentInfo& info : pool_->Extents()) {
    EXPECT_EQ(info.used_slots, 0u);
    pool_->Retire(info.extent);
  }
  Settle();
  EXPECT_EQ(pool_->usage().extent_bytes, 2 * kExtent);  // The stock.
}

// What a table has of an id may be the same.
TEST_F(DramPoolTest, TenantsWhoseIdsBeginAlikeShareNoExtent) {
  MakeReady(2);
  const TenantId one = Tenant(1);
  TenantId other = one;
  other.bytes.back() ^= std::byte{1};
  const auto slot_of_one = pool_->Allocate(one, kPage);
  const auto slot_of_other = pool_->Allocate(other, kPage);
  ASSERT_TRUE(slot_of_one.ok() && slot_of_other.ok());
  EXPECT_NE(pool_->SlotExtent(*slot_of_one), pool_->SlotExtent(*slot_of_other));
  EXPECT_EQ(pool_->ExtentOf(pool_->SlotExtent(*slot_of_other)).tenant, other);
}

TEST_F(DramPoolTest, TenantsNeverShareAnExtentWhileItLives) {
  MakeReady(6);
  // Which extent object lies where, told by its making; and whose it turned out to be.
  struct Life {
    uint64_t number;
    int tenant = -1;
  };
  std::map<std::byte*, Life> lives;
  uint64_t made = 0;
  pool_->on_extent = [&](std::span<std::byte> bytes, bool added) {
    if (added) {
      ASSERT_TRUE(lives.emplace(bytes.data(), Life{.number = ++made}).second);
    } else {
      lives.erase(bytes.data());
    }
  };
  std::map<uint32_t, std::pair<int, uint64_t>> owner_of;  // Extent name: tenant, slot size.
  SeededRandom random(2);
  std::vector<Held> held;
  int owners = 0;
  for (int step = 0; step < 100'000; ++step) {
    const int tenant = static_cast<int>(random.Below(5));
    const uint64_t bytes = kPage << random.Below(5);
    if (auto slot = pool_->Allocate(Tenant(tenant), bytes); slot.ok()) {
      held.push_back({.slot = *slot, .tenant = tenant});
      const auto [owner, fresh] =
          owner_of.emplace(pool_->SlotExtent(*slot), std::pair(tenant, bytes));
      owners += fresh ? 1 : 0;
      ASSERT_EQ(owner->second, std::pair(tenant, bytes));
      const std::span<std::byte> memory = pool_->SlotBytes(*slot);
      if (auto life = lives.upper_bound(memory.data()); life != lives.begin()) {
        --life;  // The stock from before on_extent was set is not known here.
        if (memory.data() < life->first + kExtent) {
          if (life->second.tenant < 0) life->second.tenant = tenant;
          ASSERT_EQ(life->second.tenant, tenant);
        }
      }
      // Never another tenant's bytes.
      const auto mark = static_cast<std::byte>(tenant + 1);
      for (const size_t at : {size_t{0}, memory.size() / 2, memory.size() - 1}) {
        ASSERT_TRUE(memory[at] == std::byte{0} || memory[at] == mark);
      }
      std::ranges::fill(memory, mark);
    }
    if (!held.empty() && random.Below(100) < 90) {
      std::swap(held[random.Below(held.size())], held.back());
      pool_->Free(held.back().slot);
      held.pop_back();
    }
    if (const auto infos = pool_->Extents(); !infos.empty() && random.Below(8) == 0) {
      pool_->Retire(infos[random.Below(infos.size())].extent);
    }
    if (random.Below(3) == 0) workers_.RunOne();
    if (random.Below(3) == 0) executor_.RunOne();
  }
  EXPECT_GT(owners, 1000);
  for (const ExtentInfo& info : pool_->Extents()) {
    EXPECT_EQ(info.tenant, Tenant(owner_of[info.extent].first));
  }
}

// --- The pace of a large stock

TEST_F(DramPoolTest, OfALargeStockTheFirstExtentsAreMadeAtOnceAndTheOthersAsTicksAllow) {
  Make({.capacity_bytes = 100 * kExtent,
        .extent_bytes = kExtent,
        .ready_extents = UINT32_MAX,
        .paced_by_cores = 2});
  pool_->Tick();
  Settle();
  EXPECT_EQ(extents_.outstanding(), 8u);
  for (int i = 0; i < 80; ++i) {  // Two cores pay for an extent with eight ticks.
    pool_->Tick();
    Settle();
  }
  EXPECT_EQ(extents_.outstanding(), 8u + 10u);
}

// Each extent takes 60 ms.
class SlowExtents final : public ExtentSource {
 public:
  explicit SlowExtents(ManualClock* clock) : clock_(clock) {}

  Result<std::unique_ptr<Extent>> New(uint64_t bytes) override {
    clock_->Advance(60'000'000);
    return extents_.New(bytes);
  }
  uint64_t AvailableBytes() override { return extents_.AvailableBytes(); }
  uint64_t outstanding() const { return extents_.outstanding(); }

 private:
  ManualClock* const clock_;
  MemoryExtents extents_;
};

TEST_F(DramPoolTest, AnExtentThatTookLongIsPaidForBeforeTheNext) {
  SlowExtents slow(&clock_);
  auto made = NewDramPool({.capacity_bytes = 100 * kExtent,
                           .extent_bytes = kExtent,
                           .ready_extents = UINT32_MAX,
                           .paced_by_cores = 16,
                           .pace_clock = &clock_},
                          &slow, &workers_, &executor_);
  ASSERT_TRUE(made.ok());
  std::vector<uint64_t> outstanding;
  for (int i = 0; i < 40; ++i) {
    (*made)->Tick();
    Settle();
    outstanding.push_back(slow.outstanding());
  }
  // Eight at once. They took 35 ms more than the least, each, and a tick pays for 25 ms.
  EXPECT_EQ(outstanding.front(), 8u);
  EXPECT_EQ(std::ranges::count(outstanding, 8u), 12);
  // From there on one in two or three ticks.
  EXPECT_EQ(outstanding.back(), 18u);
}

TEST_F(DramPoolTest, AnExtentThatIsTakenIsReplacedAtOnceHoweverSlowThePace) {
  Make({.capacity_bytes = 100 * kExtent,
        .extent_bytes = kExtent,
        .ready_extents = UINT32_MAX,
        .paced_by_cores = 1});
  for (uint64_t taken = 1; taken <= 40; ++taken) {
    MustAllocate(1, kExtent);
    Settle();
    EXPECT_EQ(extents_.outstanding(), taken + 8);
  }
}

TEST_F(DramPoolTest, ManyCoresMakeManyExtentsBetweenTwoTicks) {
  Make({.capacity_bytes = 100 * kExtent,
        .extent_bytes = kExtent,
        .ready_extents = UINT32_MAX,
        .paced_by_cores = 128});
  pool_->Tick();
  Settle();
  EXPECT_EQ(extents_.outstanding(), 8u + 8u);
  pool_->Tick();
  Settle();
  EXPECT_EQ(extents_.outstanding(), 8u + 16u);
}

TEST_F(DramPoolTest, APoolThatWaitsForItsPaceIsLookedAtAtEveryTick) {
  Make({.capacity_bytes = 9 * kExtent,
        .extent_bytes = kExtent,
        .ready_extents = UINT32_MAX,
        .paced_by_cores = 1});
  for (int i = 0; i < 17; ++i) {
    pool_->Tick();
    Settle();
    EXPECT_EQ(pool_->EaseNanos() > 0, extents_.outstanding() == 9) << i;
  }
  EXPECT_EQ(extents_.outstanding(), 9u);
}

}  // namespace
}  // namespace aquifer
