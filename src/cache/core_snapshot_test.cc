// What a core counts for those who run it, by tenant and by request.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

constexpr size_t kDram = static_cast<size_t>(TierKind::kDram);
constexpr size_t kNvme = static_cast<size_t>(TierKind::kNvme);
constexpr size_t kFetch = 1;  // In kTimedRequestNames.

class CoreSnapshotTest : public CoreFixture {
 protected:
  TenantSnapshot Of(const std::string& name) {
    for (const TenantSnapshot& tenant : world_->core().Tenants(0, Core::kSnapshotSlice)) {
      if (tenant.options.name == name) return tenant;
    }
    ADD_FAILURE() << "there is no tenant " << name;
    return {};
  }
  CoreSnapshot Snapshot() { return world_->core().Snapshot(); }

  void ReportPrefill(double ms_per_token) {
    for (uint32_t tokens = 64; tokens <= 1024; tokens *= 2) {
      world_->core().ReportPrefill(client_->number(), {.layout = handle_,
                                                       .tokens = tokens,
                                                       .context_tokens = 0,
                                                       .milliseconds = ms_per_token * tokens});
    }
  }
};

TEST_F(CoreSnapshotTest, HitsMissesAndBytesAreCountedByTenantAndTier) {
  Make(SmallCache());
  const Chain stored(layout_, {.seed = 1, .blocks = 20});
  ASSERT_EQ(Store(stored), 20u);
  ASSERT_EQ(Recall(stored), 20u);
  ASSERT_EQ(Recall(Chain(layout_, {.seed = 2, .blocks = 3})), 0u);
  const auto other = AttachAs("other");
  TenantCounters counters = Of("local").counters;
  EXPECT_EQ(counters.committed_blocks, 20u);
  EXPECT_EQ(counters.committed_bytes, 20 * kBlockBytes);
  EXPECT_EQ(counters.fetch_hits[kDram], 20u);
  EXPECT_EQ(counters.fetch_hit_bytes[kDram], 20 * kBlockBytes);
  EXPECT_EQ(counters.fetch_hits[kNvme], 0u);
  EXPECT_EQ(counters.fetch_misses, 3u);
  EXPECT_EQ(Of("local").dram_bytes, 20 * kBlockBytes);
  EXPECT_EQ(Of("other").counters.fetch_misses, 0u);

  ASSERT_TRUE(Flush().ok());
  Restart();
  ASSERT_EQ(Recall(stored), 20u);
  counters = Of("local").counters;
  EXPECT_EQ(counters.fetch_hits[kNvme], 20u);
  EXPECT_EQ(counters.fetch_hit_bytes[kNvme], 20 * kBlockBytes);
  EXPECT_EQ(Snapshot().loaded_bytes, 20 * kBlockBytes);
  EXPECT_EQ(Snapshot().load.count(), 20u);
  EXPECT_EQ(Snapshot().load_wait.count(), 20u);
}

TEST_F(CoreSnapshotTest, RequestsAreTimedFromTheCallToTheAnswer) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 8});
  ASSERT_EQ(Store(chain), 8u);
  ASSERT_TRUE(Flush().ok());
  EXPECT_EQ(Snapshot().write_wait.count(), 8u);
  EXPECT_GE(Snapshot().write.count(), 1u);
  Restart();
  world_->disk(kDrive).Hang(true);
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  fetch.timeout_nanos = 20'000'000;
  client_->Submit(&Core::Fetch, &fetch);
  EXPECT_EQ(Snapshot().requests_under_way, 1u);
  EXPECT_EQ(Snapshot().loads_waiting, 8u);
  world_->Advance(21'000'000);
  ASSERT_TRUE(fetch.done());
  const TimeHistogram times = Snapshot().requests[kFetch];
  EXPECT_EQ(times.count(), 1u);
  EXPECT_GE(times.sum_seconds(), 0.02);
  world_->disk(kDrive).Hang(false);
  world_->Advance(100'000'000);
}

