// Who may read and write what, who pays for it, and what is told about it.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

using CoreTest = CoreFixture;

TEST_F(CoreTest, WhatWasFlushedIsThereAfterARestart) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  ASSERT_EQ(Store(chain), 20u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  EXPECT_EQ(Recall(chain), 20u);
  EXPECT_EQ(Counter("fetch_hits_nvme"), 20u);
}

TEST_F(CoreTest, ATenantSeesItsOwnFiguresAndTheAdministratorSeesAll) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 20});
  ASSERT_EQ(Store(chain), 20u);
  ASSERT_TRUE(Flush().ok());
  ManualClient other(world_.get(), {.tenant = "other"}, /*sees_all=*/false);
  ManualClient own(world_.get(), {.tenant = "local"}, /*sees_all=*/false);
  StatsRequest others;
  StatsRequest owns;
  other.Do(&Core::Stats, &others);
  own.Do(&Core::Stats, &owns);
  for (const auto& [name, value] : others.stats.counters) EXPECT_EQ(value, 0u) << name;
  ASSERT_EQ(others.stats.tiers.size(), 2u);
  for (const TierStats& tier : others.stats.tiers) {
    EXPECT_EQ(tier.used_bytes, 0u);
    EXPECT_EQ(tier.blocks, 0u);
    for (const DriveStats& drive : tier.drives) EXPECT_EQ(drive.directory, "");
  }
  EXPECT_EQ(owns.stats.Counter("committed"), 20u);
  for (const TierStats& tier : owns.stats.tiers) {
    EXPECT_EQ(tier.blocks, 20u);
    EXPECT_EQ(tier.used_bytes, tier.tenant_bytes);
    EXPECT_GE(tier.used_bytes, 20 * kBlockBytes);
  }
  EXPECT_EQ(Counter("blocks"), 20u);
  // What leaves is counted for whose it was.
  EvictRequest evict;
  evict.everything = true;
  own.Do(&Core::Evict, &evict);
  own.Do(&Core::Stats, &owns);
  other.Do(&Core::Stats, &others);
  EXPECT_EQ(owns.stats.Counter("dropped_asked"), 20u);
  EXPECT_EQ(owns.stats.tiers[0].blocks + owns.stats.tiers[1].blocks, 0u);
  EXPECT_EQ(others.stats.Counter("dropped_asked"), 0u);
}

TEST_F(CoreTest, TenantsAndTheirQuotasCanBeChangedWhileItRuns) {
  Make(SmallCache(64, false));
  const auto quota = [](const std::string& name, uint64_t floor_blocks, uint64_t ceiling_blocks) {
    TenantOptions tenant{.name = name};
    tenant.dram_floor_bytes = floor_blocks * kBlockBytes;
    tenant.dram_ceiling_bytes = ceiling_blocks * kBlockBytes;
    return tenant;
  };
  const Chain chain(layout_, {.seed = 1, .blocks = 32});
  const auto slots = [&](ManualClient* client) {
    const auto reserve = Reserve(chain, client);
    std::vector<ReservationId> given;
    for (const ReserveOp& op : reserve->ops) {
      if (op.reservation != 0) given.push_back(op.reservation);
    }
    client->Abort(given);
    world_->Run();
    return given.size();
  };
  const auto fresh = AttachAs("fresh");
  EXPECT_EQ(slots(fresh.get()), 32u);
  Core& core = world_->core();
  ASSERT_TRUE(core.SetTenants({quota("local", 40, 64), quota("fresh", 0, 8)}).ok());
  EXPECT_EQ(slots(fresh.get()), 8u);
  EXPECT_EQ(slots(client_.get()), 32u);
  // What does not fit together changes nothing.
  EXPECT_EQ(core.SetTenants({quota("local", 40, 64), quota("fresh", 40, 64)}).code(),
            Code::kInvalid);
  EXPECT_EQ(core.SetTenants({quota("fresh", 9, 8)}).code(), Code::kInvalid);
  EXPECT_EQ(slots(fresh.get()), 8u);
  // One's floor may become another's in one step; who is gone is lent nothing more.
  ASSERT_TRUE(core.SetTenants({quota("fresh", 60, 64)}).ok());
  EXPECT_EQ(slots(fresh.get()), 32u);
  EXPECT_EQ(slots(client_.get()), 0u);
  EXPECT_EQ(Reserve(chain, client_.get())->ops[0].refusal, Refusal::kQuota);
}

