// A client that speaks the protocol by hand, and breaks every rule of docs/formats/local.md. It
// loses its own connection and nothing else: after each, an honest client finds all that it stored.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "net/local/byte_ring.h"
#include "net/local/frame_socket.h"
#include "net/protocol/local_protocol.h"
#include "testing/cache/slow_to_close.h"
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
constexpr int64_t kPatienceNanos = 10'000'000'000;
constexpr uint64_t kIdleSleeps = 40;
constexpr uint32_t kMaxGreetingPerUser = 4;
constexpr uint32_t kMaxItems = 200'000;
constexpr uint32_t kTenantItems = kMaxItems / 4;  // Of one that is alone.
constexpr uint32_t kOwnItems = 100;               // That each connection always has.
constexpr uint64_t kMostEntries = 10'000;         // As in cache/slices_test.cc.

class HostileClient : public testing::Test {
 protected:
  HostileClient() {
    CacheOptions options;
    options.dram_bytes = 256 * kMiB;
    options.tenants.push_back({.name = "honest", .dram_floor_bytes = 64 * kMiB});
    options.keep_available_bytes = 0;  // Without a descriptor, nobody knows how much there is.
    ServerOptions server;
    server.limits.greeting_nanos = 200'000'000;
    server.limits.return_nanos = 200'000'000;
    server.max_greeting_per_user = kMaxGreetingPerUser;
    server.max_items = kMaxItems;
    server.max_connections = kMaxItems / 2 / kOwnItems;
    server.max_greeting = 2 * kMaxGreetingPerUser;
    node_ = *OwnNode::Start(options, server);
    honest_ = *Connect({.socket = node_->socket()}, {.tenant = "honest"});
    engine_.emplace(honest_.get(), LayoutOfBytes(kBlockBytes));
    chain_.emplace(engine_->layout(), ChainOptions{.seed = 1, .blocks = 16, .tenant = "honest"});
    AQ_CHECK(engine_->Store(*chain_) == 16);
  }
  ~HostileClient() override {
    EXPECT_EQ(engine_->Recall(*chain_), Recalled{.right = 16}) << "an honest client was harmed";
    EXPECT_TRUE(engine_->Eventually([this] { return engine_->Counter("lent_slots") == 0; }));
  }

  std::unique_ptr<RawClient> Enter() {
    auto client = std::make_unique<RawClient>(node_->socket());
    client->Enter();
    return client;
  }
  // Whether a client that does this after its welcome is cut off.
  bool Costs(const std::function<void(RawClient*)>& act) {
    const auto client = Enter();
    act(client.get());
    return client->IsCutOff();
  }

  template <class Ask>
  auto OnOwner(Ask ask) {
    decltype(ask()) answer{};
    RunAndWait(node_->node().running()->owner(), [&](const std::function<void()>& done) {
      answer = ask();
      done();
    });
    return answer;
  }
  // Of the owner's largest task.
  uint64_t MostEntries() {
    const uint64_t most = OnOwner([this] { return node_->node().running()->meter()->most(); });
    EXPECT_GT(most, 0u);
    return most;
  }
  ServerStats ServerNow() {
    return OnOwner([this] { return node_->node().server()->stats(); });
  }
  // What the owner hears of while it goes to sleep a number of times and nobody wants anything: one
  // that hears of the same again and again never sleeps.
  uint64_t HeardWhileIdle() {
    struct Counts {
      uint64_t sleeps = 0;
      uint64_t heard = 0;
    };
    const auto now = [this] {
      return OnOwner([this] {
        const EpollWaiter* const waiter = node_->node().waiter();
        return Counts{.sleeps = waiter->sleeps(), .heard = waiter->heard()};
      });
    };
    const Counts before = now();
    EXPECT_TRUE(engine_->Eventually([&] { return now().sleeps >= before.sleeps + kIdleSleeps; }));
    return now().heard - before.heard;
  }

  std::shared_ptr<OwnNode> node_;  // Shared with nobody; OwnNode is made that way.
  std::unique_ptr<Cache> honest_;
  std::optional<TestEngine> engine_;
  std::optional<Chain> chain_;
};

std::vector<std::byte> Garbage(size_t bytes) {
  std::vector<std::byte> garbage(bytes);
  SeededRandom random(bytes);
  for (std::byte& byte : garbage) byte = static_cast<std::byte>(random.Below(256));
  return garbage;
}

