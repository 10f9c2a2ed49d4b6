// What a load waits for, and what it does not: other drives, other tenants, reads that hang.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

// Where a sanitizer replaces the heap it is 0, and that test says nothing.
uint64_t HeapBytesInUse() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

class LoaderTest : public CoreFixture {
 protected:
  static CoreOptions TwoDrives(uint64_t dram_blocks) {
    CoreOptions options = SmallCache(dram_blocks);
    options.cache.nvme_directories = {"one", "two"};
    options.cache.nvme_bytes = 128 << 20;
    return options;
  }

  // On NVMe alone.
  void StoreBelow(const Chain& chain) {
    ASSERT_EQ(Store(chain), chain.size());
    ASSERT_TRUE(Flush().ok());
    Restart();
  }

  std::unique_ptr<FetchRequest> Submit(std::span<const Key> keys, int64_t timeout_nanos,
                                       ManualClient* client) {
    auto fetch = std::make_unique<FetchRequest>();
    fetch->chain = {.layout = handle_, .group = 0, .part = 0, .keys = keys};
    fetch->timeout_nanos = timeout_nanos;
    client->Submit(&Core::Fetch, fetch.get());
    return fetch;
  }
  // What came of it, in `timeout_nanos`.
  std::vector<Code> Within(int64_t timeout_nanos, std::span<const Key> keys, ManualClient* client) {
    const auto fetch = Submit(keys, timeout_nanos, client);
    EXPECT_TRUE(world_->RunUntil([&] { return fetch->done(); }));
    std::vector<Code> codes;
    std::vector<ReleaseOp> leases;
    for (const FetchOp& op : fetch->ops) {
      codes.push_back(op.status.code());
      if (op.lease != 0) leases.push_back({.lease = op.lease, .corrupt = false});
    }
    client->Release(leases);
    return codes;
  }
};

constexpr int64_t kShort = 20'000'000;
constexpr int64_t kLong = 500'000'000;

TEST_F(LoaderTest, ADriveThatHangsMakesOnlyItsOwnBlocksLate) {
  Make(TwoDrives(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 16});
  StoreBelow(chain);
  world_->disk("two").Hang(true);
  std::vector<Code> alone;
  for (size_t i = 0; i < chain.size(); ++i) {
    alone.push_back(Within(kShort, chain.keys(i, 1), client_.get())[0]);
  }
  ASSERT_GT(std::count(alone.begin(), alone.end(), Code::kOk), 0);
  ASSERT_GT(std::count(alone.begin(), alone.end(), Code::kLate), 0);
  world_->disk("two").Hang(false);
  world_->Advance(kLong);
  Restart();

  world_->disk("two").Hang(true);
  EXPECT_EQ(Within(kLong, chain.keys(), client_.get()), alone);
  world_->disk("two").Hang(false);
  world_->Advance(kLong);
}

// There are more than all drives together may have under way.
TEST_F(LoaderTest, ADriveThatHangsDoesNotTakeTheOthersTurn) {
  Make(TwoDrives(2048));
  const Chain chain(layout_, {.seed = 1, .blocks = 1200});
  StoreBelow(chain);
  world_->disk("two").Hang(true);
  const std::vector<Code> codes = Within(kLong, chain.keys(), client_.get());
  const auto served = std::count(codes.begin(), codes.end(), Code::kOk);
  const auto late = std::count(codes.begin(), codes.end(), Code::kLate);
  EXPECT_EQ(served + late, 1200);
  EXPECT_GT(served, 400);
  EXPECT_GT(late, 400);
  world_->disk("two").Hang(false);
  world_->Advance(kLong);
}