TEST_F(CoreTest, AManySessionsTenantForgetsItsOwn) {
  CoreOptions options = SmallCache();
  options.max_sessions = 10;
  Make(options);
  const auto other = AttachAs("other");
  const auto name = [this](ManualClient* client, const std::string& session) {
    const Chain chain(layout_, {.seed = 1, .blocks = 1});
    SessionForecast forecast{.session = session};
    forecast.chain = Slice(chain);
    world_->core().Hint(client->number(), forecast, chain[0]);
  };
  const auto known = [](ManualClient* client, const std::string& session) {
    PrestageRequest prestage;
    prestage.session = session;
    client->Do(&Core::Prestage, &prestage);
    return prestage.status.code() != Code::kNotFound;
  };
  name(other.get(), "mine");
  for (int i = 0; i < 100; ++i) name(client_.get(), std::to_string(i));
  EXPECT_TRUE(known(other.get(), "mine"));
  EXPECT_TRUE(known(client_.get(), "99"));
  EXPECT_TRUE(known(client_.get(), "91"));
  EXPECT_FALSE(known(client_.get(), "90"));
}

TEST_F(CoreTest, MoreThanDramHoldsIsServedFromNvme) {
  Make(SmallCache(32));
  const Chain chain(layout_, {.seed = 1, .blocks = 100});
  for (size_t begin = 0; begin < 100; begin += 10) {
    ReserveRequest reserve;
    reserve.chain = {.layout = handle_, .group = 0, .part = 0, .keys = chain.keys(begin, 10)};
    reserve.parent = chain.parent(begin);
    reserve.position = static_cast<uint32_t>(begin);
    client_->Do(&Core::Reserve, &reserve);
    CommitRequest commit;
    for (size_t i = 0; i < reserve.ops.size(); ++i) {
      ASSERT_EQ(reserve.ops[i].outcome, ReserveOutcome::kSlot) << begin + i;
      FillPayload(chain[begin + i], 0, reserve.ops[i].slot);
      CommitOp op;
      op.reservation = reserve.ops[i].reservation;
      op.sums = SumLanes(reserve.ops[i].slot, 0);
      commit.ops.push_back(std::move(op));
    }
    client_->Do(&Core::Commit, &commit);
    ASSERT_TRUE(Flush().ok());
  }
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 100u);
  size_t served = 0;
  for (size_t begin = 0; begin < 100; begin += 10) {
    FetchRequest fetch;
    fetch.chain = {.layout = handle_, .group = 0, .part = 0, .keys = chain.keys(begin, 10)};
    client_->Do(&Core::Fetch, &fetch);
    std::vector<ReleaseOp> leases;
    for (size_t i = 0; i < 10; ++i) {
      ASSERT_TRUE(fetch.ops[i].status.ok()) << fetch.ops[i].status.ToString();
      EXPECT_TRUE(IsPayload(chain[begin + i], 0, fetch.ops[i].bytes));
      leases.push_back({.lease = fetch.ops[i].lease, .corrupt = false});
      ++served;
    }
    client_->Release(leases);
  }
  EXPECT_EQ(served, 100u);
}

