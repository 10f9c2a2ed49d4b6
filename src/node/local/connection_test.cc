// What a node lets a client do, and for how long: of what is asked in the right form.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "net/protocol/local_protocol.h"
#include "node/local/node.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/node/own_node.h"
#include "testing/node/raw_client.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr uint64_t kHalfExtentBytes = 32 * kMiB;
constexpr uint64_t kPoolBytes = 512 * kMiB;
constexpr uint32_t kMaxUnsentFrames = 4;

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
    options.server.limits.max_unsent_frames = kMaxUnsentFrames;
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

TEST(OverdueTest, WhoeverHoldsAReservationForTooLongIsCutOff) {
  CacheOptions options;
  options.dram_bytes = 128 * kMiB;
  options.overdue_nanos = 50'000'000;
  const auto node = OwnNode::Start(options);
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  const auto slow = *Connect({.socket = (*node)->socket()}, {.engine = "slow"});
  const auto other = *Connect({.socket = (*node)->socket()}, {.engine = "other"});
  TestEngine holder(slow.get(), LayoutOfBytes(kBlockBytes));
  TestEngine witness(other.get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(holder.layout(), {.seed = 1, .blocks = 1});
  const auto reserve = holder.Reserve(chain);
  ASSERT_EQ(reserve->ops[0].outcome, ReserveOutcome::kSlot);
  ASSERT_TRUE(witness.Eventually([&] { return witness.Counter("overdue_reservations") == 1; }));
  // The node says so to its connection in a task of its own; the answer comes after that.
  witness.Stats();
  EXPECT_FALSE(holder.FillAndCommit(chain, {}, *reserve)->ops[0].status.ok());
  EXPECT_EQ(witness.Recall(chain), Recalled{.missed = 1});
}

TEST(ConnectionLimitsTest, AUserHasSoManyConnectionsAndNoMore) {
  ServerOptions server;
  server.max_connections_per_user = 3;
  CacheOptions options;
  options.dram_bytes = 128 * kMiB;
  const auto node = OwnNode::Start(options, server);
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  const auto connect = [&] { return Connect({.socket = (*node)->socket()}, {}); };
  std::vector<std::unique_ptr<Cache>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(*connect());
  EXPECT_FALSE(connect().ok());
  TestEngine first(clients[0].get(), LayoutOfBytes(kBlockBytes));
  clients.pop_back();
  EXPECT_TRUE(first.Eventually([&] { return connect().ok(); }));
}

TEST(ConnectionLimitsTest, WhoeverEndedWithMemoryInHandCountsUntilItIsBack) {
  ServerOptions server;
  server.max_lingering_per_user = 1;
  CacheOptions options;
  options.dram_bytes = 128 * kMiB;
  options.overdue_nanos = 50'000'000;
  const auto node = OwnNode::Start(options, server);
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  const auto connect = [&] { return Connect({.socket = (*node)->socket()}, {}); };
  const auto witness_cache = *connect();
  TestEngine witness(witness_cache.get(), LayoutOfBytes(kBlockBytes));
  {
    const auto slow = *connect();
    TestEngine holder(slow.get(), LayoutOfBytes(kBlockBytes));
    const Chain chain(holder.layout(), {.seed = 1, .blocks = 1});
    const auto reserve = holder.Reserve(chain);
    ASSERT_EQ(reserve->ops[0].outcome, ReserveOutcome::kSlot);
    ASSERT_TRUE(witness.Eventually([&] { return witness.Counter("overdue_reservations") == 1; }));
    EXPECT_TRUE(witness.Eventually([&] { return !connect().ok(); }));
    slow->Abort(std::span(&reserve->ops[0].reservation, 1));
  }
  EXPECT_TRUE(witness.Eventually([&] { return connect().ok(); }));
}

// A client that begins matches, and ends them later.
class Announcer {
 public:
  Announcer(const std::string& socket, std::string_view tenant) : raw_(socket) {
    raw_.Enter(tenant);
  }
  void Announce(uint32_t total) {
    totals_.push_back(total);
    MatchCall match;
    match.chain = {.total = total, .items = {.keys = keys_.first(1), .engine_hashes = {}}};
    raw_.Write(FrameKind::kMatch, totals_.size(), match);
  }
  // The node has seen what was announced.
  void Settle() {
    raw_.WriteEmpty(FrameKind::kStats, 0);
    EXPECT_TRUE(raw_.AwaitDone());
  }
  // Of what it announced, how much was not refused.
  uint32_t Taken() {
    uint32_t taken = 0;
    for (uint64_t number = 1; number <= totals_.size(); ++number) {
      const uint32_t total = totals_[number - 1];
      raw_.Write(FrameKind::kMore, number,
                 KeyItems{.keys = keys_.first(total - 1), .engine_hashes = {}});
      const std::optional<AnswerHead> answer = raw_.Answer();
      EXPECT_TRUE(answer.has_value());
      if (answer.has_value() && answer->code != Code::kBusy) taken += total;
    }
    return taken;
  }

 private:
  static constexpr std::array<Key, kMaxItemsPerFrame> kKeys{};

  const std::span<const Key> keys_{kKeys};
  RawClient raw_;
  std::vector<uint32_t> totals_;
};

TEST(ConnectionLimitsTest, WhateverIsAnnouncedTheBoundHoldsAndEveryoneHasAPart) {
  constexpr uint32_t kConnections = 8;
  constexpr uint32_t kItems = 1600;
  constexpr uint32_t kPart = kItems / 2 / kConnections;
  ServerOptions server;
  server.max_connections = kConnections;
  server.max_items = kItems;
  CacheOptions options;
  options.dram_bytes = 128 * kMiB;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto node = OwnNode::Start(options, server);
    ASSERT_TRUE(node.ok()) << node.status().ToString();
    SeededRandom random(seed);
    std::vector<std::unique_ptr<Announcer>> clients;
    while (clients.size() < kConnections) {
      const std::string tenant = std::to_string(random.Below(3));
      clients.push_back(std::make_unique<Announcer>((*node)->socket(), tenant));
    }
    for (int i = 0; i < 200; ++i) {
      const uint64_t most = uint64_t{2} << random.Below(9);
      clients[random.Below(kConnections)]->Announce(2 + static_cast<uint32_t>(random.Below(most)));
    }
    for (const auto& client : clients) client->Settle();
    for (const auto& client : clients) {  // Whatever is left of its part.
      for (uint32_t i = 0; i < kPart / 2; ++i) client->Announce(2);
      client->Settle();
    }
    uint32_t taken = 0;
    for (const auto& client : clients) {
      const uint32_t its = client->Taken();
      EXPECT_GE(its, kPart - 1) << "seed " << seed;
      taken += its;
    }
    EXPECT_LE(taken, kItems) << "seed " << seed;
    EXPECT_GT(taken, kItems / 2) << "seed " << seed;
  }
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

// A client that does not read its socket, where memory is offered to it.
class DeafClient {
 public:
  explicit DeafClient(const std::string& socket) : raw_(socket) {
    raw_.Enter("deaf");
    raw_.Register(LayoutOfBytes(kHalfExtentBytes));
  }

  struct Slot {
    uint32_t extent = 0;
    ReservationId reservation = 0;
    bool was_offered = false;  // Now, and the offer was sent: it is there to be read.
  };
  // A slot for a block that it has not reserved before; none when the node answers no more.
  std::optional<Slot> Reserve() {
    const size_t before = raw_.BytesToReceive();
    ReserveAnswer answer;
    while (answer.reservation == 0) {  // The pool is still being made ready.
      if (!Ask(&answer)) return std::nullopt;
    }
    return Slot{.extent = answer.slot.extent,
                .reservation = answer.reservation,
                .was_offered = raw_.BytesToReceive() > before};
  }
  void Return(const Slot& slot) {
    raw_.Write(FrameKind::kAbort, 0, std::span<const ReservationId>(&slot.reservation, 1));
    raw_.WriteReturned(slot.extent);
  }
  // Until there is no room for more: this one's extent was offered to it, but not sent.
  std::optional<Slot> FillSocket() {
    std::optional<Slot> slot = Reserve();
    for (; slot && slot->was_offered; slot = Reserve()) {
      Return(*slot);
      ++on_their_way_;
    }
    return slot;
  }
  uint32_t on_their_way() const { return on_their_way_; }
  RawClient& raw() { return raw_; }

 private:
  bool Ask(ReserveAnswer* answer) {
    Key key;
    ++number_;
    std::memcpy(key.bytes.data(), &number_, sizeof(number_));
    ReserveCall reserve;
    reserve.chain = {.layout = raw_.layout(),
                     .total = 1,
                     .items = {.keys = std::span(&key, 1), .engine_hashes = {}}};
    raw_.Write(FrameKind::kReserve, number_, reserve);
    const std::optional<AnswerHead> head = raw_.Answer();
    if (!head || head->count != 1) return false;
    Decode(&raw_.reader(), answer);
    return true;
  }

  RawClient raw_;
  uint64_t number_ = 1;
  uint32_t on_their_way_ = 0;
};

// By the time the descriptor is sent, the memory would be closed and the number another tenant's
// memory.
TEST_F(ConnectionTest, WhoeverReturnsMemoryBeforeItWasSentIsCutOff) {
  DeafClient deaf(socket_);
  const auto slot = deaf.FillSocket();
  ASSERT_TRUE(slot.has_value());
  deaf.Return(*slot);
  EXPECT_TRUE(deaf.raw().IsHungUp());  // Reading would make room for what was not sent.
}

// Where too many are on their way to some, nobody is sent any.
TEST_F(ConnectionTest, FewDescriptorsAreOnTheirWayToWhoeverReadsNone) {
  DeafClient deaf(socket_);
  ASSERT_TRUE(deaf.FillSocket().has_value());
  EXPECT_LE(deaf.on_their_way(), 16u);
}

TEST_F(ConnectionTest, WhoeverLetsTooManyFramesWaitIsCutOff) {
  DeafClient deaf(socket_);
  ASSERT_TRUE(deaf.FillSocket().has_value());
  // One of the eight extents waits already. Each has room for two blocks.
  for (uint32_t i = 1; i < 2 * kMaxUnsentFrames; ++i) ASSERT_TRUE(deaf.Reserve().has_value());
  deaf.raw().WriteEmpty(FrameKind::kStats, 1);
  EXPECT_TRUE(deaf.raw().Answer().has_value()) << "as many as may wait are no reason";
  std::ignore = deaf.Reserve();
  EXPECT_TRUE(deaf.raw().IsCutOff());
}

// Fetches so many keys, and sends the first eight of them.
void BeginFetch(RawClient* client, uint32_t total) {
  client->Enter();
  client->Register(LayoutOfBytes(kBlockBytes));
  const std::vector<Key> keys(8);
  FetchCall fetch;
  fetch.chain = {
      .layout = client->layout(), .total = total, .items = {.keys = keys, .engine_hashes = {}}};
  client->Write(FrameKind::kFetch, 2, fetch);
}

TEST_F(ConnectionTest, ARequestWhoseEndDoesNotComeCostsTheConnection) {
  RawClient client(socket_);
  BeginFetch(&client, 9);
  EXPECT_TRUE(client.IsCutOff());
}

TEST_F(ConnectionTest, ARequestThatComesInPartsIsAnswered) {
  RawClient client(socket_);
  BeginFetch(&client, 16);
  const std::vector<Key> rest(8);
  client.Write(FrameKind::kMore, 2, KeyItems{.keys = rest, .engine_hashes = {}});
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