ChainCall ChainOf(std::span<const Key> keys, uint32_t total) {
  return {.layout = 1,
          .group = 0,
          .part = 0,
          .total = total,
          .items = {.keys = keys, .engine_hashes = {}}};
}

TEST_F(HostileClient, MustSayHelloAndNothingElse) {
  FrameWriter writer;
  {
    RawClient client(node_->socket());
    client.SendOnSocket(Garbage(64));
    EXPECT_TRUE(client.IsCutOff());
  }
  {
    RawClient client(node_->socket());
    writer.Begin(static_cast<uint16_t>(FrameKind::kWelcome), 0);
    client.SendOnSocket(writer.Finish());
    EXPECT_TRUE(client.IsCutOff());
  }
  {
    RawClient client(node_->socket());
    writer.Begin(static_cast<uint16_t>(FrameKind::kHello), 0);
    writer.U64(UINT64_MAX);
    client.SendOnSocket(writer.Finish());
    EXPECT_TRUE(client.IsCutOff());
  }
  {
    RawClient silent(node_->socket());
    EXPECT_TRUE(silent.IsCutOff());
  }
  EXPECT_TRUE(Costs([](RawClient* client) { client->SayHello({.tenant = "local"}); }));
}

TEST_F(HostileClient, OfALaterVersionOnlyIsToldSo) {
  RawClient client(node_->socket());
  client.SayHello({.oldest_version = kLocalVersion + 1, .newest_version = 9, .tenant = "local"});
  const std::vector<std::byte> frame = client.Receive();
  FrameReader reader(frame);
  Refused refused;
  ASSERT_TRUE(Decode(&reader, &refused).ok());
  EXPECT_EQ(refused.code, Code::kInvalid);
  EXPECT_NE(refused.message.find("version"), std::string_view::npos) << refused.message;
  EXPECT_TRUE(client.IsCutOff());
}

TEST_F(HostileClient, OfALaterVersionThatAlsoSpeaksOursIsServed) {
  RawClient client(node_->socket());
  client.SayHello({.oldest_version = 1, .newest_version = 9, .tenant = "local"});
  const std::vector<std::byte> frame = client.Receive();
  FrameReader reader(frame);
  Welcome welcome;
  ASSERT_TRUE(Decode(&reader, &welcome).ok());
  EXPECT_EQ(welcome.version, kLocalVersion);
}

// Each version has its own hints, and nobody else's.
TEST_F(HostileClient, OneVersionOlderIsServedInItsOwnWords) {
  const auto hint = [](RawClient* client, uint16_t version) {
    FrameWriter writer;
    writer.Begin(static_cast<uint16_t>(FrameKind::kHint), 0);
    Encode(HintCall{.layout = 1, .head = Key{}, .session = "s"}, version, &writer);
    client->WriteFrame(writer.Finish());
    client->WriteEmpty(FrameKind::kStats, 1);
  };
  for (const uint16_t spoken : {uint16_t{1}, kLocalVersion}) {
    for (const uint16_t written : {uint16_t{1}, kLocalVersion}) {
      RawClient client(node_->socket());
      client.Enter("local", /*observe=*/false, spoken);
      hint(&client, written);
      if (spoken == written) {
        EXPECT_TRUE(client.AwaitDone()) << spoken;
      } else {
        EXPECT_TRUE(client.IsCutOff()) << spoken << ", " << written;
      }
    }
  }
}

TEST_F(HostileClient, CannotLieAboutItsRings) {
  EXPECT_TRUE(Costs([](RawClient* client) {
    client->request_header()->written = uint64_t{1} << 40;
    client->WakeNode();
  }));
  EXPECT_TRUE(Costs([](RawClient* client) {
    client->request_header()->written = 12;  // No frame ends there.
    client->WakeNode();
  }));
  EXPECT_TRUE(Costs([](RawClient* client) {
    const uint32_t length = 8;
    std::memcpy(client->request_memory().data() + kRingHeaderBytes, &length, sizeof(length));
    client->request_header()->written = 64;
    client->WakeNode();
  }));
  EXPECT_TRUE(Costs([](RawClient* client) {
    client->answer_header()->read = uint64_t{1} << 40;  // More than was ever written.
    client->WriteEmpty(FrameKind::kStats, 1);
  }));
}