// Extents of sixteen slots. This tenant stores, then another more than fits: what the first one
// still has in DRAM.
class CrowdedOutTest : public CoreTest {
 protected:
  uint64_t BytesLeftOf(const TenantOptions& tenant, size_t blocks) {
    CoreOptions options = SmallCache(64);
    options.cache.tenants = {tenant};
    Make(options);
    EXPECT_EQ(Store(Chain(layout_, {.seed = 1, .blocks = blocks})), blocks);
    EXPECT_TRUE(Flush().ok());
    const auto other = AttachAs("other");
    for (uint64_t seed = 2; seed < 12; ++seed) {
      Store(Chain(layout_, {.seed = seed, .blocks = 16, .tenant = "other"}), other.get());
      world_->Advance(100'000'000);
    }
    StatsRequest stats;
    client_->Do(&Core::Stats, &stats);
    return stats.stats.tiers[0].tenant_bytes;
  }
};

TEST_F(CrowdedOutTest, ATenantIsNotPushedBelowItsFloor) {
  TenantOptions tenant;
  tenant.name = "local";
  tenant.dram_floor_bytes = 20 * kBlockBytes;
  // Two extents, of which only one block is above the floor.
  EXPECT_GE(BytesLeftOf(tenant, 21), 20 * kBlockBytes);
}

TEST_F(CrowdedOutTest, TheBlocksOfATenantOfHigherPriorityStay) {
  TenantOptions tenant;
  tenant.name = "local";
  tenant.priority = kMostPriority;
  EXPECT_EQ(BytesLeftOf(tenant, 32), 32 * kBlockBytes);
  tenant.priority = 0;
  EXPECT_EQ(BytesLeftOf(tenant, 32), 0u) << "they are older than all of the other's";
}

// What is leased leaves its extent later; what is taken meanwhile counts with it.
TEST_F(CoreTest, ATenantIsNotPushedBelowItsFloorByWhatIsReleasedLater) {
  CoreOptions options = SmallCache(64);
  TenantOptions tenant;
  tenant.name = "local";
  tenant.dram_floor_bytes = 20 * kBlockBytes;
  options.cache.tenants = {tenant};
  Make(options);
  // Three extents of sixteen slots, of which one may go.
  std::vector<Chain> chains;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    chains.emplace_back(layout_, ChainOptions{.seed = seed, .blocks = 16});
    ASSERT_EQ(Store(chains.back()), 16u);
  }
  ASSERT_TRUE(Flush().ok());
  // All but one of each extent's blocks are in use: that one may be a victim.
  std::vector<std::unique_ptr<FetchRequest>> held;
  for (const Chain& chain : chains) {
    held.push_back(std::make_unique<FetchRequest>());
    held.back()->chain = Slice(chain);
    held.back()->chain.keys = chain.keys().first(15);
    client_->Do(&Core::Fetch, held.back().get());
  }
  const auto other = AttachAs("other");
  for (uint64_t seed = 4; seed < 14; ++seed) {
    Store(Chain(layout_, {.seed = seed, .blocks = 32, .tenant = "other"}), other.get());
    world_->Advance(100'000'000);
  }
  for (const auto& fetch : held) Release(*fetch);
  world_->Advance(1'000'000'000);
  StatsRequest stats;
  client_->Do(&Core::Stats, &stats);
  EXPECT_GE(stats.stats.tiers[0].tenant_bytes, 20 * kBlockBytes);
}

