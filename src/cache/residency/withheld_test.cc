// Memory that another process has mapped and does not give back: whoever it was lent to pays for
// it.
#include <gtest/gtest.h>

#include <vector>

#include "cache/core.h"
#include "testing/cache/core_fixture.h"

namespace aquifer {
namespace {

constexpr size_t kExtentBlocks = 16;

class WithheldTest : public CoreFixture {
 protected:
  WithheldTest() {
    CoreOptions options = SmallCache(2 * kExtentBlocks, false);
    extent_bytes_ = options.extent_bytes;
    TenantOptions local{.name = "local"};
    local.dram_ceiling_bytes = extent_bytes_;
    options.cache.tenants = {local};
    Make(options);
    world_->core().on_extent_wanted = [this](uint32_t extent) { wanted_.push_back(extent); };
    other_ = AttachAs("other");
  }

  uint64_t Charged(ManualClient* client) {
    StatsRequest stats;
    client->Do(&Core::Stats, &stats);
    return stats.stats.tiers[0].tenant_bytes;
  }
  // An extent of the tenant's, as if its client had it mapped.
  uint32_t MapOne(const Chain& chain) {
    const auto fetch = Fetch(chain);
    const uint32_t extent =
        world_->core().PlaceOf(client_->number(), fetch->ops[0].lease, false).extent;
    world_->core().OfferExtent(extent);
    Release(*fetch);
    return extent;
  }
  size_t Slots(const Chain& chain, ManualClient* client) {
    const auto reserve = Reserve(chain, client);
    std::vector<ReservationId> given;
    for (const ReserveOp& op : reserve->ops) {
      if (op.reservation != 0) given.push_back(op.reservation);
    }
    client->Abort(given);
    world_->Run();
    return given.size();
  }

  uint64_t extent_bytes_ = 0;
  std::unique_ptr<ManualClient> other_;
  std::vector<uint32_t> wanted_;
};

TEST_F(WithheldTest, AnEmptyExtentThatIsNotReturnedIsItsTenantsToPayFor) {
  const Chain chain(layout_, {.seed = 1, .blocks = 4});
  const Chain large(layout_, {.seed = 2, .blocks = 2 * kExtentBlocks, .tenant = "other"});
  ASSERT_EQ(Store(chain), chain.size());
  const uint32_t extent = MapOne(chain);
  EvictRequest evict;
  evict.everything = true;
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(Charged(client_.get()), 0u);

  // Someone else needs the memory.
  ASSERT_TRUE(world_->RunUntil([&] {
    const size_t slots = Slots(large, other_.get());
    EXPECT_LE(slots, kExtentBlocks);
    return !wanted_.empty();
  }));
  EXPECT_EQ(wanted_, std::vector<uint32_t>{extent});
  EXPECT_EQ(Charged(client_.get()), extent_bytes_);
  EXPECT_EQ(Counter("withheld_bytes"), extent_bytes_);
  EXPECT_EQ(Slots(chain, client_.get()), 0u) << "it has all that it may have";

  world_->core().ReturnExtent(extent);
  world_->Run();
  EXPECT_EQ(Charged(client_.get()), 0u);
  EXPECT_EQ(Counter("withheld_bytes"), 0u);
  EXPECT_TRUE(world_->RunUntil([&] { return Slots(large, other_.get()) == large.size(); }));
}

}  // namespace
}  // namespace aquifer
