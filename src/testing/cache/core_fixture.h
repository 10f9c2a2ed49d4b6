// Shared by tests of the Core: a ManualWorld with one client and one layout, and calls that wait
// for their answers. Other tenants attach with AttachAs().
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "cache/core.h"
#include "testing/cache/manual_world.h"
#include "testing/chain.h"

namespace aquifer {

class CoreFixture : public ::testing::Test {
 protected:
  static constexpr char kDrive[] = "drive";
  static constexpr uint64_t kBlockBytes = 16 << 10;

  explicit CoreFixture(uint64_t block_bytes = kBlockBytes) : layout_(LayoutOfBytes(block_bytes)) {}

  // Small enough that everything fills up; the drive has sixteen segments.
  static CoreOptions SmallCache(uint64_t dram_blocks = 64, bool nvme = true) {
    CoreOptions options;
    options.extent_bytes = 16 * kBlockBytes;
    options.cache.dram_bytes = dram_blocks * kBlockBytes;
    options.cache.keep_available_bytes = 0;
    if (nvme) {
      options.cache.nvme_directories = {kDrive};
      options.cache.nvme_bytes = 64 << 20;
      options.cache.nvme_segment_bytes = 4 << 20;
    }
    return options;
  }

  void Make(const CoreOptions& options) {
    world_ = std::make_unique<ManualWorld>(options);
    Attach();
  }
  void Attach() { client_ = AttachAs("local"); }
  void Restart() {
    world_->Restart();
    Attach();
  }
  // On two drives, "one" and "two": the chain is flushed to "two" alone, which is then away while
  // "one" is there, so many seconds later by the calendar.
  void StoreWhereADriveIsAwayThen(const Chain& chain, int64_t seconds,
                                  CoreOptions options = SmallCache()) {
    options.cache.nvme_directories = {"one", "two"};
    Make(options);
    world_->FailOpeningOf("one", true);
    Restart();
    ASSERT_EQ(Store(chain), chain.size());
    ASSERT_TRUE(Flush().ok());
    world_->FailOpeningOf("one", false);
    world_->FailOpeningOf("two", true);
    world_->clock().SetUnixSeconds(world_->clock().UnixSeconds() + seconds);
    Restart();
  }
  // The layout has one handle, whoever registers it.
  std::unique_ptr<ManualClient> AttachAs(const std::string& tenant) {
    auto client = std::make_unique<ManualClient>(world_.get(), ClientOptions{.tenant = tenant});
    RegisterLayoutRequest request;
    request.layout = layout_;
    client->Do(&Core::RegisterLayout, &request);
    EXPECT_TRUE(request.status.ok()) << request.status.ToString();
    handle_ = request.handle;
    return client;
  }

  ChainSlice Slice(const Chain& chain) const {
    return {.layout = handle_, .group = 0, .part = 0, .keys = chain.keys()};
  }

  std::unique_ptr<ReserveRequest> Reserve(const Chain& chain, ManualClient* client) {
    auto reserve = std::make_unique<ReserveRequest>();
    reserve->chain = Slice(chain);
    reserve->parent = chain.parent(0);
    client->Do(&Core::Reserve, reserve.get());
    return reserve;
  }

  // Returns how many were published. An engine that computes a block once more may get other bytes:
  // another `computation`.
  size_t Store(const Chain& chain, ManualClient* client, uint16_t computation = 0) {
    const auto reserve = Reserve(chain, client);
    CommitRequest commit;
    for (size_t i = 0; i < reserve->ops.size(); ++i) {
      if (reserve->ops[i].outcome != ReserveOutcome::kSlot) continue;
      if (!zeros_) FillPayload(chain[i], computation, reserve->ops[i].slot);
      CommitOp op;
      op.reservation = reserve->ops[i].reservation;
      op.sums = SumLanes(reserve->ops[i].slot, 0);
      commit.ops.push_back(std::move(op));
    }
    client->Do(&Core::Commit, &commit);
    size_t published = 0;
    for (const CommitOp& op : commit.ops) published += op.published ? 1 : 0;
    return published;
  }
  size_t Store(const Chain& chain) { return Store(chain, client_.get()); }

  Status Flush() {
    FlushRequest flush;
    flush.timeout_nanos = 100 * kDefaultTimeoutNanos;
    client_->Do(&Core::Flush, &flush);
    return flush.status;
  }

  std::unique_ptr<FetchRequest> Fetch(const Chain& chain) {
    auto fetch = std::make_unique<FetchRequest>();
    fetch->chain = Slice(chain);
    client_->Do(&Core::Fetch, fetch.get());
    return fetch;
  }
  void Release(const FetchRequest& fetch) {
    std::vector<ReleaseOp> leases;
    for (const FetchOp& op : fetch.ops) {
      if (op.lease != 0) leases.push_back({.lease = op.lease, .corrupt = false});
    }
    client_->Release(leases);
  }

  // Returns how many blocks were served; every byte of them is right.
  size_t Recall(const Chain& chain, std::vector<Code>* codes = nullptr, uint16_t computation = 0) {
    const auto fetch = Fetch(chain);
    size_t served = 0;
    for (size_t i = 0; i < fetch->ops.size(); ++i) {
      const FetchOp& op = fetch->ops[i];
      if (codes != nullptr) codes->push_back(op.status.code());
      if (!op.status.ok()) continue;
      EXPECT_TRUE(zeros_ || IsPayload(chain[i], computation, op.bytes)) << "block " << i;
      EXPECT_EQ(ChecksumOf(op.bytes), op.checksum);
      ++served;
    }
    Release(*fetch);
    return served;
  }

  std::unique_ptr<EvictRequest> Evict(const Chain& chain) {
    auto evict = std::make_unique<EvictRequest>();
    evict->chain = Slice(chain);
    client_->Do(&Core::Evict, evict.get());
    return evict;
  }

  // Of the whole chain; carried out when the world runs.
  void Hint(const Chain& chain, int64_t ttl_seconds) {
    SessionForecast forecast;
    forecast.session = "session";
    forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
    forecast.ttl_seconds = ttl_seconds;
    world_->core().Hint(client_->number(), forecast, chain.keys().back());
    world_->meter().EndTask();
  }

  uint64_t Counter(const std::string& name) {
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    return stats.stats.Counter(name);
  }

  const Layout layout_;
  bool zeros_ = false;  // Blocks are stored as they are, which costs no memory.
  std::unique_ptr<ManualWorld> world_;
  std::unique_ptr<ManualClient> client_;
  LayoutHandle handle_ = 0;
};

}  // namespace aquifer