// One rank has given its heads; the other one never even asks, and the engine leaves.
TEST_F(CoreTest, ABlockWhoseOtherHeadsNeverComeIsForgotten) {
  CoreOptions options = SmallCache(64, false);
  options.cache.overdue_nanos = 1'000'000'000;
  Make(options);
  const auto other = AttachAs("local");
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  ReserveRequest half;
  half.chain = Slice(chain);
  half.parent = chain.parent(0);
  client_->Do(&Core::Reserve, &half);
  ASSERT_EQ(half.ops[0].outcome, ReserveOutcome::kSlot);
  CommitRequest commit;
  commit.ops.resize(1);
  commit.ops[0].reservation = half.ops[0].reservation;
  commit.ops[0].head_begin = 0;
  commit.ops[0].head_end = 1;
  client_->Do(&Core::Commit, &commit);
  ASSERT_TRUE(commit.ops[0].status.ok()) << commit.ops[0].status.ToString();
  ASSERT_FALSE(commit.ops[0].published);
  ReserveRequest second;
  second.chain = Slice(chain);
  second.parent = chain.parent(0);
  other->Do(&Core::Reserve, &second);
  EXPECT_EQ(second.ops[0].outcome, ReserveOutcome::kBeingFilled);

  world_->Advance(2'000'000'000);
  EXPECT_EQ(Counter("overdue_reservations"), 1u);
  EXPECT_EQ(Store(chain, other.get()), 1u);
}

TEST_F(CoreTest, AReservationOverdueIsVoidAndItsSlotWaitsForTheRank) {
  CoreOptions options = SmallCache(64, false);
  options.cache.overdue_nanos = 1'000'000'000;
  Make(options);
  const auto other = AttachAs("local");
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  ReserveRequest first;
  first.chain = Slice(chain);
  first.parent = chain.parent(0);
  client_->Do(&Core::Reserve, &first);
  ASSERT_EQ(first.ops[0].outcome, ReserveOutcome::kSlot);
  ReserveRequest second;
  second.chain = Slice(chain);
  second.parent = chain.parent(0);
  other->Do(&Core::Reserve, &second);
  EXPECT_EQ(second.ops[0].outcome, ReserveOutcome::kBeingFilled);
  EXPECT_GT(second.ops[0].wait_ms, 0);

  world_->Advance(2'000'000'000);
  EXPECT_EQ(Counter("overdue_reservations"), 1u);
  EXPECT_EQ(Counter("quarantined_bytes"), kBlockBytes);
  EXPECT_EQ(Store(chain, other.get()), 1u);
  CommitRequest commit;
  commit.ops.resize(1);
  commit.ops[0].reservation = first.ops[0].reservation;
  client_->Do(&Core::Commit, &commit);
  EXPECT_EQ(commit.ops[0].status.code(), Code::kInvalid);
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
  EXPECT_EQ(Recall(chain), 1u);
}

TEST_F(CoreTest, ALeaseOverdueIsCountedOnceAndNotTakenBack) {
  CoreOptions options = SmallCache(64, false);
  options.cache.overdue_nanos = 1'000'000'000;
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 3});
  ASSERT_EQ(Store(chain), 3u);
  FetchRequest fetch;
  fetch.chain = Slice(chain);
  client_->Do(&Core::Fetch, &fetch);
  world_->Advance(900'000'000);
  EXPECT_EQ(Counter("overdue_leases"), 0u);
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Counter("overdue_leases"), 3u);
  EXPECT_EQ(Counter("overdue_reservations"), 0u);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(IsPayload(chain[i], 0, fetch.ops[i].bytes));
  std::vector<ReleaseOp> leases;
  for (const FetchOp& op : fetch.ops) leases.push_back({.lease = op.lease, .corrupt = false});
  client_->Release(leases);
  EXPECT_EQ(Recall(chain), 3u);
  world_->Advance(5'000'000'000);
  EXPECT_EQ(Counter("overdue_leases"), 3u);
}

TEST_F(CoreTest, ARequestThatIsDoneLeavesNoTimerBehind) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  ASSERT_EQ(Store(chain), 4u);
  ASSERT_TRUE(Flush().ok());
  const size_t before = world_->timers();
  for (int i = 0; i < 100; ++i) {
    Restart();
    for (int again = 0; again < 3; ++again) ASSERT_TRUE(Flush().ok());
    ASSERT_EQ(Recall(chain), 4u);  // From NVMe, with a deadline.
  }
  for (int again = 0; again < 100; ++again) ASSERT_TRUE(Flush().ok());
  EXPECT_LE(world_->timers(), before + 4);
}

