// A client that is cut off while it may still touch what it was lent: others go on at once, and
// nobody gets its memory before it has let go.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "cache/core.h"
#include "testing/cache/manual_world.h"
#include "testing/chain.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = 16 << 10;

CoreOptions Options() {
  CoreOptions options;
  options.extent_bytes = 64 * kBlockBytes;
  options.cache.dram_bytes = options.extent_bytes;
  options.cache.keep_available_bytes = 0;
  return options;
}

class DisconnectTest : public testing::Test {
 protected:
  DisconnectTest()
      : world_(Options()),
        cut_off_(&world_, {.tenant = "local", .engine = "one"}),
        other_(&world_, {.tenant = "local", .engine = "two"}) {
    for (ManualClient* const client : {&cut_off_, &other_}) {
      RegisterLayoutRequest request;
      request.layout = LayoutOfBytes(kBlockBytes);
      client->Do(&Core::RegisterLayout, &request);
      handle_ = request.handle;
    }
  }

  std::vector<ReserveOp> Reserve(ManualClient* client, const Chain& chain) {
    ReserveRequest request;
    request.chain = Slice(chain);
    request.parent = chain.parent(0);
    client->Do(&Core::Reserve, &request);
    return std::move(request.ops);
  }
  size_t Commit(ManualClient* client, const std::vector<ReserveOp>& reserved) {
    CommitRequest commit;
    for (const ReserveOp& op : reserved) {
      commit.ops.emplace_back().reservation = op.reservation;
      commit.ops.back().sums = SumLanes(op.slot, 0);
    }
    client->Do(&Core::Commit, &commit);
    size_t published = 0;
    for (const CommitOp& op : commit.ops) published += op.published ? 1 : 0;
    return published;
  }
  ChainSlice Slice(const Chain& chain) const {
    return {.layout = handle_, .group = 0, .part = 0, .keys = chain.keys()};
  }
  uint64_t Counter(std::string_view name) {
    StatsRequest stats;
    other_.Do(&Core::Stats, &stats);
    return stats.stats.Counter(name);
  }

  const Chain chain_{LayoutOfBytes(kBlockBytes), {.seed = 1, .blocks = 8}};
  ManualWorld world_;
  ManualClient cut_off_;
  ManualClient other_;
  LayoutHandle handle_ = 0;
};

TEST_F(DisconnectTest, ReservationsAreVoidForEveryoneAndTheirSlotsNobodys) {
  const std::vector<ReserveOp> first = Reserve(&cut_off_, chain_);
  EXPECT_EQ(Reserve(&other_, chain_)[0].outcome, ReserveOutcome::kBeingFilled);
  world_.core().Disconnect(cut_off_.number());
  world_.Run();
  const std::vector<ReserveOp> second = Reserve(&other_, chain_);
  for (size_t i = 0; i < chain_.size(); ++i) {
    ASSERT_EQ(second[i].outcome, ReserveOutcome::kSlot);
    for (const ReserveOp& op : first) EXPECT_NE(second[i].slot.data(), op.slot.data());
  }
  EXPECT_EQ(Counter("quarantined_bytes"), chain_.size() * kBlockBytes);
  EXPECT_EQ(Commit(&other_, second), chain_.size());
  // Given back late, or with the process.
  cut_off_.Abort(std::vector<ReservationId>{first[0].reservation});
  EXPECT_EQ(Counter("quarantined_bytes"), (chain_.size() - 1) * kBlockBytes);
  cut_off_.Detach();
  world_.Run();
  EXPECT_EQ(Counter("quarantined_bytes"), 0u);
  EXPECT_EQ(Counter("lent_slots"), 0u);
}