TEST_F(HostileClient, CannotSendWhatIsNoRequest) {
  const std::vector<Key> keys(8);
  EXPECT_TRUE(Costs([](RawClient* client) { client->WriteEmpty(static_cast<FrameKind>(999), 1); }));
  EXPECT_TRUE(Costs([](RawClient* client) { client->WriteEmpty(FrameKind::kAnswer, 1); }));
  EXPECT_TRUE(Costs([](RawClient* client) { client->WriteEmpty(FrameKind::kFetch, 1); }));
  EXPECT_TRUE(Costs([&](RawClient* client) {  // More of nothing.
    client->Write(FrameKind::kMore, 1, KeyItems{.keys = keys, .engine_hashes = {}});
  }));
  EXPECT_TRUE(Costs([&](RawClient* client) {  // More than was announced.
    client->Write(FrameKind::kMatch, 1, MatchCall{.chain = ChainOf(keys, 9)});
    client->Write(FrameKind::kMore, 1, KeyItems{.keys = keys, .engine_hashes = {}});
  }));
  EXPECT_TRUE(Costs([&](RawClient* client) {  // More, but nothing.
    client->Write(FrameKind::kMatch, 1, MatchCall{.chain = ChainOf(keys, 9)});
    client->Write(FrameKind::kMore, 1, KeyItems{});
  }));
  EXPECT_TRUE(Costs([&](RawClient* client) {  // Names for some keys only.
    const std::vector<uint64_t> names(8);
    client->Write(FrameKind::kMatch, 1, MatchCall{.chain = ChainOf(keys, 16)});
    client->Write(FrameKind::kMore, 1,
                  KeyItems{.keys = keys, .engine_hashes = std::as_bytes(std::span(names))});
  }));
  EXPECT_TRUE(Costs([&](RawClient* client) {  // A number that is in use.
    client->Write(FrameKind::kMatch, 1, MatchCall{.chain = ChainOf(keys, 9)});
    client->Write(FrameKind::kMatch, 1, MatchCall{.chain = ChainOf(keys, 9)});
  }));
  EXPECT_TRUE(Costs([](RawClient* client) {  // Too many leases for a frame.
    FrameWriter writer;
    writer.Begin(static_cast<uint16_t>(FrameKind::kRelease), 0);
    writer.U32(kMaxItemsPerFrame + 1);
    for (uint32_t i = 0; i < 2 * (kMaxItemsPerFrame + 1); ++i) writer.U64(0);
    client->WriteFrame(writer.Finish());
  }));
  EXPECT_TRUE(Costs([](RawClient* client) {  // Too many reservations for a frame.
    FrameWriter writer;
    writer.Begin(static_cast<uint16_t>(FrameKind::kAbort), 0);
    writer.U32(kMaxItemsPerFrame + 1);
    for (uint32_t i = 0; i < kMaxItemsPerFrame + 1; ++i) writer.U64(0);
    client->WriteFrame(writer.Finish());
  }));
  EXPECT_TRUE(Costs([](RawClient* client) {  // An extent that it was never given.
    FrameWriter writer;
    writer.Begin(static_cast<uint16_t>(FrameKind::kExtentReturned), 0);
    EncodeExtent(1, &writer);
    client->WriteFrame(writer.Finish());
  }));
}

TEST_F(HostileClient, ThatAsksForTooMuchIsRefusedAndThenCutOff) {
  const std::vector<Key> keys(1);
  const auto client = Enter();
  for (uint64_t number = 1; number <= client->max_requests() + 1; ++number) {
    client->Write(FrameKind::kMatch, number, MatchCall{.chain = ChainOf(keys, 2)});
  }
  // The one over the bound is told when it has arrived whole.
  client->Write(FrameKind::kMore, client->max_requests() + 1,
                KeyItems{.keys = keys, .engine_hashes = {}});
  const std::optional<AnswerHead> answer = client->Answer();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, Code::kBusy);
  for (uint64_t number = 1; number <= client->max_requests() + 1; ++number) {
    client->Write(FrameKind::kMatch, 10'000 + number, MatchCall{.chain = ChainOf(keys, 2)});
  }
  EXPECT_TRUE(client->IsCutOff());
}