TEST_F(CoreTest, AnEngineIsForgottenWithItsLastClient) {
  Make(SmallCache(64, false));
  const uint64_t before = Counter("engines");
  for (int i = 0; i < 100; ++i) {
    ManualClient first(world_.get(), {.tenant = "local", .engine = std::to_string(i)});
    ManualClient second(world_.get(), {.tenant = "local", .engine = std::to_string(i)});
    EXPECT_EQ(Counter("engines"), before + 1);
    first.Detach();
    EXPECT_EQ(Counter("engines"), before + 1);
    second.Detach();
    world_->Run();
  }
  EXPECT_EQ(Counter("engines"), before);
}

TEST_F(CoreTest, MemoryPressureMakesThePoolSmaller) {
  CoreOptions options = SmallCache(64);
  options.cache.keep_available_bytes = 1 << 20;
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 60});
  ASSERT_EQ(Store(chain), 60u);
  ASSERT_TRUE(Flush().ok());
  const uint64_t before = world_->core().extent_bytes();
  world_->extents().SetAvailableBytes(0);
  world_->Advance(2'000'000'000);
  EXPECT_LT(world_->core().extent_bytes(), before);
  world_->extents().SetAvailableBytes(uint64_t{1} << 30);
  world_->Advance(2'000'000'000);
  EXPECT_EQ(Recall(chain), 60u);
}

TEST_F(CoreTest, AHintShortensWhatTheTenantsRuleAllowsAndNeverMore) {
  CoreOptions options = SmallCache();
  options.cache.tenants = {{.name = "local", .ttl_seconds = 100}};
  Make(options);
  const Chain chain(layout_, {.seed = 1, .blocks = 2});
  const Chain brief(layout_, {.seed = 2, .blocks = 2});
  ASSERT_EQ(Store(chain) + Store(brief), 4u);
  Hint(chain, 1'000'000);
  Hint(brief, 10);
  Hint(brief, 1'000'000);
  world_->Run();
  const int64_t stored = world_->clock().UnixSeconds();
  world_->clock().SetUnixSeconds(stored + 11);
  EXPECT_EQ(Recall(brief), 0u);
  EXPECT_EQ(Recall(chain), 2u);
  world_->clock().SetUnixSeconds(stored + 101);
  EXPECT_EQ(Recall(chain), 0u);
}

TEST_F(CoreTest, ABlockIsNotServedUnderAnotherLayout) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 2});
  ASSERT_EQ(Store(chain), 2u);
  RegisterLayoutRequest other;
  other.layout = LayoutOfBytes(2 * kBlockBytes);
  client_->Do(&Core::RegisterLayout, &other);
  ASSERT_TRUE(other.status.ok());
  const LayoutHandle own = std::exchange(handle_, other.handle);
  EXPECT_EQ(Recall(chain), 0u);
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 0u);
  EXPECT_TRUE(match.runs.empty());
  EXPECT_EQ(Reserve(chain, client_.get())->ops[0].outcome, ReserveOutcome::kRefused);
  handle_ = own;
  EXPECT_EQ(Recall(chain), 2u);
}

TEST_F(CoreTest, OneWrongPositionDoesNotKeepTheChainsOfItsRootOut) {
  Make(SmallCache());
  const Chain wrong(layout_, {.seed = 1, .blocks = 2});
  ReserveRequest reserve;
  reserve.chain = Slice(wrong);
  reserve.parent = wrong.parent(0);
  reserve.position = 7;
  client_->Do(&Core::Reserve, &reserve);
  CommitRequest commit;
  for (const ReserveOp& op : reserve.ops) {
    CommitOp& block = commit.ops.emplace_back();
    block.reservation = op.reservation;
    block.sums = SumLanes(op.slot, 0);
  }
  client_->Do(&Core::Commit, &commit);
  ASSERT_TRUE(commit.ops.back().published);
  const Chain right(layout_, {.seed = 2, .blocks = 4});
  ASSERT_EQ(right.parent(0), wrong.parent(0));
  EXPECT_EQ(Store(right), 4u);
  EXPECT_EQ(Recall(right), 4u);
  // And the other way round: what is right stays.
  client_->Do(&Core::Reserve, &reserve);
  EXPECT_EQ(reserve.ops[0].outcome, ReserveOutcome::kRefused);
  EXPECT_EQ(Recall(right), 4u);
}

