// A CoreFixture whose cache has a durable tier over a store that a test can look into and break.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/cache/core_fixture.h"
#include "testing/cache/fake_durable_tier.h"

namespace aquifer {

class CoreDurableFixture : public CoreFixture {
 protected:
  CoreDurableFixture() { sources_.push_back(SourceOf("store", &store_, &tier_)); }

  static DurableTierSource SourceOf(const std::string& name, FakeStore* store,
                                    FakeDurableTier** made) {
    DurableTierSource source;
    source.name = name;
    source.make = [name, store,
                   made](const DurableTierParts& parts) -> Result<std::unique_ptr<DurableTier>> {
      auto tier =
          std::make_unique<FakeDurableTier>(name, store, parts.listener, parts.owner, parts.clock);
      *made = tier.get();
      return std::unique_ptr<DurableTier>(std::move(tier));
    };
    return source;
  }

  static CoreOptions DurableCache(uint64_t dram_blocks = 64, bool nvme = false) {
    CoreOptions options = SmallCache(dram_blocks, nvme);
    TenantOptions tenant;
    tenant.name = "local";
    tenant.durability = Durability::kDurable;
    options.cache.tenants = {tenant};
    return options;
  }

  void MakeDurable(const CoreOptions& options) {
    world_ = std::make_unique<ManualWorld>(options, nullptr, sources_);
    Attach();
  }
  // Another node, of which nothing is on this disk, uses the same stores.
  void MakeAnother(const CoreOptions& options) {
    client_.reset();
    world_.reset();
    MakeDurable(options);
  }

  std::unique_ptr<MatchRequest> Match(const Chain& chain) {
    auto match = std::make_unique<MatchRequest>();
    match->chain = Slice(chain);
    client_->Do(&Core::Match, match.get());
    return match;
  }
  Status FlushTo(TierKind tier, int64_t timeout_nanos = 1'000'000'000) {
    FlushRequest flush;
    flush.tier = tier;
    flush.timeout_nanos = timeout_nanos;
    client_->Do(&Core::Flush, &flush);
    return flush.status;
  }
  // Such as NVMe has it, and the store, which fails, has not. It fails on, and the cache was
  // started again.
  void LeaveOnlyOnNvme(const Chain& chain) {
    store_.fail_writes = Code::kUnavailable;
    ASSERT_EQ(Store(chain), chain.size());
    EXPECT_EQ(FlushTo(TierKind::kNvme).code(), Code::kLate);  // NVMe has it by now.
    Restart();
  }
  DurableStats StatsOfStore() { return world_->core().Snapshot().durable.at(0); }
  size_t BlobsOf(const Chain& chain) const {
    size_t there = 0;
    for (const Key& key : chain.keys()) {
      there += static_cast<size_t>(
          std::count_if(store_.blobs.begin(), store_.blobs.end(),
                        [&](const auto& blob) { return blob.first.key == key; }));
    }
    return there;
  }
  std::map<BlockId, FakeStore::Blob>::iterator BlobOf(const Key& key) {
    return std::find_if(store_.blobs.begin(), store_.blobs.end(),
                        [&](const auto& blob) { return blob.first.key == key; });
  }
  void NameSession(const Chain& chain, const std::string& session,
                   Durability durability = Durability::kNone) {
    SessionForecast forecast;
    forecast.session = session;
    forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
    forecast.durability = durability;
    world_->core().Hint(client_->number(), forecast, chain.keys().back());
    world_->meter().EndTask();
  }

  FakeStore store_;
  FakeDurableTier* tier_ = nullptr;  // Of the running cache.
  std::vector<DurableTierSource> sources_;
};

}  // namespace aquifer
