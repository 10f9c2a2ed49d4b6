// Tenants that want more memory than there is take turns: nobody waits for ever, however many
// others ask, and what it has got it keeps for a while.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

class TurnsTest : public CoreFixture {
 protected:
  // Two extents of 16 blocks, both of tenant "local", which never stops storing.
  void MakeWithAGreedyTenant() {
    Make(SmallCache(32, false));
    for (int step = 0; step < 10; ++step) StoreMore();
  }
  void StoreMore() { Store(Chain(layout_, {.seed = next_seed_++, .blocks = 8})); }

  // Or it is there.
  bool StoreOne(ManualClient* client, const std::string& tenant) {
    Store(Chain(layout_, {.seed = 1, .blocks = 1, .tenant = tenant}), client);
    return Has(client, tenant);
  }
  bool Has(ManualClient* client, const std::string& tenant) {
    MatchRequest match;
    const Chain chain(layout_, {.seed = 1, .blocks = 1, .tenant = tenant});
    match.chain = Slice(chain);
    client->Do(&Core::Match, &match);
    return match.matched == 1;
  }

  uint64_t next_seed_ = 100;
};

TEST_F(TurnsTest, AnExtentGoesToWhoeverItWasEmptiedFor) {
  MakeWithAGreedyTenant();
  const auto other = AttachAs("other");
  // The greedy one asks ten times as often, and first.
  int tries = 0;
  for (bool stored = false; !stored && tries < 20; ++tries) {
    for (int step = 0; step < 10; ++step) {
      world_->Advance(1'000'000);
      StoreMore();
    }
    stored = StoreOne(other.get(), "other");
  }
  EXPECT_LT(tries, 5);
}

TEST_F(TurnsTest, WhoHasJustComeStaysForAWhile) {
  MakeWithAGreedyTenant();
  const auto other = AttachAs("other");
  ASSERT_TRUE(world_->RunUntil([&] { return StoreOne(other.get(), "other"); }));
  for (int step = 0; step < 20; ++step) {
    world_->Advance(10'000'000);
    StoreMore();
  }
  EXPECT_TRUE(Has(other.get(), "other"));
  // It does not use it; then somebody who does may have it.
  for (int step = 0; step < 30; ++step) {
    world_->Advance(10'000'000);
    StoreMore();
  }
  EXPECT_FALSE(Has(other.get(), "other"));
}

TEST_F(TurnsTest, TenantsThatAreTooManyForTheMemoryAreServedOneAfterTheOther) {
  MakeWithAGreedyTenant();
  constexpr size_t kTenants = 6;
  std::vector<std::unique_ptr<ManualClient>> clients;
  std::vector<int> served(kTenants);
  for (size_t i = 0; i < kTenants; ++i) clients.push_back(AttachAs("t" + std::to_string(i)));
  for (int step = 0; step < 3000; ++step) {
    world_->Advance(10'000'000);
    StoreMore();
    for (size_t i = 0; i < kTenants; ++i) {
      const std::string tenant = "t" + std::to_string(i);
      if (Has(clients[i].get(), tenant)) continue;
      served[i] += StoreOne(clients[i].get(), tenant) ? 1 : 0;
    }
  }
  for (size_t i = 0; i < kTenants; ++i) EXPECT_GE(served[i], 2) << i;
}

TEST_F(TurnsTest, WhoStopsAskingHoldsUpNobody) {
  MakeWithAGreedyTenant();
  const auto gone = AttachAs("gone");
  const auto other = AttachAs("other");
  EXPECT_FALSE(StoreOne(gone.get(), "gone"));
  EXPECT_TRUE(world_->RunUntil([&] { return StoreOne(other.get(), "other"); }));
}

}  // namespace
}  // namespace aquifer