TEST_F(CoreTest, MatchTellsOnlyOfWhatOtherEnginesFill) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 2});
  const auto other = AttachAs("local");
  Reserve(chain, client_.get());
  for (ManualClient* const who : {client_.get(), other.get()}) {
    MatchRequest match;
    match.chain = Slice(chain);
    who->Do(&Core::Match, &match);
    EXPECT_EQ(match.matched, 0u);
    EXPECT_EQ(match.runs.size(), who == other.get() ? 1u : 0u);
  }
}

TEST_F(CoreTest, CapacityMovesToATenantThatNeedsIt) {
  Make(SmallCache(64));
  const Chain first(layout_, {.seed = 1, .blocks = 64});
  ASSERT_EQ(Store(first), 64u);
  ASSERT_TRUE(Flush().ok());
  const auto other = AttachAs("second");
  const Chain second(layout_, {.seed = 2, .blocks = 16, .tenant = "second"});
  size_t stored = 0;
  ASSERT_TRUE(world_->RunUntil([&] {
    stored += Store(second, other.get());
    return stored == 16;
  }));
  EXPECT_EQ(Recall(first), 64u);  // From NVMe where it had to go.
}

TEST_F(CoreTest, PrefillReportsDecideWhatPays) {
  Make(SmallCache());
  const Chain chain(layout_, {.seed = 1, .blocks = 40});
  ASSERT_EQ(Store(chain), 40u);
  ASSERT_TRUE(Flush().ok());
  Restart();
  MatchRequest match;
  match.chain = Slice(chain);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 40u);
  EXPECT_EQ(match.pays, 40u);  // Nothing reported: loading is taken to pay.
  for (int i = 0; i < 20; ++i) {
    world_->core().ReportPrefill(client_->number(), {.layout = handle_,
                                                     .tokens = static_cast<uint32_t>(100 + 10 * i),
                                                     .context_tokens = 0,
                                                     .milliseconds = 1e-6 * (100 + 10 * i)});
  }
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 40u);
  EXPECT_EQ(match.pays, 0u);
  ASSERT_EQ(match.runs.size(), 1u);
  EXPECT_EQ(match.runs[0].tier, TierKind::kNvme);
  EXPECT_GT(match.runs[0].estimated_ms, 0);
}

TEST_F(CoreTest, ADrainWithoutTimeForAllSavesTheHottest) {
  Make(SmallCache(2048));
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kNoSpace);
  const Chain cold(layout_, {.seed = 1, .blocks = 600});
  const Chain hot(layout_, {.seed = 2, .blocks = 600});
  ASSERT_EQ(Store(cold), 600u);  // Older, and so first in the order of arrival.
  world_->Advance(1'000'000'000);
  ASSERT_EQ(Store(hot), 600u);
  world_->Advance(1'000'000'000);
  ASSERT_EQ(Recall(hot), 600u);
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kOk);
  world_->disk(kDrive).StopAfter(world_->disk(kDrive).requests_done() + 120);
  DrainRequest drain;
  drain.timeout_nanos = 5'000'000'000;
  client_->Do(&Core::Drain, &drain);
  EXPECT_EQ(drain.status.code(), Code::kLate);
  EXPECT_GT(drain.left, 0u);
  Restart();
  EXPECT_GE(Recall(hot), 300u);
  EXPECT_EQ(Recall(cold), 0u);
}