// Announces so many keys, of which the end never comes.
void Announce(RawClient* client, uint32_t total) {
  const std::vector<Key> keys(1);
  client->Write(FrameKind::kMatch, 1, MatchCall{.chain = ChainOf(keys, total)});
  client->WriteEmpty(FrameKind::kStats, 2);
  EXPECT_TRUE(client->AwaitDone());  // The node has seen both.
}

// Whether so many keys are more than it may ask for at once now.
bool IsTooMuch(RawClient* client, uint32_t total) {
  const std::vector<Key> keys(std::min(total, kMaxItemsPerFrame));
  client->Write(FrameKind::kMatch, 3, MatchCall{.chain = ChainOf(keys, total)});
  for (uint32_t sent = kMaxItemsPerFrame; sent < total; sent += kMaxItemsPerFrame) {
    const size_t count = std::min(total - sent, kMaxItemsPerFrame);
    client->Write(FrameKind::kMore, 3,
                  KeyItems{.keys = std::span(keys).first(count), .engine_hashes = {}});
  }
  const std::optional<AnswerHead> answer = client->Answer();
  EXPECT_TRUE(answer.has_value());
  if (!answer.has_value() || answer->code == Code::kBusy) return true;
  EXPECT_EQ(answer->code, Code::kInvalid);  // It knows no layout.
  return false;
}

TEST_F(HostileClient, AnnouncesNoMoreThanItsShareOverAllItsConnections) {
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(Enter());
    Announce(clients.back().get(), kTenantItems / 2);
  }
  const auto last = Enter();
  EXPECT_TRUE(IsTooMuch(last.get(), kOwnItems + 1));
  // It has it again when its connections are gone.
  for (const auto& client : clients) client->WriteEmpty(FrameKind::kGoodbye, 0);
  EXPECT_TRUE(engine_->Eventually([&] { return !IsTooMuch(last.get(), kTenantItems); }));
  EXPECT_TRUE(IsTooMuch(last.get(), kTenantItems + 1));
}

TEST_F(HostileClient, AnnouncesAllThatItCanAndLeavesEnoughToOthersOfItsUser) {
  const auto client = Enter();
  Announce(client.get(), kTenantItems);
  EXPECT_TRUE(IsTooMuch(client.get(), 1));
  // Another tenant has half of what is left,
  RawClient other(node_->socket());
  other.Enter("other");
  EXPECT_FALSE(IsTooMuch(&other, kTenantItems / 2));
  EXPECT_TRUE(IsTooMuch(&other, kTenantItems / 2 + 1));
  // and its own tenant what every connection has.
  const auto neighbour = Enter();
  EXPECT_FALSE(IsTooMuch(neighbour.get(), kOwnItems));
  EXPECT_TRUE(IsTooMuch(neighbour.get(), kOwnItems + 1));
  EXPECT_EQ(engine_->Recall(*chain_), Recalled{.right = 16});
}

TEST_F(HostileClient, GuessesNoLeaseNoReservationAndNoLayout) {
  const auto fetch = engine_->Fetch(*chain_);  // The honest one has leases.
  const auto client = Enter();
  std::vector<ReleaseOp> releases;
  std::vector<ReservationId> aborts;
  for (uint64_t number = 0; number < 64; ++number) {
    for (uint64_t generation = 0; generation < 8; ++generation) {
      releases.push_back({.lease = generation << 32 | number, .corrupt = true});
      aborts.push_back(generation << 32 | number);
    }
  }
  client->Write(FrameKind::kRelease, 0, std::span<const ReleaseOp>(releases));
  client->Write(FrameKind::kAbort, 0, std::span<const ReservationId>(aborts));
  std::vector<std::byte> op(kCommitOpBytes);
  CommitOp guessed;
  guessed.reservation = uint64_t{1} << 32 | 1;
  EncodeCommitOp(guessed, std::span(op).first<kCommitOpBytes>());
  client->Write(FrameKind::kCommit, 1, CommitCall{.total = 1, .ops = op});
  ASSERT_TRUE(client->Answer().has_value());
  CommitAnswer commit;
  Decode(&client->reader(), &commit);
  EXPECT_EQ(commit.code, Code::kInvalid);

  client->Write(FrameKind::kRegisterLayout, 9, LayoutOfBytes(kBlockBytes));
  ASSERT_TRUE(client->Answer().has_value());
  CountsAnswer registered;
  Decode(&client->reader(), &registered);
  EXPECT_EQ(registered.first, 1u);
  // The same keys under another tenant are misses, with the same answer as keys of nobody.
  for (const bool real : {true, false}) {
    std::vector<Key> keys(chain_->keys().begin(), chain_->keys().end());
    if (!real) keys.assign(keys.size(), Key{});
    client->Write(FrameKind::kFetch, 2,
                  FetchCall{.chain = ChainOf(keys, static_cast<uint32_t>(keys.size())),
                            .timeout_nanos = kPatienceNanos});
    const std::optional<AnswerHead> head = client->Answer();
    ASSERT_TRUE(head.has_value());
    EXPECT_EQ(head->code, Code::kOk);
    ASSERT_EQ(head->count, keys.size());
    for (uint32_t i = 0; i < head->count; ++i) {
      FetchAnswer answer;
      Decode(&client->reader(), &answer);
      EXPECT_EQ(answer.code, Code::kNotFound);
      EXPECT_EQ(answer.slot.extent, 0u);
      EXPECT_EQ(answer.lease, 0u);
    }
  }
  // A layout of nobody's.
  ChainCall call = ChainOf(chain_->keys(), 16);
  call.layout = 4711;
  client->Write(FrameKind::kMatch, 3, MatchCall{.chain = call});
  const std::optional<AnswerHead> head = client->Answer();
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->code, Code::kInvalid);
  EXPECT_EQ(engine_->CheckAndRelease(*chain_, {}, *fetch), Recalled{.right = 16});
}

