// No task of the owner looks at more than a few thousand entries, however long the chains, however
// much a drive holds, however many slots a client gives back at once.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/core.h"
#include "testing/chain.h"
#include "testing/manual_world.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr size_t kBlocks = 100'000;
constexpr char kDrive[] = "drive";
// Each takes five to ten nanoseconds, so that a task stays under 100 us.
constexpr uint64_t kMostEntries = 10'000;

class SlicesTest : public ::testing::Test {
 protected:
  void Make(uint64_t dram_bytes, bool nvme) {
    CoreOptions options;
    options.max_blocks = 4 * kBlocks;
    options.cache.dram_bytes = dram_bytes;
    options.cache.keep_available_bytes = 0;
    if (nvme) {
      options.cache.nvme_directories = {kDrive};
      options.cache.nvme_bytes = uint64_t{4} << 30;
    }
    world_ = std::make_unique<ManualWorld>(options);
    client_ = Attach("local");
  }

  std::unique_ptr<ManualClient> Attach(const std::string& tenant) {
    auto client = std::make_unique<ManualClient>(world_.get(), ClientOptions{.tenant = tenant});
    RegisterLayoutRequest request;
    request.layout = layout_;
    client->Do(&Core::RegisterLayout, &request);
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

  // All of it zero, which costs no memory.
  void Store(const Chain& chain, ManualClient* client) {
    const auto reserve = Reserve(chain, client);
    CommitRequest commit;
    commit.ops.reserve(reserve->ops.size());
    for (const ReserveOp& slot : reserve->ops) {
      ASSERT_EQ(slot.outcome, ReserveOutcome::kSlot);
      CommitOp op;
      op.reservation = slot.reservation;
      op.sums = SumLanes(slot.slot, 0);
      commit.ops.push_back(std::move(op));
    }
    client->Do(&Core::Commit, &commit);
    ASSERT_TRUE(commit.ops.back().published);
  }

  void Flush() {
    FlushRequest flush;
    flush.timeout_nanos = 100 * kDefaultTimeoutNanos;
    client_->Do(&Core::Flush, &flush);
    ASSERT_TRUE(flush.status.ok()) << flush.status.ToString();
  }

  std::unique_ptr<FetchRequest> Fetch(const Chain& chain) {
    auto fetch = std::make_unique<FetchRequest>();
    fetch->chain = Slice(chain);
    client_->Do(&Core::Fetch, fetch.get());
    return fetch;
  }

  void Hint(const Chain& chain, int64_t ttl_seconds) {
    SessionForecast forecast;
    forecast.session = "session";
    forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
    forecast.ttl_seconds = ttl_seconds;
    world_->core().Hint(client_->number(), forecast, chain.keys().back());
    EndTask();
    world_->Run();
  }

  // What the test itself did on the owner's behalf.
  void EndTask() { world_->meter().EndTask(); }

  // Since the last time.
  void ExpectShortTasks(const char* what) {
    EXPECT_LE(world_->meter().most(), kMostEntries) << what;
    EXPECT_GT(world_->meter().most(), 0u) << what;
    RecordProperty(what, static_cast<int>(world_->meter().most()));
    world_->meter().ResetMost();
  }

  uint64_t Counter(const std::string& name) {
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    return stats.stats.Counter(name);
  }

  const Layout layout_ = LayoutOfBytes(kBlockBytes);
  std::unique_ptr<ManualWorld> world_;
  std::unique_ptr<ManualClient> client_;
  LayoutHandle handle_ = 0;
};

TEST_F(SlicesTest, StoringMatchingAndFetchingALongChain) {
  Make(uint64_t{512} << 20, false);
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  Store(chain, client_.get());
  ExpectShortTasks("store");
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, kBlocks);
  world_->Run();
  ExpectShortTasks("match");
  const auto fetch = Fetch(chain);
  ExpectShortTasks("fetch");
  std::vector<ReleaseOp> leases;
  for (const FetchOp& op : fetch->ops) leases.push_back({.lease = op.lease, .corrupt = false});
  client_->Release(leases);
  world_->Run();
  ExpectShortTasks("release");
  EvictRequest evict;
  evict.chain = Slice(chain);
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.evicted, kBlocks);
  ExpectShortTasks("evict");
}

