// Tests the Redis store over a real cluster of three servers: the contract, slots that move under
// load, and the same with TLS and a password. Starting a cluster takes longer than a test, so tests
// share one of each kind.
#include <fmt/format.h>

#include <atomic>
#include <thread>

#include "store/blob_store_contract.h"
#include "store/redis/redis_manifest.h"
#include "store/redis/redis_slots.h"
#include "store/redis/redis_store_fixture.h"
#include "testing/servers/redis_server.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

enum class Kind { kPlain, kSecured };  // With TLS and a password, or with neither.

constexpr const char* kPassword = "sesame";

RedisCluster& SharedCluster(Kind kind) {
  if (kind == Kind::kPlain) {
    static RedisCluster plain;
    return plain;
  }
  static RedisCluster secured(RedisServer::Options{
      .arguments = {"--requirepass", kPassword}, .tls = true, .password = kPassword});
  return secured;
}

RedisStoreOptions OptionsForCluster(RedisCluster& cluster, Kind kind) {
  RedisServer& first = *cluster.servers()[0];
  RedisStoreOptions options = OptionsFor(first.address());
  if (kind == Kind::kSecured) {
    options.tls = true;
    options.ca_file = first.ca_file();
    options.password = kPassword;
  }
  return options;
}

class ClusterHarness final : public BlobStoreHarness {
 public:
  explicit ClusterHarness(Kind kind) : kind_(kind) {
    for (const auto& server : SharedCluster(kind).servers()) server->Ask({"FLUSHALL"});
  }
  std::unique_ptr<BlobStore> Open(size_t max_queued) override {
    RedisStoreOptions options = OptionsForCluster(SharedCluster(kind_), kind_);
    options.most_queued = max_queued;
    return aquifer::Open(options);
  }
  int64_t NowNanos() override { return SystemClock()->NowNanos(); }
  bool RunUntil(const std::function<bool()>& done) override { return aquifer::RunUntil(done); }

 private:
  const Kind kind_;
};

INSTANTIATE_TEST_SUITE_P(
    RedisCluster, BlobStoreContract,
    testing::Values(
        BlobStoreParam{.name = "Plain",
                       .make = [] { return std::make_unique<ClusterHarness>(Kind::kPlain); }},
        BlobStoreParam{.name = "Secured",
                       .make = [] { return std::make_unique<ClusterHarness>(Kind::kSecured); }}),
    [](const auto& info) { return info.param.name; });

class RedisClusterTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    for (const auto& server : cluster_->servers()) server->Ask({"FLUSHALL"});
  }

  RedisCluster* const cluster_ = &SharedCluster(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Redis, RedisClusterTest, testing::Values(Kind::kPlain, Kind::kSecured),
                         [](const auto& info) {
                           return info.param == Kind::kPlain ? "Plain" : "Secured";
                         });

// Blobs are read, looked at and written all the time while their slots move, one after the other.
TEST_P(RedisClusterTest, SlotsAreMovedUnderLoadAndNothingIsMissed) {
  RedisCluster& cluster = *cluster_;
  const auto store = Open(OptionsForCluster(cluster, GetParam()));
  // All slots go to the last server: the others accept its claims. A slot that moves on too soon
  // would confuse the servers themselves.
  constexpr size_t kTo = 2;
  std::vector<std::string> names;
  std::vector<uint16_t> slots;
  for (uint64_t i = 0; names.size() < ByTestLevel(6u, 12u, 200u); ++i) {
    const std::string name = fmt::format("moves/{}", i);
    const uint16_t slot = RedisSlotOf(ManifestKey("aquifer:", name));
    if (cluster.OwnerOf(slot) == kTo) continue;
    names.push_back(name);
    slots.push_back(slot);
  }
  constexpr size_t kBytes = 100'000;
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_TRUE(Write(store.get(), names[i], kBytes, i).ok());
  }
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> rounds = 0;
  const auto load = [&] {
    while (!stop) {
      const uint64_t round = ++rounds;
      for (size_t i = 0; i < names.size(); ++i) {
        const Status read = Read(store.get(), names[i], kBytes, i);
        EXPECT_TRUE(read.ok()) << read.ToString();
        EXPECT_EQ(Look(store.get(), names[i]), Code::kOk);
        const Status written =
            Write(store.get(), names[i], kBytes, i, /*if_absent=*/round % 2 == 0);
        EXPECT_TRUE(written.ok()) << written.ToString();
      }
    }
  };
  std::thread first(load);
  std::thread second(load);
  for (const uint16_t slot : slots) cluster.MoveSlot(slot, kTo);
  EXPECT_TRUE(RunUntil([&, after = rounds.load()] { return rounds > after + 2; }));
  stop = true;
  first.join();
  second.join();
  EXPECT_GT(Counter(*store, "redirections"), 0u);
  EXPECT_GT(Counter(*store, "slot_maps_read"), 0u);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(Read(store.get(), names[i], kBytes, i).ok());
  }
}

TEST_P(RedisClusterTest, AKeyThatMovedAheadOfItsSlotIsAskedForWhereItIs) {
  RedisCluster& cluster = *cluster_;
  const auto store = Open(OptionsForCluster(cluster, GetParam()));
  std::string name;
  uint16_t slot = 0;
  for (uint64_t i = 0; name.empty() || cluster.OwnerOf(slot) == 2; ++i) {
    name = fmt::format("ahead/{}", i);
    slot = RedisSlotOf(ManifestKey("aquifer:", name));
  }
  ASSERT_TRUE(Write(store.get(), name, 50'000, 1).ok());
  cluster.MoveSlot(slot, 2, [&] {
    EXPECT_TRUE(Read(store.get(), name, 50'000, 1).ok());
    EXPECT_EQ(Look(store.get(), name), Code::kOk);
    EXPECT_TRUE(Write(store.get(), name, 50'000, 2).ok());  // The store is there.
    EXPECT_TRUE(Remove(store.get(), name).ok());
    EXPECT_TRUE(Write(store.get(), name, 100, 3).ok());
  });
  EXPECT_TRUE(Read(store.get(), name, 100, 3).ok());
}

// Every server of a cluster asks for the password, and shows its certificate.
TEST_P(RedisClusterTest, OnlyWhoMayComesInAndOnlyToTheRightServers) {
  if (GetParam() == Kind::kPlain) GTEST_SKIP() << "anybody may";
  const RedisStoreOptions right = OptionsForCluster(*cluster_, GetParam());
  const auto refusal = [](const RedisStoreOptions& options) {
    return Write(Open(options).get(), "a", 50'000, 1);
  };
  RedisStoreOptions wrong = right;
  wrong.password = "not-sesame";
  EXPECT_EQ(refusal(wrong).code(), Code::kUnavailable);
  wrong = right;
  wrong.ca_file = "";
  EXPECT_EQ(refusal(wrong).code(), Code::kUnavailable);
  EXPECT_TRUE(refusal(right).ok());
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!aquifer::HasRedisServer()) {
    fmt::print("there is no redis-server here: nothing is tested\n");
    return 0;
  }
  return RUN_ALL_TESTS();
}