TEST_F(HostileClient, MayChangeItsFramesWhileTheyAreRead) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a race on purpose: the other side of it is another process";
#endif
  for (int round = 0; round < 20; ++round) {
    const auto client = Enter();
    std::atomic<bool> stop = false;
    std::thread scribbler([&] {
      SeededRandom random(static_cast<uint64_t>(round));
      while (!stop) {
        const size_t at = kRingHeaderBytes + random.Below(4096);
        client->request_memory()[at] = static_cast<std::byte>(random.Below(256));
      }
    });
    const std::vector<Key> keys(16);
    for (uint64_t number = 1; number <= 200; ++number) {
      FrameWriter writer;
      writer.Begin(static_cast<uint16_t>(FrameKind::kMatch), number);
      Encode(MatchCall{.chain = ChainOf(keys, 16)}, &writer);
      client->WriteFrame(writer.Finish());
      if (client->answer_header()->written != client->answer_header()->read) {
        client->answer_header()->read = client->answer_header()->written.load();
      }
    }
    stop = true;
    scribbler.join();
  }
}

// It clears O_NONBLOCK wherever it can, fills what the node wakes it with, and says each time that
// it sleeps.
TEST_F(HostileClient, CannotMakeTheNodeWaitForWhatTheyShare) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto client = Enter();
  const uint64_t most = UINT64_MAX - 1;
  [[maybe_unused]] const ssize_t filled = ::write(client->shared().back(), &most, sizeof(most));
  for (const int descriptor : client->shared()) ASSERT_EQ(::fcntl(descriptor, F_SETFL, 0), 0);
  for (uint64_t number = 1; number <= 400; ++number) {
    client->answer_header()->reader_sleeps = 1;
    client->WriteEmpty(FrameKind::kStats, number);
    ASSERT_TRUE(client->Answer().has_value());
  }
  EXPECT_EQ(engine_->Recall(*chain_), Recalled{.right = 16});
}

TEST_F(HostileClient, SendsFilesWhoseClosingTakesForEver) {
  SlowToClose with_hello;
  SlowToClose after_hello;
  {
    RawClient client(node_->socket());
    Descriptor slow = with_hello.Take();
    const bool sent =
        client.SayHello({.tenant = "local", .token = "", .engine = "raw"}, std::vector{slow.get()});
    CloseElsewhere(std::move(slow));
    EXPECT_TRUE(!sent || client.IsCutOff());
  }
  {
    const auto client = Enter();
    Descriptor slow = after_hello.Take();
    const bool sent = client->SendOnSocket(Garbage(64), std::vector{slow.get()});
    CloseElsewhere(std::move(slow));
    EXPECT_TRUE(!sent || client->IsCutOff());
    client->WriteEmpty(FrameKind::kGoodbye, 0);
  }
  // While neither is closed yet, the node serves.
  EXPECT_EQ(engine_->Recall(*chain_), Recalled{.right = 16});
  const auto another = Enter();
  another->WriteEmpty(FrameKind::kStats, 1);
  EXPECT_TRUE(another->Answer().has_value());
}