TEST_F(LoaderTest, ATenantThatWaitsForMemoryHoldsUpNobodyElse) {
  CoreOptions options = SmallCache(32);  // Two extents: one each.
  TenantOptions second;
  second.name = "second";
  second.dram_floor_bytes = options.extent_bytes;
  options.cache.tenants = {second};
  Make(options);
  const auto first_client = AttachAs("first");
  const auto second_client = AttachAs("second");
  const auto store = [&](const Chain& chain, ManualClient* client) {
    EXPECT_EQ(Store(chain, client), chain.size());
    FlushRequest flush;
    client->Do(&Core::Flush, &flush);
    EXPECT_TRUE(flush.status.ok());
  };
  const Chain first_old(layout_, {.seed = 1, .blocks = 1, .tenant = "first"});
  const Chain first_new(layout_, {.seed = 2, .blocks = 16, .tenant = "first"});
  const Chain second_old(layout_, {.seed = 3, .blocks = 1, .tenant = "second"});
  const Chain second_new(layout_, {.seed = 4, .blocks = 16, .tenant = "second"});
  store(second_old, second_client.get());
  store(first_old, first_client.get());
  store(first_new, first_client.get());
  store(second_new, second_client.get());
  const auto held = Submit(first_new.keys(), kLong, first_client.get());  // All of its memory.
  ASSERT_TRUE(world_->RunUntil([&] { return held->done(); }));

  const auto waits = Submit(first_old.keys(), 3600 * kLong, first_client.get());
  world_->Run();
  ASSERT_FALSE(waits->done());
  EXPECT_EQ(Within(kLong, second_old.keys(), second_client.get())[0], Code::kOk);
  world_->core().Cancel(first_client->number(), waits.get());
  world_->Run();
}

