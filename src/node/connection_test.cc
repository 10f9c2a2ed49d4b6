// What a node lets a client do, and for how long: of what is asked in the right form.
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "net/local_protocol.h"
#include "node/node.h"
#include "testing/chain.h"
#include "testing/raw_client.h"
#include "testing/scratch_directory.h"
#include "testing/test_engine.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr uint64_t kPoolBytes = 512 * kMiB;

class ConnectionTest : public testing::Test {
 protected:
  ConnectionTest() {
    Node::Options options;
    options.cache.dram_bytes = kPoolBytes;
    options.cache.keep_available_bytes = 0;
    options.warm_bytes = 0;
    options.ready_extents = 1;
    options.server.socket = socket_;
    options.server.limits.arrival_nanos = 2'000'000'000;
    options.server.admit = [](const Hello& hello, const PeerCredentials&) -> Result<Admission> {
      const std::string tenant(hello.tenant);
      return Admission{.client = {.tenant = tenant, .engine = std::string(hello.engine)},
                       .may_drain = tenant == "administrator"};
    };
    node_ = *Node::Start(options);
  }

  std::unique_ptr<Cache> ConnectAs(const std::string& tenant) {
    return *Connect({.socket = socket_}, {.tenant = tenant});
  }
  // Of an administrator.
  static uint64_t PoolBytes(Cache* cache) {
    StatsRequest request;
    cache->Stats(&request);
    EXPECT_TRUE(cache->Wait(request));
    for (const auto& [name, value] : request.stats.counters) {
      if (name == "pool_bytes") return value;
    }
    return 0;
  }
  Status Drain(const std::string& tenant) {
    const std::unique_ptr<Cache> cache = ConnectAs(tenant);
    DrainRequest drain;
    cache->Drain(&drain);
    EXPECT_TRUE(cache->Wait(drain));
    return drain.status;
  }

  ScratchDirectory scratch_;
  const std::string socket_ = scratch_.Sub("node.sock");
  std::unique_ptr<Node> node_;
};

TEST_F(ConnectionTest, NobodyButTheAdministratorDrainsTheNode) {
  EXPECT_EQ(Drain("tenant").code(), Code::kInvalid);
  EXPECT_TRUE(Drain("administrator").ok());
}

TEST_F(ConnectionTest, ATenantSeesItsOwnFigures) {
  const auto one = ConnectAs("one");
  TestEngine ones(one.get(), LayoutOfBytes(kBlockBytes));
  EXPECT_EQ(ones.Recall(Chain(ones.layout(), {.seed = 1, .blocks = 8, .tenant = "one"})),
            Recalled{.missed = 8});
  EXPECT_EQ(ones.Counter("fetch_misses"), 8u);
  const auto other = ConnectAs("other");
  TestEngine others(other.get(), LayoutOfBytes(kBlockBytes));
  EXPECT_EQ(others.Counter("fetch_misses"), 0u);
  const auto administrator = ConnectAs("administrator");
  TestEngine all(administrator.get(), LayoutOfBytes(kBlockBytes));
  EXPECT_EQ(all.Counter("fetch_misses"), 8u);
}

TEST_F(ConnectionTest, ARequestWhoseEndDoesNotComeCostsTheConnection) {
  RawClient client(socket_);
  client.Enter();
  client.Register(LayoutOfBytes(kBlockBytes));
  std::vector<Key> keys(8);
  FetchCall fetch;
  fetch.chain = {
      .layout = client.layout(), .total = 9, .items = {.keys = keys, .engine_hashes = {}}};
  client.Write(FrameKind::kFetch, 2, fetch);
  EXPECT_TRUE(client.IsCutOff());
}

TEST_F(ConnectionTest, ARequestThatComesInPartsIsAnswered) {
  RawClient client(socket_);
  client.Enter();
  client.Register(LayoutOfBytes(kBlockBytes));
  std::vector<Key> keys(8);
  FetchCall fetch;
  fetch.chain = {
      .layout = client.layout(), .total = 16, .items = {.keys = keys, .engine_hashes = {}}};
  client.Write(FrameKind::kFetch, 2, fetch);
  client.Write(FrameKind::kMore, 2, KeyItems{.keys = keys, .engine_hashes = {}});
  EXPECT_TRUE(client.AwaitDone());
}

// An "ok" would say that it is deleted.
TEST_F(ConnectionTest, AnObserverIsToldThatNothingChanges) {
  RawClient client(socket_);
  client.Enter("local", /*observe=*/true);
  EvictCall evict;
  evict.everything = true;
  client.Write(FrameKind::kEvict, 1, evict);
  const std::optional<AnswerHead> answer = client.Answer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, Code::kInvalid);
}

TEST_F(ConnectionTest, ThePoolIsMadeReadyWhenSomebodyIsGoingToStore) {
  const auto cache = ConnectAs("administrator");
  EXPECT_EQ(PoolBytes(cache.get()), 64 * kMiB);
  TestEngine engine(cache.get(), LayoutOfBytes(kBlockBytes));
  EXPECT_TRUE(engine.Eventually([&] { return PoolBytes(cache.get()) == kPoolBytes; }));
}

}  // namespace
}  // namespace aquifer