TEST_F(HostileClient, FillsItsSocketAndTheNodeSleeps) {
  const auto client = Enter();
  client->SendOnSocket(Garbage(4096));
  EXPECT_TRUE(client->IsCutOff());
  EXPECT_LT(HeardWhileIdle(), kIdleSleeps);
}

TEST_F(HostileClient, MayFindTheNodeWithoutADescriptorLeftAndWaits) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, node_->socket().data(), node_->socket().size());
  const Descriptor connecting(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t soft = std::exchange(limit.rlim_cur, 3);  // No number below it is free.
  const uint64_t accepted = ServerNow().accepted;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(
      ::connect(connecting.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_LT(HeardWhileIdle(), kIdleSleeps);
  EXPECT_EQ(engine_->Recall(*chain_), Recalled{.right = 16});
  EXPECT_EQ(ServerNow().accepted, accepted);
  limit.rlim_cur = soft;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_TRUE(engine_->Eventually([&] { return ServerNow().accepted > accepted; }));
}

// SO_PEERCRED says what this thread was when it connected.
Descriptor ConnectAsNobody(const std::string& path) {
  Descriptor connected;
  std::thread([&] {
    constexpr uid_t kNobody = 65534;
    AQ_CHECK(::syscall(SYS_setresuid, kNobody, kNobody, -1) == 0);
    // The node takes one at a time; where too many wait to be taken, more are sent away.
    Result<Descriptor> made = ConnectTo(path);
    for (; !made.ok(); made = ConnectTo(path)) std::this_thread::yield();
    connected = *std::move(made);
  }).join();
  return connected;
}

TEST_F(HostileClient, ConnectsOftenAndOnlyItsOwnUserFindsNoRoom) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs a second user";
  const std::filesystem::path socket(node_->socket());
  ASSERT_EQ(::chmod(socket.c_str(), 0666), 0);
  ASSERT_EQ(::chmod(socket.parent_path().c_str(), 0755), 0);
  std::vector<FrameSocket> silent;
  const uint64_t before = ServerNow().turned_away;
  // Those that say nothing for too long make room for others.
  for (int i = 0; i < 500 && ServerNow().turned_away == before; ++i) {
    Descriptor connected = ConnectAsNobody(node_->socket());
    if (connected.valid()) silent.emplace_back(std::move(connected));
  }
  EXPECT_GT(ServerNow().turned_away, before);
  const auto client = Enter();
  client->WriteEmpty(FrameKind::kStats, 1);
  EXPECT_TRUE(client->Answer().has_value());
}

// A request of many frames, each as large as can be.
template <class Call>
void SendLong(RawClient* client, FrameKind kind, Call call) {
  constexpr uint32_t kFrames = 40;
  std::vector<Key> keys(kMaxItemsPerFrame);
  SeededRandom random(static_cast<uint64_t>(kind));
  for (uint32_t i = 0; i < kFrames; ++i) {
    for (Key& key : keys) {
      for (std::byte& byte : key.bytes) byte = static_cast<std::byte>(random.Below(256));
    }
    if (i == 0) {
      call.chain = ChainOf(keys, kFrames * kMaxItemsPerFrame);
      call.chain.layout = client->layout();
      client->Write(kind, 2, call);
    } else {
      client->Write(FrameKind::kMore, 2, KeyItems{.keys = keys, .engine_hashes = {}});
    }
  }
}

TEST_F(HostileClient, OfManyLargeFramesMakesNoLongTask) {
  const auto client = Enter();
  client->Register(LayoutOfBytes(kBlockBytes));
  OnOwner([this] { return node_->node().running()->meter()->ResetMost(), true; });
  const auto finish = [&](FrameKind kind, const auto& call) {
    SendLong(client.get(), kind, call);
    EXPECT_TRUE(client->AwaitDone()) << static_cast<int>(kind);
  };
  finish(FrameKind::kMatch, MatchCall{});
  finish(FrameKind::kFetch, FetchCall{.chain = {}, .timeout_nanos = kPatienceNanos});
  finish(FrameKind::kPin, PinCall{.chain = {}, .seconds = 1});
  finish(FrameKind::kPrestage,
         PrestageCall{.chain = {}, .session = {}, .timeout_nanos = kPatienceNanos});
  finish(FrameKind::kEvict, EvictCall{});
  finish(FrameKind::kReserve, ReserveCall{});
  const std::vector<ReleaseOp> releases(kMaxItemsPerFrame, ReleaseOp{.lease = 1});
  const std::vector<ReservationId> aborts(kMaxItemsPerFrame, ReservationId{1});
  const std::vector<std::byte> commits(kCommitOpBytes * kMaxItemsPerFrame);
  for (uint64_t i = 0; i < 20; ++i) {
    client->Write(FrameKind::kRelease, 0, std::span<const ReleaseOp>(releases));
    client->Write(FrameKind::kAbort, 0, std::span<const ReservationId>(aborts));
    client->Write(FrameKind::kCommit, 3, CommitCall{.total = kMaxItemsPerFrame, .ops = commits});
    EXPECT_TRUE(client->AwaitDone());
  }
  EXPECT_LT(MostEntries(), kMostEntries);
  client->WriteEmpty(FrameKind::kGoodbye, 0);
}

TEST_F(HostileClient, ThatLeavesMuchBehindMakesNoLongTask) {
  const auto client = Enter();
  client->Register(LayoutOfBytes(4096));
  OnOwner([this] { return node_->node().running()->meter()->ResetMost(), true; });
  SendLong(client.get(), FrameKind::kReserve, ReserveCall{});
  // Its answer is larger than the ring, and nobody reads that.
  EXPECT_TRUE(engine_->Eventually([&] { return engine_->Counter("reserved") > 30'000; }));
  client->HangUp();
  EXPECT_TRUE(engine_->Eventually([&] { return ServerNow().lingering == 1; }));
  EXPECT_TRUE(engine_->Eventually([&] { return engine_->Counter("lent_slots") < 10'000; }));
  EXPECT_GT(engine_->Counter("lent_slots"), 0u) << "it was told of these, and may write to them";
  client->WriteEmpty(FrameKind::kGoodbye, 0);
  EXPECT_TRUE(engine_->Eventually([&] { return engine_->Counter("lent_slots") == 0; }));
  EXPECT_LT(MostEntries(), kMostEntries);
}

TEST_F(HostileClient, KeepsMemoryThatItIsAskedForAndIsCutOff) {
  const auto client = Enter();
  client->Register(LayoutOfBytes(kBlockBytes));
  SendLong(client.get(), FrameKind::kReserve, ReserveCall{});
  std::vector<ReservationId> given;
  for (bool done = false; !done;) {
    const std::optional<AnswerHead> head = client->Answer();
    ASSERT_TRUE(head.has_value());
    done = head->done;
    for (uint32_t i = 0; i < head->count; ++i) {
      ReserveAnswer answer;
      Decode(&client->reader(), &answer);
      if (answer.reservation != 0) given.push_back(answer.reservation);
    }
  }
  ASSERT_GT(given.size(), 1024u);
  for (std::span<const ReservationId> left(given); !left.empty();) {
    const size_t count = std::min<size_t>(left.size(), kMaxItemsPerFrame);
    client->Write(FrameKind::kAbort, 0, left.first(count));
    left = left.subspan(count);
  }
  // Others need the memory now.
  const Chain large(engine_->layout(), {.seed = 2, .blocks = 2048, .tenant = "honest"});
  const auto reserve = engine_->Reserve(large);
  std::vector<ReservationId> aborts;
  for (const ReserveOp& op : reserve->ops) aborts.push_back(op.reservation);
  honest_->Abort(aborts);
  EXPECT_TRUE(client->IsCutOff());
  client->WriteEmpty(FrameKind::kGoodbye, 0);
  EXPECT_EQ(engine_->Store(*chain_), 16u);  // They had to make room as well.
}

TEST_F(HostileClient, OfATenantThatIsGoneIsCutOff) {
  const auto client = Enter();
  client->WriteEmpty(FrameKind::kStats, 1);
  ASSERT_TRUE(client->Answer().has_value());
  OnOwner([this] {
    node_->node().server()->KeepThose([](const Admission& admission, const PeerCredentials&) {
      return admission.client.tenant == "honest";
    });
    return true;
  });
  EXPECT_TRUE(client->IsCutOff());
}

// As a client does that dials a node which hangs: there is nothing that it could still touch.
TEST_F(HostileClient, LeavesBeforeItIsWelcomeAndIsForgotten) {
  const ServerStats before = ServerNow();
  constexpr uint64_t kTimes = 10;
  for (uint64_t i = 0; i < kTimes; ++i) {
    RawClient(node_->socket()).SayHello({.tenant = "local"});
  }
  EXPECT_TRUE(engine_->Eventually([&] {
    const ServerStats now = ServerNow();
    return now.accepted == before.accepted + kTimes && now.open == before.open &&
           now.lingering == before.lingering;
  }));
}

// Nothing can be sent to it any more, which is the end of it.
TEST_F(HostileClient, StopsReadingAndHasHungUp) {
  const auto client = Enter();
  client->Register(LayoutOfBytes(kBlockBytes));
  client->StopReading();
  std::vector<Key> keys(1);
  keys[0].bytes[0] = std::byte{1};
  ReserveCall reserve;
  reserve.chain = ChainOf(keys, 1);
  reserve.chain.layout = client->layout();
  client->Write(FrameKind::kReserve, 1, reserve);
  EXPECT_TRUE(engine_->Eventually([&] { return ServerNow().lingering == 1; }));
  client->WriteEmpty(FrameKind::kGoodbye, 0);
}

// It can: the seals do not forbid it. Its own tenant's blocks are lost, and nobody else's.
TEST_F(HostileClient, MayPunchHolesIntoItsOwnMemoryOnly) {
  auto cache = Connect({.socket = node_->socket()}, {.tenant = "puncher"});
  ASSERT_TRUE(cache.ok());
  TestEngine own(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(own.layout(), {.seed = 3, .blocks = 8, .tenant = "puncher"});
  const auto reserve = own.Reserve(chain);
  const auto commit = own.FillAndCommit(chain, {}, *reserve);
  ASSERT_TRUE(commit->ops[0].published);
  for (const ReserveOp& op : reserve->ops) {
    ASSERT_EQ(::madvise(op.slot.data(), op.slot.size(), MADV_REMOVE), 0);
  }
  const auto fetch = own.Fetch(chain);
  for (const FetchOp& op : fetch->ops) {
    ASSERT_TRUE(op.status.ok()) << op.status.ToString();
    EXPECT_NE(ChecksumOf(op.bytes), op.checksum) << "the reader can tell";
  }
  own.Release(*fetch);
}

TEST(PunchedOut, BlocksAreNeitherWrittenDownNorServed) {
  const ScratchDirectory drive;
  CacheOptions options;
  options.dram_bytes = 128 * kMiB;
  options.keep_available_bytes = 0;
  options.nvme_directories = {drive.path()};
  options.nvme_bytes = 512 * kMiB;
  auto node = OwnNode::Start(options);
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  auto cache = Connect({.socket = (*node)->socket()}, {.tenant = "puncher"});
  ASSERT_TRUE(cache.ok());
  TestEngine own(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain whole(own.layout(), {.seed = 3, .blocks = 8, .tenant = "puncher"});
  const Chain chain(own.layout(), {.seed = 4, .blocks = 8, .tenant = "puncher"});
  ASSERT_EQ(own.Store(whole), 8u);
  // Gone before they are committed, so that nothing of them is on its way to the drive yet.
  const auto reserve = own.Reserve(chain);
  CommitRequest commit;
  for (size_t i = 0; i < chain.size(); ++i) {
    const std::span<std::byte> slot = reserve->ops[i].slot;
    FillPayload(chain[i], 0, slot);
    commit.ops.emplace_back().reservation = reserve->ops[i].reservation;
    commit.ops.back().sums = SumLanes(slot, 0);
    ASSERT_EQ(::madvise(slot.data(), slot.size(), MADV_REMOVE), 0);
  }
  (*cache)->Commit(&commit);
  own.Finish(commit);
  std::ignore = own.Flush();
  EXPECT_EQ(own.Counter("corrupt_blocks"), 8u);
  EXPECT_EQ(own.Recall(chain), Recalled{.missed = 8});
  EXPECT_EQ(own.Recall(whole), Recalled{.right = 8});
  EXPECT_EQ(own.StatsOf(TierKind::kNvme).blocks, 8u);
}

}  // namespace
}  // namespace aquifer