TEST_F(LoaderTest, ABlockWhoseReadHangsIsReadOnceHoweverOftenItIsAskedFor) {
  Make(SmallCache(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  StoreBelow(chain);
  world_->disk(kDrive).Hang(true);
  for (int i = 0; i < 70; ++i) {
    EXPECT_EQ(Within(kShort, chain.keys(), client_.get())[0], Code::kLate);
  }
  EXPECT_EQ(Counter("quarantined_bytes"), kBlockBytes);
  const auto patient = Submit(chain.keys(), kLong, client_.get());
  world_->disk(kDrive).Hang(false);
  ASSERT_TRUE(world_->RunUntil([&] { return patient->done(); }));
  EXPECT_TRUE(patient->ops[0].status.ok());
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
  Release(*patient);
}

TEST_F(LoaderTest, WhoJoinsAReadThatHangsHearsWhenItsDriveIsGivenUp) {
  Make(TwoDrives(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 16});
  StoreBelow(chain);
  world_->disk("two").Hang(true);
  Within(kShort, chain.keys(), client_.get());
  const auto patient = Submit(chain.keys(), 100 * kLong, client_.get());
  world_->Advance(20 * kLong);  // It is out of service by then.
  ASSERT_TRUE(patient->done());
  const auto is = [&](Code code) {
    return std::count_if(patient->ops.begin(), patient->ops.end(),
                         [code](const FetchOp& op) { return op.status.code() == code; });
  };
  EXPECT_GT(is(Code::kUnavailable), 0);
  EXPECT_EQ(is(Code::kOk) + is(Code::kUnavailable), 16);
  Release(*patient);
  world_->disk("two").Hang(false);
  world_->Advance(20 * kLong);
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
  EXPECT_EQ(Recall(chain), 16u);
}

TEST_F(LoaderTest, ReadsThatHangTakeOnlyAPartOfMemory) {
  Make(SmallCache(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 60});
  StoreBelow(chain);
  world_->disk(kDrive).Hang(true);
  for (size_t i = 0; i < chain.size(); ++i) {
    EXPECT_EQ(Within(kShort, chain.keys(i, 1), client_.get())[0], Code::kLate);
  }
  EXPECT_GT(Counter("quarantined_bytes"), 0u);
  EXPECT_LE(Counter("quarantined_bytes"), 16 * kBlockBytes);
  world_->disk(kDrive).Hang(false);
  world_->Advance(kLong);
  EXPECT_EQ(Recall(chain), 60u);
}

TEST_F(LoaderTest, ThousandsWhoWaitForOneBlockAreToldALittleAtATime) {
  Make(SmallCache(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  StoreBelow(chain);
  world_->disk(kDrive).Hang(true);
  std::vector<std::unique_ptr<ManualClient>> clients;
  std::vector<std::unique_ptr<FetchRequest>> fetches;
  for (int c = 0; c < 4; ++c) {
    clients.push_back(AttachAs("local"));
    for (int i = 0; i < 1000; ++i) {
      fetches.push_back(Submit(chain.keys(), kLong, clients.back().get()));
    }
  }
  size_t answered = 0;
  size_t most = 0;
  world_->after_task = [&] {
    const auto done = static_cast<size_t>(std::count_if(
        fetches.begin(), fetches.end(), [](const auto& fetch) { return fetch->done(); }));
    most = std::max(most, done - answered);
    answered = done;
  };
  world_->disk(kDrive).Hang(false);
  EXPECT_TRUE(world_->RunUntil([&] { return answered == fetches.size(); }));
  world_->after_task = {};
  for (const auto& fetch : fetches) ASSERT_TRUE(fetch->ops[0].status.ok());
  EXPECT_LE(most, 128u);
}

TEST_F(LoaderTest, AFetchThatNamesOneBlockVeryOftenIsAnsweredALittleAtATime) {
  Make(SmallCache(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 2});
  StoreBelow(chain);
  std::vector<Key> keys(20'000, chain[0]);
  world_->disk(kDrive).Hang(true);
  const auto fetch = Submit(keys, kLong, client_.get());
  size_t answered = 0;
  size_t most = 0;
  world_->after_task = [&] {
    most = std::max(most, fetch->completed() - answered);
    answered = fetch->completed();
  };
  world_->Run();
  world_->disk(kDrive).Hang(false);
  EXPECT_TRUE(world_->RunUntil([&] { return fetch->done(); }));
  world_->after_task = {};
  EXPECT_EQ(fetch->completed(), keys.size());
  EXPECT_TRUE(fetch->ops.back().status.ok());
  EXPECT_LE(most, 4096u);
  Release(*fetch);
}

// Four wait for each load, so that a slice of 64 ends with the last of one and there are more
// loads.
TEST_F(LoaderTest, EveryoneIsToldAlsoWhereASliceEndsBetweenTwoLoads) {
  constexpr int64_t kVeryLong = 100 * kLong;
  Make(SmallCache(64));
  const Chain wanted(layout_, {.seed = 1, .blocks = 40});
  StoreBelow(wanted);
  const Chain held(layout_, {.seed = 2, .blocks = 64});
  ASSERT_EQ(Store(held), held.size());
  const auto holding = Submit(held.keys(), kVeryLong, client_.get());
  ASSERT_TRUE(world_->RunUntil([&] { return holding->done(); }));
  std::vector<std::unique_ptr<FetchRequest>> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(Submit(wanted.keys(), kVeryLong, client_.get()));
  }
  world_->Advance(kShort);
  for (const auto& fetch : waiting) ASSERT_FALSE(fetch->done()) << "there is memory after all";

  EvictRequest evict;
  evict.chain = Slice(wanted);
  client_->Do(&Core::Evict, &evict);
  world_->Advance(kLong);
  for (const auto& fetch : waiting) {
    ASSERT_TRUE(fetch->done());
    for (const FetchOp& op : fetch->ops) EXPECT_EQ(op.status.code(), Code::kNotFound);
  }
  Release(*holding);
}

// One waits for long; very many join it and leave again.
TEST_F(LoaderTest, WhoHasLeftIsForgotten) {
  Make(SmallCache(64));
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  StoreBelow(chain);
  const auto all_memory = Reserve(Chain(layout_, {.seed = 2, .blocks = 64}), client_.get());
  const auto waits = Submit(chain.keys(), 3600 * kLong, client_.get());
  FetchRequest leaves;
  const auto join_and_leave = [&](int times) {
    for (int i = 0; i < times; ++i) {
      leaves.chain = Slice(chain);
      leaves.timeout_nanos = 3000 * kLong - i;
      client_->Submit(&Core::Fetch, &leaves);
      world_->core().Cancel(client_->number(), &leaves);
      if (!leaves.done()) world_->Run();
    }
  };
  join_and_leave(100);
  const uint64_t before = HeapBytesInUse();
  const size_t timers = world_->timers();
  join_and_leave(10'000);
  EXPECT_FALSE(waits->done());
  EXPECT_LT(HeapBytesInUse(), before + 32'768);
  EXPECT_LE(world_->timers(), timers + 2);
  world_->core().Cancel(client_->number(), waits.get());
  world_->Run();
}

}  // namespace
}  // namespace aquifer
