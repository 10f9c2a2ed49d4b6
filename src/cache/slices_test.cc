// No task of the owner looks at more than a few thousand entries, however long the chains, however
// much a drive holds, however many slots a client gives back at once, however many requests wait
// for the same.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cache/core.h"
#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

constexpr uint64_t kSmallBlock = 4096;
constexpr size_t kBlocks = 100'000;
// Each takes five to ten nanoseconds, so that a task stays under 100 us.
constexpr uint64_t kMostEntries = 10'000;

class SlicesTest : public CoreFixture {
 protected:
  SlicesTest() : CoreFixture(kSmallBlock) { zeros_ = true; }

  void Make(uint64_t dram_bytes, bool nvme) {
    CoreOptions options;
    options.max_blocks = 4 * kBlocks;
    options.cache.dram_bytes = dram_bytes;
    options.cache.keep_available_bytes = 0;
    if (nvme) {
      options.cache.nvme_directories = {kDrive};
      options.cache.nvme_bytes = uint64_t{4} << 30;
    }
    CoreFixture::Make(options);
  }

  // Since the last time.
  void ExpectShortTasks(const char* what) {
    EXPECT_LE(world_->meter().most(), kMostEntries) << what;
    EXPECT_GT(world_->meter().most(), 0u) << what;
    RecordProperty(what, static_cast<int>(world_->meter().most()));
    world_->meter().ResetMost();
  }
};

TEST_F(SlicesTest, StoringMatchingAndFetchingALongChain) {
  Make(uint64_t{512} << 20, false);
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  ASSERT_EQ(Store(chain), chain.size());
  ExpectShortTasks("store");
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, kBlocks);
  world_->Run();
  ExpectShortTasks("match");
  const auto fetch = Fetch(chain);
  ExpectShortTasks("fetch");
  Release(*fetch);
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
  ASSERT_EQ(Store(chain), chain.size());
  world_->meter().ResetMost();
  Hint(chain, 1'000'000);
  world_->Run();
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
  ASSERT_EQ(Store(chain), chain.size());
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
  world_->meter().EndTask();
  world_->Run();
  ExpectShortTasks("detach");
  Attach();
  EXPECT_EQ(Counter("aborted"), 2 * kBlocks);
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
}

TEST_F(SlicesTest, ReservationsThatAreOverdueTogether) {
  CoreOptions options;
  options.max_blocks = 4 * kBlocks;
  options.cache.dram_bytes = uint64_t{512} << 20;
  options.cache.keep_available_bytes = 0;
  options.cache.overdue_nanos = 1'000'000'000;
  CoreFixture::Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 4000});
  const auto reserved = Reserve(chain, client_.get());
  ASSERT_EQ(reserved->ops.back().outcome, ReserveOutcome::kSlot);
  world_->meter().ResetMost();
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Counter("overdue_reservations"), chain.size());
  ExpectShortTasks("overdue");
}

TEST_F(SlicesTest, DeletingASessionThatGoesOnInManyBranches) {
  Make(uint64_t{512} << 20, false);
  uint64_t last = 0;
  size_t stored = 0;
  const auto store = [&](const Key& parent, uint32_t position) {
    Key key{};
    ++last;
    std::memcpy(key.bytes.data(), &last, sizeof(last));
    ReserveRequest reserve;
    reserve.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {&key, 1}};
    reserve.parent = parent;
    reserve.position = position;
    client_->Do(&Core::Reserve, &reserve);
    CommitRequest commit;
    commit.ops.resize(1);
    commit.ops[0].reservation = reserve.ops[0].reservation;
    commit.ops[0].sums = SumLanes(reserve.ops[0].slot, 0);
    client_->Do(&Core::Commit, &commit);
    stored += commit.ops[0].published ? 1 : 0;
    return key;
  };
  const Chain root(layout_, {.seed = 1, .blocks = 1});
  const Key end = store(root.parent(0), 0);
  Key next = store(end, 1);
  for (uint32_t position = 2; position < 102; ++position) {
    const Key branches = next;
    next =
        store(branches, position);  // The first child is looked at last, so the tree goes on there.
    for (size_t leaf = 0; leaf < 300; ++leaf) store(branches, position);
  }
  ASSERT_EQ(stored, 2 + 100 * 301u);
  SessionForecast forecast;
  forecast.session = "session";
  forecast.chain = {.layout = handle_, .group = 0, .part = 0, .keys = {}};
  world_->core().Hint(client_->number(), forecast, end);
  world_->Run();
  world_->meter().ResetMost();
  EvictRequest evict;
  evict.session = "session";
  client_->Do(&Core::Evict, &evict);
  EXPECT_TRUE(evict.status.ok()) << evict.status.ToString();
  EXPECT_EQ(evict.evicted, stored);
  ExpectShortTasks("evict");
}