TEST_F(CoreTest, ADrainIsOfEveryTenant) {
  Make(SmallCache());
  const auto other = AttachAs("other");
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kNoSpace);
  const Chain chain(layout_, {.seed = 1, .blocks = 8, .tenant = "other"});
  ASSERT_EQ(Store(chain, other.get()), 8u);
  world_->disk(kDrive).FailAll(IoKind::kWrite, Code::kOk);
  DrainRequest drain;
  client_->Do(&Core::Drain, &drain);
  EXPECT_TRUE(drain.status.ok()) << drain.status.ToString();
  EXPECT_EQ(drain.left, 0u);
  const Chain late(layout_, {.seed = 2, .blocks = 1, .tenant = "other"});
  ReserveRequest reserve;
  reserve.chain = Slice(late);
  reserve.parent = late.parent(0);
  other->Do(&Core::Reserve, &reserve);
  EXPECT_EQ(reserve.ops[0].refusal, Refusal::kDraining);
}

// Which models another has, and how fast its engines are, is nobody's business.
TEST_F(CoreTest, ALayoutTellsNothingOfOtherTenantsThatHaveIt) {
  Make(SmallCache(64, false));
  const auto other = AttachAs("other");
  const auto handle_of = [](ManualClient* client, uint64_t bytes) {
    RegisterLayoutRequest request;
    request.layout = LayoutOfBytes(bytes);
    client->Do(&Core::RegisterLayout, &request);
    return request.handle;
  };
  EXPECT_EQ(handle_of(client_.get(), 8 << 10), 2u);
  EXPECT_EQ(handle_of(client_.get(), 24 << 10), 3u);
  EXPECT_EQ(handle_of(other.get(), 24 << 10), 2u);
  const Chain chain(layout_, {.seed = 1, .blocks = 4, .tenant = "other"});
  ASSERT_EQ(Store(chain, other.get()), 4u);
  const auto report = [this](ManualClient* client) {
    for (uint32_t i = 1; i <= 16; ++i) {
      world_->core().ReportPrefill(
          client->number(),
          {.layout = handle_, .tokens = i * 100, .context_tokens = 0, .milliseconds = 5.0 * i});
    }
  };
  const auto recompute_ms = [&] {
    MatchRequest match;
    match.chain = Slice(chain);
    other->Do(&Core::Match, &match);
    EXPECT_EQ(match.matched, 4u);
    return match.recompute_ms;
  };
  report(client_.get());
  EXPECT_EQ(recompute_ms(), 0);
  report(other.get());
  EXPECT_GT(recompute_ms(), 0);
}

// Whoever could see from the names of its own leases that others lease something sees their hits.
TEST_F(CoreTest, ALeaseTellsNothingOfWhatOtherTenantsFetch) {
  Make(SmallCache(64, false));
  const auto other = AttachAs("other");
  const Chain ours(layout_, {.seed = 1, .blocks = 1});
  const Chain theirs(layout_, {.seed = 1, .blocks = 4, .tenant = "other"});
  ASSERT_EQ(Store(ours), 1u);
  ASSERT_EQ(Store(theirs, other.get()), 4u);
  const auto lease_of_ours = [&] {
    const auto fetch = Fetch(ours);
    EXPECT_TRUE(fetch->ops[0].status.ok());
    Release(*fetch);
    return fetch->ops[0].lease;
  };
  const uint64_t first = lease_of_ours();
  const uint64_t step = lease_of_ours() - first;  // With nothing in between.
  FetchRequest fetch;
  fetch.chain = Slice(theirs);
  other->Do(&Core::Fetch, &fetch);
  ASSERT_EQ(fetch.ops.size(), 4u);
  EXPECT_EQ(lease_of_ours(), first + 2 * step);
  for (const FetchOp& op : fetch.ops) {
    ASSERT_TRUE(op.status.ok());
    other->Release(std::vector<ReleaseOp>{{.lease = op.lease}});
  }
  EXPECT_EQ(lease_of_ours(), first + 3 * step);
}