TEST_F(SlicesTest, WalkingALongSession) {
  Make(uint64_t{512} << 20, false);
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  Store(chain, client_.get());
  world_->meter().ResetMost();
  Hint(chain, 1'000'000);
  ExpectShortTasks("hint");
  PrestageRequest by_session;
  by_session.session = "session";
  client_->Do(&Core::Prestage, &by_session);
  EXPECT_EQ(by_session.staged, kBlocks);
  ExpectShortTasks("prestage by session");
  PrestageRequest by_keys;
  by_keys.chain = Slice(chain);
  client_->Do(&Core::Prestage, &by_keys);
  EXPECT_EQ(by_keys.staged, kBlocks);
  ExpectShortTasks("prestage by keys");
  EvictRequest evict;
  evict.session = "session";
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.evicted, kBlocks);
  ExpectShortTasks("evict by session");
}

TEST_F(SlicesTest, GivingBackAllThatAClientHolds) {
  Make(uint64_t{1} << 30, false);
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  const Chain unfinished(layout_, {.seed = 2, .blocks = kBlocks});
  Store(chain, client_.get());
  const auto aborted = Reserve(unfinished, client_.get());
  std::vector<ReservationId> ids;
  for (const ReserveOp& op : aborted->ops) ids.push_back(op.reservation);
  world_->meter().ResetMost();
  client_->Abort(ids);
  world_->Run();
  ExpectShortTasks("abort");
  EXPECT_EQ(Counter("aborted"), kBlocks);

  const auto fetch = Fetch(chain);
  const auto reserve = Reserve(unfinished, client_.get());
  world_->meter().ResetMost();
  client_->Detach();
  EndTask();
  world_->Run();
  ExpectShortTasks("detach");
  client_ = Attach("local");
  EXPECT_EQ(Counter("aborted"), 2 * kBlocks);
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
}

TEST_F(SlicesTest, DrainingRestartingAndReadingBack) {
  Make(uint64_t{512} << 20, true);
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kNoSpace);
  Store(chain, client_.get());
  ExpectShortTasks("store with a drive");
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kOk);
  DrainRequest drain;
  drain.timeout_nanos = 1000 * kDefaultTimeoutNanos;
  client_->Do(&Core::Drain, &drain);
  EXPECT_TRUE(drain.status.ok()) << drain.status.ToString();
  EXPECT_EQ(drain.left, 0u);
  ExpectShortTasks("drain");

  world_->Restart();
  client_ = Attach("local");
  EXPECT_EQ(Counter("blocks"), kBlocks);
  ExpectShortTasks("recovery");
  Hint(chain, 0);
  world_->meter().ResetMost();
  world_->disk(kDrive).Hang(true);
  FetchRequest late;
  late.chain = Slice(chain);
  late.timeout_nanos = 10'000'000;
  client_->Do(&Core::Fetch, &late);
  EXPECT_EQ(late.ops.back().status.code(), Code::kLate);
  ExpectShortTasks("a late fetch");
  world_->disk(kDrive).Hang(false);
  PrestageRequest prestage;
  prestage.session = "session";
  prestage.timeout_nanos = 1000 * kDefaultTimeoutNanos;
  client_->Do(&Core::Prestage, &prestage);
  EXPECT_EQ(prestage.staged, kBlocks);
  ExpectShortTasks("prestage from the drive");
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  EXPECT_EQ(evict.evicted, kBlocks);
  ExpectShortTasks("evict everything");
}

TEST_F(SlicesTest, ADriveThatFailsWhileMuchWaitsForIt) {
  Make(uint64_t{512} << 20, true);
  world_->disk(kDrive).Hang(true);
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  Store(chain, client_.get());
  world_->meter().ResetMost();
  world_->Advance(10'000'000'000);  // It is out of service now, and what waits for it may go.
  ExpectShortTasks("out of service");
  world_->disk(kDrive).Hang(false);
  world_->Advance(10'000'000'000);
  Flush();
  ExpectShortTasks("back in service");
}

TEST_F(SlicesTest, MemoryMovesToAnotherTenant) {
  Make(uint64_t{128} << 20, false);
  const Chain chain(layout_, {.seed = 1, .blocks = 30'000});
  Store(chain, client_.get());
  const auto other = Attach("other");
  world_->meter().ResetMost();
  const Chain wanted(layout_, {.seed = 2, .blocks = 1000, .tenant = "other"});
  ASSERT_TRUE(world_->RunUntil([&] {
    const auto reserve = Reserve(wanted, other.get());
    return reserve->ops.back().outcome == ReserveOutcome::kSlot;
  }));
  ExpectShortTasks("reclaim of an extent");
}

}  // namespace
}  // namespace aquifer