// Each tried once below the same block, fetched, and deleted while it is lent.
TEST_F(SlicesTest, WalkingUpASessionBesideManyThatAreGoneAndStillLent) {
  Make(uint64_t{512} << 20, false);
  const Chain chain(layout_, {.seed = 1, .blocks = 64});
  ASSERT_EQ(Store(chain), chain.size());
  std::vector<std::unique_ptr<FetchRequest>> lent;
  for (uint64_t seed = 2; seed < 15'000; ++seed) {
    const Chain tried = chain.Fork(60, seed, 1);
    ASSERT_EQ(Store(tried), 1u);
    lent.push_back(std::make_unique<FetchRequest>());
    lent.back()->chain = Slice(tried);
    lent.back()->chain.keys = tried.keys(60, 1);
    client_->Do(&Core::Fetch, lent.back().get());
    EvictRequest evict;
    evict.chain = lent.back()->chain;
    client_->Do(&Core::Evict, &evict);
    ASSERT_EQ(evict.evicted, 1u);
  }
  world_->meter().ResetMost();
  Hint(chain, 0);
  world_->Run();
  ExpectShortTasks("hint");
  EvictRequest evict;
  evict.session = "session";
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.status.code(), Code::kNotFound) << "whose the others are cannot be told";
  ExpectShortTasks("evict");
}