TEST_F(CoreTest, ALeaseIsOfTheClientThatHasIt) {
  Make(SmallCache(64, false));
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  ASSERT_EQ(Store(chain), 1u);
  const auto fetch = Fetch(chain);
  const uint64_t lease = fetch->ops[0].lease;
  const auto again = AttachAs("local");  // Another client of the tenant.
  again->Release(std::vector<ReleaseOp>{{.lease = lease}});
  EXPECT_EQ(Counter("lent_slots"), 1u);
  Release(*fetch);
  EXPECT_EQ(Counter("lent_slots"), 0u);
  Release(*fetch);  // A name that is used up is nobody's.
  const auto next = Fetch(chain);
  EXPECT_NE(next->ops[0].lease, lease);
  Release(*fetch);
  EXPECT_EQ(Counter("lent_slots"), 1u);
  Release(*next);
}

TEST_F(CoreTest, ATenantHasOnlySoManyLayoutsAndTheyAreForgotten) {
  CoreOptions options = SmallCache(64, false);
  options.max_layouts_per_tenant = 3;
  Make(options);
  const auto registered = [](ManualClient* client, uint64_t bytes) {
    auto request = std::make_unique<RegisterLayoutRequest>();
    request->layout = LayoutOfBytes(bytes);
    client->Do(&Core::RegisterLayout, request.get());
    return request;
  };
  const Chain chain(layout_, {.seed = 1, .blocks = 2});
  ASSERT_EQ(Store(chain), 2u);  // With the first.
  for (int again = 0; again < 3; ++again) {
    EXPECT_TRUE(registered(client_.get(), 8 << 10)->status.ok());
    EXPECT_TRUE(registered(client_.get(), 24 << 10)->status.ok());
  }
  const auto refused = registered(client_.get(), 32 << 10);
  EXPECT_EQ(refused->status.code(), Code::kNoSpace);
  EXPECT_EQ(refused->handle, 0u);
  ManualClient other(world_.get(), {.tenant = "other"});
  EXPECT_TRUE(registered(&other, 32 << 10)->status.ok());
  EXPECT_TRUE(registered(&other, 8 << 10)->status.ok());
  EXPECT_EQ(Counter("layouts"), 4u);

  // The tenant's last client leaves: only what has blocks, or another tenant's client, is left.
  client_->Detach();
  world_->Run();
  client_ = std::make_unique<ManualClient>(world_.get(), ClientOptions{});
  EXPECT_EQ(Counter("layouts"), 3u);
  EXPECT_TRUE(registered(client_.get(), 64 << 10)->status.ok());
  EXPECT_TRUE(registered(client_.get(), 48 << 10)->status.ok());
  EXPECT_EQ(registered(client_.get(), 40 << 10)->status.code(), Code::kNoSpace);
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.evicted, 2u);
  EXPECT_EQ(Counter("layouts"), 4u);
  EXPECT_TRUE(registered(client_.get(), 40 << 10)->status.ok());
}

TEST_F(CoreTest, AHandleIsGoodForItsClientOnly) {
  Make(SmallCache(64, false));
  ManualClient other(world_.get(), {.tenant = "local"});
  const Chain chain(layout_, {.seed = 1, .blocks = 1});
  MatchRequest match;
  match.chain = Slice(chain);
  other.Do(&Core::Match, &match);
  EXPECT_EQ(match.status.code(), Code::kInvalid);
}

TEST_F(CoreTest, LayoutsComeAndGoForEver) {
  Make(SmallCache(64, false));
  for (uint64_t i = 1; i <= 70'000; ++i) {
    ManualClient client(world_.get(), {.tenant = "other"});
    RegisterLayoutRequest request;
    request.layout = layout_;
    request.layout.kv_format = std::to_string(i);
    client.Do(&Core::RegisterLayout, &request);
    ASSERT_TRUE(request.status.ok()) << i << ": " << request.status.ToString();
    client.Detach();
    world_->Run();
  }
  EXPECT_EQ(Counter("layouts"), 1u);
}

}  // namespace
}  // namespace aquifer