// More than one slice takes: what is given back meanwhile is not looked at again.
TEST(DisconnectManyTest, ReservationsAreVoidASliceAtATimeWhileSomeAreGivenBack) {
  constexpr size_t kMany = 1000;
  CoreOptions options = Options();
  options.cache.dram_bytes = 40 * options.extent_bytes;
  ManualWorld world(options);
  ManualClient cut_off(&world, {.tenant = "local", .engine = "one"});
  ManualClient other(&world, {.tenant = "local", .engine = "two"});
  const Chain chain(LayoutOfBytes(kBlockBytes), {.seed = 1, .blocks = kMany});
  const auto reserve = [&](ManualClient* client) {
    RegisterLayoutRequest layout;
    layout.layout = LayoutOfBytes(kBlockBytes);
    client->Do(&Core::RegisterLayout, &layout);
    ReserveRequest request;
    request.chain = {.layout = layout.handle, .group = 0, .part = 0, .keys = chain.keys()};
    request.parent = chain.parent(0);
    client->Do(&Core::Reserve, &request);
    std::vector<ReservationId> given;
    for (const ReserveOp& op : request.ops) {
      if (op.outcome == ReserveOutcome::kSlot) given.push_back(op.reservation);
    }
    return given;
  };
  const std::vector<ReservationId> first = reserve(&cut_off);
  ASSERT_EQ(first.size(), kMany);
  world.core().Disconnect(cut_off.number());
  StatsRequest stats;
  other.Submit(&Core::Stats, &stats);
  EXPECT_LT(stats.stats.Counter("aborted"), kMany) << "that was no slice";
  std::vector<ReservationId> some;
  for (size_t i = 0; i < kMany; i += 2) some.push_back(first[i]);
  cut_off.Abort(some);
  world.Run();
  const std::vector<ReservationId> second = reserve(&other);
  EXPECT_EQ(second.size(), kMany);
  other.Do(&Core::Stats, &stats);
  EXPECT_EQ(stats.stats.Counter("aborted"), kMany);
  EXPECT_EQ(stats.stats.Counter("quarantined_bytes"), kMany / 2 * kBlockBytes);
  cut_off.Detach();
  world.Run();
  other.Do(&Core::Stats, &stats);
  EXPECT_EQ(stats.stats.Counter("quarantined_bytes"), 0u);
}

TEST_F(DisconnectTest, LeasesStayAndTheBytesAreNotReused) {
  ASSERT_EQ(Commit(&cut_off_, Reserve(&cut_off_, chain_)), chain_.size());
  FetchRequest fetch;
  fetch.chain = Slice(chain_);
  cut_off_.Do(&Core::Fetch, &fetch);
  world_.core().Disconnect(cut_off_.number());
  EvictRequest evict;
  evict.chain = Slice(chain_);
  other_.Do(&Core::Evict, &evict);
  EXPECT_EQ(Counter("quarantined_bytes"), chain_.size() * kBlockBytes);
  for (const ReserveOp& op : Reserve(&other_, chain_)) {
    for (const FetchOp& leased : fetch.ops) EXPECT_NE(op.slot.data(), leased.bytes.data());
  }
  cut_off_.Release(std::vector<ReleaseOp>{{.lease = fetch.ops[0].lease}});
  EXPECT_EQ(Counter("quarantined_bytes"), (chain_.size() - 1) * kBlockBytes);
}

TEST_F(DisconnectTest, OpenRequestsAreDroppedWithoutAWord) {
  ReserveRequest reserve;
  const Chain many(LayoutOfBytes(kBlockBytes), {.seed = 3, .blocks = 60});
  reserve.chain = Slice(many);
  reserve.parent = many.parent(0);
  cut_off_.Submit(&Core::Reserve, &reserve);  // Takes more than one slice.
  ASSERT_FALSE(reserve.done());
  world_.core().Disconnect(cut_off_.number());
  world_.Run();
  EXPECT_FALSE(reserve.done());
  cut_off_.Detach();
  world_.Run();
  EXPECT_EQ(Counter("lent_slots"), 0u);
}

}  // namespace
}  // namespace aquifer