TEST_F(SlicesTest, DrainingRestartingAndReadingBack) {
  Make(uint64_t{512} << 20, true);
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kNoSpace);
  ASSERT_EQ(Store(chain), chain.size());
  ExpectShortTasks("store with a drive");
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kOk);
  DrainRequest drain;
  drain.timeout_nanos = 1000 * kDefaultTimeoutNanos;
  client_->Do(&Core::Drain, &drain);
  EXPECT_TRUE(drain.status.ok()) << drain.status.ToString();
  EXPECT_EQ(drain.left, 0u);
  ExpectShortTasks("drain");

  Restart();
  EXPECT_EQ(Counter("blocks"), kBlocks);
  ExpectShortTasks("recovery");
  Hint(chain, 0);
  world_->Run();
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
  ASSERT_EQ(Store(chain), chain.size());
  world_->meter().ResetMost();
  world_->Advance(10'000'000'000);  // It is out of service now, and what waits for it may go.
  ExpectShortTasks("out of service");
  world_->disk(kDrive).Hang(false);
  world_->Advance(10'000'000'000);
  ASSERT_TRUE(Flush().ok());
  ExpectShortTasks("back in service");
}

TEST_F(SlicesTest, MemoryMovesToAnotherTenant) {
  Make(uint64_t{128} << 20, false);
  const Chain chain(layout_, {.seed = 1, .blocks = 30'000});
  ASSERT_EQ(Store(chain), chain.size());
  const auto other = AttachAs("other");
  world_->meter().ResetMost();
  const Chain wanted(layout_, {.seed = 2, .blocks = 1000, .tenant = "other"});
  ASSERT_TRUE(world_->RunUntil([&] {
    const auto reserve = Reserve(wanted, other.get());
    return reserve->ops.back().outcome == ReserveOutcome::kSlot;
  }));
  ExpectShortTasks("reclaim of an extent");
}

TEST_F(SlicesTest, DeletingWhatADriveMayHoldThatComesLater) {
  Make(uint64_t{512} << 20, true);
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  ASSERT_EQ(Store(chain), chain.size());
  ASSERT_TRUE(Flush().ok());
  world_->FailReads(true);
  Restart();
  world_->meter().ResetMost();
  const Chain remembered(layout_, {.seed = 1, .blocks = 30'000});
  EXPECT_EQ(Evict(remembered)->status.code(), Code::kUnavailable);
  EXPECT_EQ(Evict(chain)->status.code(), Code::kBusy);
  ExpectShortTasks("evict with a drive that cannot be read");
  world_->FailReads(false);
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Counter("pending_erasures"), 0u);
  ExpectShortTasks("the drive is read, and what was deleted is deleted there");
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 0u);
}

TEST_F(SlicesTest, ReclaimingSegmentsOfManySmallBlocks) {
  CoreOptions options;
  options.max_blocks = 4 * kBlocks;
  options.cache.dram_bytes = uint64_t{256} << 20;
  options.cache.keep_available_bytes = 0;
  options.cache.nvme_directories = {kDrive};
  options.cache.nvme_bytes = uint64_t{320} << 20;  // Five segments of some 15 000 blocks.
  options.cache.nvme_segment_bytes = uint64_t{64} << 20;
  CoreFixture::Make(options);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const Chain chain(layout_, {.seed = seed, .blocks = 30'000});
    world_->meter().ResetMost();
    ASSERT_EQ(Store(chain), chain.size());
    FlushRequest flush;
    flush.timeout_nanos = 100 * kDefaultTimeoutNanos;
    client_->Do(&Core::Flush, &flush);
    ExpectShortTasks("store and flush");
  }
  EXPECT_GT(Counter("nvme_segments_reclaimed"), 2u);
  EXPECT_GT(Counter("nvme_reclaim_moved_blocks"), 1000u);
}

// Each takes the place of forty: more than one task drops.
TEST_F(SlicesTest, WritingLargeBlocksAtACeilingThatSmallOnesFill) {
  CoreOptions options;
  options.max_blocks = 4 * kBlocks;
  options.cache.dram_bytes = uint64_t{512} << 20;
  options.cache.keep_available_bytes = 0;
  options.cache.nvme_directories = {kDrive};
  options.cache.nvme_bytes = uint64_t{4} << 30;
  TenantOptions tenant;
  tenant.name = "local";
  tenant.nvme_ceiling_bytes = 20'000 * kSmallBlock;
  options.cache.tenants = {tenant};
  CoreFixture::Make(options);
  const Chain small(layout_, {.seed = 1, .blocks = 20'000});
  ASSERT_EQ(Store(small), small.size());
  ASSERT_TRUE(Flush().ok());
  RegisterLayoutRequest larger;
  larger.layout = LayoutOfBytes(40 * kSmallBlock);
  client_->Do(&Core::RegisterLayout, &larger);
  handle_ = larger.handle;
  const Chain large(larger.layout, {.seed = 2, .blocks = 400});
  world_->meter().ResetMost();
  ASSERT_EQ(Store(large), large.size());
  const Status flushed = Flush();
  EXPECT_TRUE(flushed.ok()) << flushed.ToString();
  ExpectShortTasks("write");
  EXPECT_EQ(Counter("write_down_refused"), 0u);
  Restart();
  handle_ = 0;
  client_->Do(&Core::RegisterLayout, &larger);
  handle_ = larger.handle;
  EXPECT_EQ(Recall(large), large.size());
}

TEST_F(SlicesTest, MatchingAChainWhoseBlocksLieInTurnsInTwoTiers) {
  Make(uint64_t{512} << 20, true);
  const Chain chain(layout_, {.seed = 1, .blocks = kBlocks});
  ASSERT_EQ(Store(chain), chain.size());
  ASSERT_TRUE(Flush().ok());
  Restart();
  std::vector<Key> every_other;
  for (size_t i = 0; i < kBlocks; i += 2) every_other.push_back(chain[i]);
  PrestageRequest prestage;
  prestage.chain = {.layout = handle_, .group = 0, .part = 0, .keys = every_other};
  prestage.timeout_nanos = 1000 * kDefaultTimeoutNanos;
  client_->Do(&Core::Prestage, &prestage);
  ASSERT_EQ(prestage.staged, every_other.size());
  world_->meter().ResetMost();
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.runs.size(), kMaxMatchRuns);
  EXPECT_EQ(match.matched, kMaxMatchRuns);
  EXPECT_EQ(match.pays, kMaxMatchRuns);
  EXPECT_GT(match.runs.back().estimated_ms, 0);
  ExpectShortTasks("match");
  match.have = kBlocks - kMaxMatchRuns;
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, kMaxMatchRuns);
}

// Eight clients with a thousand requests each, all of which wait for a drive.
class CrowdTest : public SlicesTest {
 protected:
  static constexpr size_t kClients = 8;
  static constexpr size_t kRequests = 1000;

  CrowdTest() : chain_(layout_, {.seed = 1, .blocks = 100}) {
    Make(uint64_t{64} << 20, true);
    for (size_t i = 0; i < kClients; ++i) crowd_.push_back(AttachAs("local"));
    world_->disk(kDrive).Hang(true);
    EXPECT_EQ(Store(chain_), chain_.size());
    world_->meter().ResetMost();
  }

  template <class R>
  void Submit(void (Core::*call)(ClientNumber, R*), const std::function<void(R*)>& fill) {
    for (size_t i = 0; i < kClients * kRequests; ++i) {
      auto request = std::make_unique<R>();
      fill(request.get());
      crowd_[i % kClients]->Submit(call, request.get());
      requests_.push_back(std::move(request));
    }
    world_->Run();
    EXPECT_EQ(Answered(), 0u);
  }
  void SubmitFlushes(int64_t timeout_nanos = kDefaultTimeoutNanos) {
    Submit<FlushRequest>(&Core::Flush, [timeout_nanos](FlushRequest* flush) {
      flush->timeout_nanos = timeout_nanos;
    });
  }
  size_t Answered() const {
    size_t done = 0;
    for (const auto& request : requests_) done += request->done() ? 1 : 0;
    return done;
  }

  const Chain chain_;
  std::vector<std::unique_ptr<ManualClient>> crowd_;
  std::vector<std::unique_ptr<Request>> requests_;
};

TEST_F(CrowdTest, FlushesThatAreThroughTogether) {
  SubmitFlushes();
  world_->disk(kDrive).Hang(false);
  EXPECT_TRUE(world_->RunUntil([&] { return Answered() == requests_.size(); }));
  EXPECT_TRUE(requests_.back()->status.ok()) << requests_.back()->status.ToString();
  ExpectShortTasks("flushes");
}

TEST_F(CrowdTest, FlushesThatFailTogether) {
  SubmitFlushes(100 * kDefaultTimeoutNanos);
  world_->Advance(10'000'000'000);  // The drive is given up.
  EXPECT_TRUE(world_->RunUntil([&] { return Answered() == requests_.size(); }));
  EXPECT_EQ(requests_.back()->status.code(), Code::kUnavailable);
  ExpectShortTasks("flushes that fail");
}

TEST_F(CrowdTest, FlushesWhoseTimeIsOverTogether) {
  SubmitFlushes(1'000'000);
  EXPECT_TRUE(world_->RunUntil([&] { return Answered() == requests_.size(); }));
  EXPECT_EQ(requests_.back()->status.code(), Code::kLate);
  ExpectShortTasks("flushes that are late");
}

TEST_F(CrowdTest, EvictionsThatAreThroughTogether) {
  Submit<EvictRequest>(&Core::Evict, [this](EvictRequest* evict) {
    evict->chain = Slice(chain_);
    evict->chain.keys = evict->chain.keys.first(1);
  });
  world_->disk(kDrive).Hang(false);
  EXPECT_TRUE(world_->RunUntil([&] { return Answered() == requests_.size(); }));
  EXPECT_TRUE(requests_.back()->status.ok()) << requests_.back()->status.ToString();
  ExpectShortTasks("evictions");
}

TEST_F(CrowdTest, ClientsThatLeaveWithAllTheirRequestsOpen) {
  SubmitFlushes();
  world_->meter().ResetMost();
  size_t gone = 0;
  for (size_t i = 0; i < kClients; ++i) {
    world_->core().Detach(crowd_[i]->number(), [&gone] { ++gone; });
    world_->meter().EndTask();
  }
  requests_.clear();  // They are ours again.
  world_->Run();
  EXPECT_EQ(gone, kClients);
  ExpectShortTasks("detach");
  EXPECT_EQ(world_->core().Snapshot().requests_under_way, 0u);
  world_->disk(kDrive).Hang(false);
  world_->Advance(1'000'000'000);
  EXPECT_TRUE(Flush().ok());
}

TEST_F(CrowdTest, RequestsThatAreCancelled) {
  SubmitFlushes();
  world_->meter().ResetMost();
  for (const size_t i : {size_t{0}, requests_.size() / 2, requests_.size() - 1}) {
    world_->core().Cancel(crowd_[i % kClients]->number(), requests_[i].get());
    world_->meter().EndTask();
    EXPECT_EQ(requests_[i]->status.code(), Code::kLate);
  }
  EXPECT_EQ(Answered(), 3u);
  ExpectShortTasks("cancel");
}

TEST_F(SlicesTest, OneKeyThatIsAskedForAHundredThousandTimes) {
  Make(uint64_t{64} << 20, true);
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  ASSERT_EQ(Store(chain), 1u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  const std::vector<Key> keys(kBlocks, chain[0]);
  world_->meter().ResetMost();
  for (const char* where : {"one key from the drive", "one key from memory"}) {
    FetchRequest fetch;
    fetch.chain = {.layout = handle_, .group = 0, .part = 0, .keys = keys};
    fetch.timeout_nanos = 100 * kDefaultTimeoutNanos;
    client_->Do(&Core::Fetch, &fetch);
    size_t told_why = 0;
    for (const FetchOp& op : fetch.ops) told_why += op.status.message().empty() ? 0 : 1;
    EXPECT_EQ(fetch.ops.back().status.code(), Code::kBusy) << "a block has 65 535 leases";
    EXPECT_EQ(told_why, 1u) << "memory is taken for every message";
    Release(fetch);
    world_->Run();
    ExpectShortTasks(where);
  }
}

}  // namespace
}  // namespace aquifer