TEST_F(CoreSnapshotTest, WhatAFetchSavesIsThePrefillThatItReplaces) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 16});
  ASSERT_EQ(Store(chain), 16u);
  ASSERT_EQ(Recall(chain), 16u);
  EXPECT_EQ(Of("local").counters.saved_ms, 0);  // Nobody said what a prefill takes.
  ReportPrefill(0.5);
  ASSERT_EQ(Recall(chain), 16u);
  const double tokens = 16.0 * layout_.tokens_per_block;
  EXPECT_NEAR(Of("local").counters.saved_ms, 0.5 * tokens, 0.05 * tokens);
  EXPECT_EQ(Of("local").counters.lost_ms, 0);
}

TEST_F(CoreSnapshotTest, WhatRanksOfOneEngineFetchIsSavedOnce) {
  Make(SmallCache());
  ManualClient first(world_.get(), ClientOptions{.tenant = "local", .engine = "e"});
  ManualClient second(world_.get(), ClientOptions{.tenant = "local", .engine = "e"});
  const Chain chain(layout_, {.seed = 1, .blocks = 16});
  ASSERT_EQ(Store(chain), 16u);
  ReportPrefill(0.5);
  for (ManualClient* const rank : {&first, &second}) {
    RegisterLayoutRequest layout;
    layout.layout = layout_;
    rank->Do(&Core::RegisterLayout, &layout);
    FetchRequest fetch;
    fetch.chain = Slice(chain);
    rank->Do(&Core::Fetch, &fetch);
  }
  const double tokens = 16.0 * layout_.tokens_per_block;
  EXPECT_NEAR(Of("local").counters.saved_ms, 0.5 * tokens, 0.05 * tokens);
}

TEST_F(CoreSnapshotTest, AFetchThatTookLongerThanThePrefillIsALoss) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  ReportPrefill(0.001);
  world_->disk(kDrive).Hang(true);
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  client_->Submit(&Core::Fetch, &fetch);
  world_->Advance(300'000'000);
  world_->disk(kDrive).Hang(false);
  world_->Advance(10'000'000);
  ASSERT_TRUE(fetch.done());
  ASSERT_TRUE(fetch.ops[0].status.ok());
  EXPECT_GE(Of("local").counters.lost_ms, 299);
  EXPECT_EQ(Of("local").counters.saved_ms, 0);
  Release(fetch);
}

TEST_F(CoreSnapshotTest, RefusalsAreCountedByReason) {
  Make(SmallCache());
  DrainRequest drain;
  client_->Do(&Core::Drain, &drain);
  EXPECT_TRUE(Snapshot().draining);
  EXPECT_EQ(Store(Chain(layout_, {.seed = 1, .blocks = 5})), 0u);
  EXPECT_EQ(Snapshot().refused[static_cast<size_t>(Refusal::kDraining)], 5u);
  EXPECT_EQ(Of("local").counters.reserve_refused, 5u);
}

TEST_F(CoreSnapshotTest, SessionsAreListedInOrderAndWalked) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 12});
  ASSERT_EQ(Store(chain), 12u);
  for (const char* name : {"b", "a", "c"}) {
    SessionForecast forecast;
    forecast.session = name;
    forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
    world_->core().Hint(client_->number(), forecast, chain.keys().back());
  }
  world_->Advance(1);
  const auto first = world_->core().Sessions("local", "", 2);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].name, "a");
  EXPECT_EQ(first[0].blocks, 12u);
  EXPECT_EQ(first[0].bytes, 12 * kBlockBytes);
  EXPECT_EQ(first[0].head, chain.keys().back());
  EXPECT_EQ(world_->core().Sessions("local", "b", 2).size(), 1u);
  EXPECT_TRUE(world_->core().Sessions("nobody", "", 2).empty());

  std::optional<BlockName> next;
  std::vector<Key> keys;
  EXPECT_TRUE(world_->core().SessionKeys("local", "a", 5, &next, &keys));
  EXPECT_TRUE(world_->core().SessionKeys("local", "a", 5, &next, &keys));
  EXPECT_FALSE(world_->core().SessionKeys("local", "a", 5, &next, &keys));
  std::reverse(keys.begin(), keys.end());
  EXPECT_TRUE(std::equal(keys.begin(), keys.end(), chain.keys().begin(), chain.keys().end()));
  next.reset();
  EXPECT_FALSE(world_->core().SessionKeys("local", "nobody's", 5, &next, &keys));
}

}  // namespace
}  // namespace aquifer
