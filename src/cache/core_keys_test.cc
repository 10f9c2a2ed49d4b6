// The cache where a tenant's data key cannot be had: a wrong master key, or a key store that does
// not answer. Nobody waits for a block that it seals.
#include <gtest/gtest.h>

#include <memory>

#include "testing/cache/core_fixture.h"
#include "testing/memory_blob_store.h"
#include "tier/durable/durable_tier.h"
#include "tier/packing/packer.h"
#include "tier/test_keys.h"

namespace aquifer {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMillisecond;

class CoreKeysTest : public CoreFixture {
 protected:
  ~CoreKeysTest() override {
    client_.reset();
    world_.reset();  // Before what it stands on.
  }

  void MakeSealing(const CoreOptions& options, std::vector<DurableTierSource> tiers = {}) {
    world_ = std::make_unique<ManualWorld>(options, nullptr, std::move(tiers), &packer_);
    Attach();
  }
  // How long a fetch of the chain takes that is not served.
  int64_t NanosOfAMiss(const Chain& chain) {
    const int64_t begin = world_->clock().NowNanos();
    EXPECT_EQ(Recall(chain), 0u);
    return world_->clock().NowNanos() - begin;
  }

  const TenantId tenant_ = TenantIdOf("local");
  const Chain chain_{layout_, {.seed = 1, .blocks = 20}};
  TestKeys keys_;
  ManualClock clock_;
  SeededRandom random_{3};
  Packer packer_{{.keys = &keys_}, &clock_, &random_};
};

TEST_F(CoreKeysTest, BlocksOnNvmeAreMissesAtOnce) {
  for (const bool restart : {false, true}) {
    keys_ = TestKeys();
    MakeSealing(SmallCache());
    ASSERT_EQ(Store(chain_), 20u);
    ASSERT_TRUE(Flush().ok());
    Restart();
    keys_.Lose(tenant_);
    if (restart) Restart();
    EXPECT_LT(NanosOfAMiss(chain_), 10 * kMillisecond);
    keys_.Regain(tenant_);
    world_->Advance(kSecond);
    EXPECT_EQ(Recall(chain_), 20u);
  }
}

TEST_F(CoreKeysTest, BlocksAreThereWhenTheKeyIs) {
  MakeSealing(SmallCache());
  ASSERT_EQ(Store(chain_), 20u);
  ASSERT_TRUE(Flush().ok());
  keys_.Lose(tenant_);
  Restart();
  EXPECT_EQ(Recall(chain_), 0u);
  world_->Advance(kSecond);
  keys_.Regain(tenant_);
  world_->Advance(kSecond);
  EXPECT_EQ(Recall(chain_), 20u);
}

TEST_F(CoreKeysTest, ATenantWithoutAKeyKeepsNoOtherFromTheDrive) {
  MakeSealing(SmallCache(256));
  ASSERT_EQ(Store(chain_), 20u);
  ASSERT_TRUE(Flush().ok());
  keys_.Lose(tenant_);
  Restart();
  EXPECT_EQ(Store(Chain(layout_, {.seed = 2, .blocks = 100})), 100u);
  const auto other = AttachAs("other");
  const Chain theirs(layout_, {.seed = 3, .blocks = 20});
  ASSERT_EQ(Store(theirs, other.get()), 20u);
  FlushRequest flush;
  flush.timeout_nanos = 2 * kSecond;
  other->Do(&Core::Flush, &flush);
  EXPECT_TRUE(flush.status.ok()) << flush.status.ToString();
}

TEST_F(CoreKeysTest, BlocksAtAStoreAreMissesAtOnce) {
  const auto blobs = std::make_shared<MemoryBlobs>();
  MemoryBlobStore store(blobs);
  DurableTierSource source;
  source.name = "store";
  source.make = [&](const DurableTierParts& parts) -> Result<std::unique_ptr<DurableTier>> {
    return NewDurableTier({.name = "store"}, &store, &packer_, parts.listener, parts.workers,
                          parts.owner, parts.clock, parts.random);
  };
  CoreOptions options = SmallCache(64, /*nvme=*/false);
  options.cache.tenants = {{.name = "local", .durability = Durability::kDurable}};
  MakeSealing(options, {source});
  ASSERT_EQ(Store(chain_), 20u);
  FlushRequest flush;
  flush.tier = TierKind::kDurable;
  client_->Do(&Core::Flush, &flush);
  ASSERT_TRUE(flush.status.ok()) << flush.status.ToString();
  ASSERT_EQ(blobs->Names().size(), 20u);
  Restart();
  MatchRequest match;
  match.chain = Slice(chain_);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 20u);
  keys_.Lose(tenant_);
  EXPECT_LT(NanosOfAMiss(chain_), 200 * kMillisecond);
  client_->Do(&Core::Match, &match);
  EXPECT_EQ(match.matched, 0u);
  client_.reset();
  world_.reset();  // Before its store.
}

}  // namespace
}  // namespace aquifer
