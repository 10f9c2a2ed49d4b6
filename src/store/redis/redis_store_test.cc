// Tests the Redis store over one real server: the contract, and behaviour that only Redis has. The
// tests share the server and empty it in between. redis_cluster_test.cc tests clusters.
#include "store/redis/redis_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <thread>
#include <tuple>

#include "base/check.h"
#include "base/descriptor.h"
#include "store/blob_store_contract.h"
#include "store/redis/redis_manifest.h"
#include "store/redis/redis_store_fixture.h"
#include "testing/child_process.h"
#include "testing/fault_proxy.h"
#include "testing/seeded_random.h"
#include "testing/servers/redis_server.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

// Starts and ends with the program, since starting it takes longer than a test.
RedisServer& SharedServer() {
  static RedisServer server;
  return server;
}

int64_t KeysOf(RedisServer& server) { return server.Ask({"DBSIZE"}).integer; }

// One server, behind a network that can fail.
class SingleHarness final : public BlobStoreHarness {
 public:
  SingleHarness() { SharedServer().Ask({"FLUSHALL"}); }

  std::unique_ptr<BlobStore> Open(size_t max_queued) override {
    RedisStoreOptions options = OptionsFor(fmt::format("127.0.0.1:{}", proxy_.port()));
    options.most_queued = max_queued;
    return aquifer::Open(options);
  }
  int64_t NowNanos() override { return SystemClock()->NowNanos(); }
  bool RunUntil(const std::function<bool()>& done) override { return aquifer::RunUntil(done); }
  bool Hang(bool hangs) override {
    proxy_.Set({.stall = hangs});
    return true;
  }
  bool CutShort(const std::string& name, uint64_t bytes) override {
    const std::string key = ManifestKey("aquifer:", name);
    const RespReply value = SharedServer().Ask({"GET", key});
    SharedServer().Ask({"SET", key, value.text.substr(0, RedisManifest::kBytes + bytes)});
    return true;
  }
  bool Disconnect(bool gone) override {
    proxy_.Set({.refuse = gone});
    return true;
  }

 private:
  FaultProxy proxy_{SharedServer().port()};
};

INSTANTIATE_TEST_SUITE_P(Redis, BlobStoreContract,
                         testing::Values(BlobStoreParam{
                             .name = "Single",
                             .make = [] { return std::make_unique<SingleHarness>(); }}),
                         [](const auto& info) { return info.param.name; });

TEST(RedisManifestTest, AnyFlippedBitIsFound) {
  SeededRandom random(1);
  const RedisManifest manifest = *PlanManifest(1'000'000, 4096, 65536, &random);
  EXPECT_EQ(manifest.pieces(), 16u);
  EXPECT_EQ(manifest.PieceBytes(15), 1'000'000 - 4096 - 15 * 65536u);
  RedisManifest::Bytes bytes = EncodeManifest(manifest);
  ASSERT_TRUE(DecodeManifest(bytes).ok());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    const auto mask = static_cast<std::byte>(1u << bit % 8);
    bytes[bit / 8] ^= mask;
    EXPECT_EQ(DecodeManifest(bytes).status().code(), Code::kCorrupt) << bit;
    bytes[bit / 8] ^= mask;
  }
  EXPECT_EQ(DecodeManifest(std::span(bytes).first(63)).status().code(), Code::kCorrupt);
}

// Rounding up by the server's allocator costs its memory: see RedisStoreOptions::piece_bytes.
TEST(RedisManifestTest, ABlockIsCutIntoPiecesThatFillAServersMemoryWithNoSmallOneBehindThem) {
  SeededRandom random(1);
  const uint32_t piece_bytes = RedisStoreOptions().piece_bytes;
  for (const uint64_t pieces : {2, 4, 16}) {
    const uint64_t block_bytes = pieces << 19;
    const RedisManifest manifest = *PlanManifest(4096 + block_bytes, 4096, piece_bytes, &random);
    EXPECT_EQ(manifest.pieces(), pieces);
    EXPECT_EQ(manifest.PieceBytes(pieces - 1), piece_bytes);
    EXPECT_EQ(manifest.inline_bytes, 4096 + pieces * 64);
  }
  const RedisManifest whole = *PlanManifest(4096 + (1 << 19), 4096, piece_bytes, &random);
  EXPECT_EQ(whole.pieces(), 0u);
  EXPECT_EQ(PlanManifest(4096 + (1 << 20) + 8192, 4096, piece_bytes, &random)->pieces(), 3u);
}

class RedisStoreTest : public testing::Test {
 protected:
  void SetUp() override { SharedServer().Ask({"FLUSHALL"}); }

  RedisServer& server_ = SharedServer();
};

TEST_F(RedisStoreTest, WrongOptionsAreRefused) {
  const auto refused = [](auto change) {
    RedisStoreOptions options = OptionsFor("127.0.0.1:1");
    change(&options);
    return NewRedisStore(options).status().code() == Code::kInvalid;
  };
  EXPECT_TRUE(refused([](auto* o) { o->servers.clear(); }));
  EXPECT_TRUE(refused([](auto* o) { o->servers = {"a:b"}; }));
  EXPECT_TRUE(refused([](auto* o) { o->prefix = "a{b}"; }));
  EXPECT_TRUE(refused([](auto* o) { o->piece_bytes = 0; }));
  EXPECT_TRUE(refused([](auto* o) { o->connections = 0; }));
  EXPECT_TRUE(refused([](auto* o) { o->user = "alice"; }));
  EXPECT_TRUE(refused([](auto* o) { o->tls = true, o->ca_file = "/not/there"; }));
}

TEST_F(RedisStoreTest, APieceCostsTheServerNoMoreMemoryThanItHas) {
  RedisStoreOptions options;
  options.servers = {server_.address()};
  const auto store = Open(options);
  ASSERT_TRUE(Write(store.get(), "a", size_t{2} << 20, 1).ok());
  EXPECT_TRUE(Read(store.get(), "a", size_t{2} << 20, 1).ok());
  EXPECT_EQ(KeysOf(server_), 1 + 4);
  for (const RespReply& key : server_.Ask({"KEYS", "*"}).items) {
    const int64_t used_bytes = server_.Ask({"MEMORY", "USAGE", key.text}).integer;
    EXPECT_LE(used_bytes, (int64_t{512} << 10) + 512) << key.text;
  }
}

TEST_F(RedisStoreTest, ARemovedOrReplacedBlobLeavesNothing) {
  const auto store = Open(OptionsFor(server_.address()));
  ASSERT_TRUE(Write(store.get(), "a", 100'000, 1).ok());
  EXPECT_EQ(KeysOf(server_), 1 + 7);
  ASSERT_TRUE(Write(store.get(), "a", 40'000, 2, /*if_absent=*/false).ok());
  EXPECT_TRUE(RunUntil([&] { return KeysOf(server_) == 1 + 3; }));
  ASSERT_TRUE(Write(store.get(), "a", 100, 3, /*if_absent=*/false).ok());
  EXPECT_TRUE(RunUntil([&] { return KeysOf(server_) == 1; }));
  ASSERT_TRUE(Write(store.get(), "a", 70'000, 4, /*if_absent=*/false).ok());
  EXPECT_TRUE(Read(store.get(), "a", 70'000, 4).ok());
  EXPECT_TRUE(Remove(store.get(), "a").ok());
  EXPECT_EQ(KeysOf(server_), 0);
}

// The contract suite tests this for small blobs.
TEST_F(RedisStoreTest, OfManyWhoWriteALargeBlobThatMustBeAbsentOneDoes) {
  const auto store = Open(OptionsFor(server_.address()));
  constexpr size_t kWriters = 8;
  constexpr size_t kBytes = 100'000;
  std::vector<Blob> blobs;
  std::vector<BlobRequest> writes(kWriters);
  std::atomic<size_t> done = 0;
  for (size_t i = 0; i < kWriters; ++i) blobs.emplace_back(kBytes, i);
  for (size_t i = 0; i < kWriters; ++i) {
    writes[i] = {.kind = BlobKind::kWrite,
                 .name = "a",
                 .head = blobs[i].head(),
                 .body = blobs[i].body(),
                 .body_bytes = kBytes,
                 .if_absent = true,
                 .on_done = [&](BlobRequest&) { ++done; }};
    store->Submit(&writes[i]);
  }
  ASSERT_TRUE(RunUntil([&] { return done == kWriters; }));
  size_t winners = 0;
  for (size_t i = 0; i < kWriters; ++i) {
    EXPECT_TRUE(writes[i].status.ok()) << writes[i].status.ToString();
    if (writes[i].existed) continue;
    ++winners;
    EXPECT_TRUE(Read(store.get(), "a", kBytes, i).ok());
  }
  EXPECT_EQ(winners, 1u);
  EXPECT_TRUE(RunUntil([&] { return KeysOf(server_) == 1 + 7; }));  // The losers' pieces are gone.
}

TEST_F(RedisStoreTest, ABlobOfWhichTheServerLostAPieceIsAMissAndCanBeWrittenAgain) {
  const auto store = Open(OptionsFor(server_.address()));
  const auto lose_a_piece = [&] {
    const RespReply keys = server_.Ask({"KEYS", "*:1"});
    ASSERT_EQ(keys.items.size(), 1u);
    server_.Ask({"DEL", keys.items[0].text});
  };
  ASSERT_TRUE(Write(store.get(), "a", 100'000, 1).ok());
  lose_a_piece();
  EXPECT_EQ(Read(store.get(), "a", 100'000, 1).code(), Code::kNotFound);
  EXPECT_EQ(KeysOf(server_), 0);
  ASSERT_TRUE(Write(store.get(), "a", 100'000, 2).ok());
  lose_a_piece();
  EXPECT_EQ(Look(store.get(), "a"), Code::kNotFound);
  ASSERT_TRUE(Write(store.get(), "a", 100'000, 3).ok());
  lose_a_piece();
  ASSERT_TRUE(Write(store.get(), "a", 100'000, 4).ok());
  EXPECT_TRUE(Read(store.get(), "a", 100'000, 4).ok());
  EXPECT_EQ(Counter(*store, "pieces_missing"), 3u);
}

TEST_F(RedisStoreTest, TheServerForgetsABlobAndItsPiecesWhenItExpires) {
  const auto store = Open(OptionsFor(server_.address()));
  Blob blob(60'000, 1);
  for (const auto& [name, if_absent] : {std::pair{"a", true}, {"b", false}}) {
    for (const size_t bytes : {size_t{100}, size_t{60'000}}) {
      BlobRequest write{.kind = BlobKind::kWrite,
                        .name = fmt::format("{}/{}", name, bytes),
                        .head = blob.head(),
                        .body = blob.body(),
                        .body_bytes = bytes,
                        .if_absent = if_absent,
                        .expiry_unix_seconds = SystemClock()->UnixSeconds() + 5000};
      ASSERT_TRUE(Do(store.get(), &write).ok());
    }
  }
  const RespReply keys = server_.Ask({"KEYS", "*"});
  EXPECT_EQ(keys.items.size(), 2u + 2 * (1 + 4));
  for (const RespReply& key : keys.items) {
    const int64_t left = server_.Ask({"TTL", key.text}).integer;
    EXPECT_GT(left, 4000) << key.text;
    EXPECT_LE(left, 5000) << key.text;
  }
  ASSERT_TRUE(Write(store.get(), "for-ever", 60'000, 1).ok());
  for (const RespReply& key : server_.Ask({"KEYS", "*for-ever*"}).items) {
    EXPECT_EQ(server_.Ask({"TTL", key.text}).integer, -1);
  }
}

// A writer that may not publish is like one that died before it did.
TEST_F(RedisStoreTest, PiecesThatNobodyPublishesGoByThemselves) {
  server_.Ask({"ACL", "SETUSER", "dormouse", "on", ">asleep", "~*", "+@all", "-eval"});
  RedisStoreOptions options = OptionsFor(server_.address());
  options.user = "dormouse";
  options.password = "asleep";
  EXPECT_EQ(Write(Open(options).get(), "a", 100'000, 1).code(), Code::kUnavailable);
  const RespReply keys = server_.Ask({"KEYS", "*"});
  EXPECT_EQ(keys.items.size(), 7u);
  for (const RespReply& key : keys.items) EXPECT_GT(server_.Ask({"TTL", key.text}).integer, 0);
  EXPECT_EQ(Look(Open(OptionsFor(server_.address())).get(), "a"), Code::kNotFound);
}

TEST_F(RedisStoreTest, ACutConnectionIsReopenedAndItsCommandsAreSentAgain) {
  FaultProxy proxy(server_.port());
  const auto store = Open(OptionsFor(fmt::format("127.0.0.1:{}", proxy.port())));
  ASSERT_TRUE(Write(store.get(), "a", 100'000, 1).ok());
  for (const uint64_t after : {0, 10, 70, 5000, 50'000}) {
    proxy.Set({.cut_answers_after = after, .times = 1});
    EXPECT_TRUE(Read(store.get(), "a", 100'000, 1).ok()) << after;
    EXPECT_EQ(proxy.faults_happened() > 0, true);
    proxy.Set({.end_answers_after = after, .times = 1});
    EXPECT_TRUE(Read(store.get(), "a", 100'000, 1).ok()) << after;
    proxy.Set({.cut_requests_after = after, .times = 1});
    EXPECT_TRUE(Write(store.get(), fmt::format("b{}", after), 100'000, after).ok()) << after;
    EXPECT_TRUE(Read(store.get(), fmt::format("b{}", after), 100'000, after).ok()) << after;
  }
  EXPECT_GT(Counter(*store, "commands_sent_again"), 0u);
  // The store gives up on a network that cuts every answer.
  proxy.Set({.cut_answers_after = 5000});
  EXPECT_EQ(Read(store.get(), "a", 100'000, 1).code(), Code::kUnavailable);
  proxy.Set({});
  EXPECT_TRUE(RunUntil([&] { return Read(store.get(), "a", 100'000, 1).ok(); }));
}

TEST_F(RedisStoreTest, AWriteThatEndsWhileItIsBeingSentIsNotSentAgainButItsNeighboursAre) {
  FaultProxy proxy(server_.port());
  RedisStoreOptions options = OptionsFor(fmt::format("127.0.0.1:{}", proxy.port()));
  options.threads = 1;
  options.connections = 1;
  options.piece_bytes = uint32_t{16} << 20;  // More bytes than sockets take.
  const auto store = Open(options);
  ASSERT_TRUE(Write(store.get(), "neighbour", 5000, 1).ok());
  proxy.Set({.stall = true});
  Blob target(8192, 2);
  std::atomic<bool> read_done = false;
  BlobRequest read{.name = "neighbour",
                   .head = target.head(),
                   .body = target.body(),
                   .on_done = [&](BlobRequest&) { read_done = true; }};
  {
    Blob large(size_t{48} << 20, 3);
    std::atomic<bool> write_done = false;
    BlobRequest write{.kind = BlobKind::kWrite,
                      .name = "large",
                      .head = large.head(),
                      .body = large.body(),
                      .body_bytes = large.body().size(),
                      .deadline_nanos = In(kSecond / 2),
                      .on_done = [&](BlobRequest&) { write_done = true; }};
    store->Submit(&write);
    store->Submit(&read);  // Queued behind the write, on the same connection.
    EXPECT_TRUE(RunUntil([&] { return write_done.load(); }));
    EXPECT_EQ(write.status.code(), Code::kLate);
  }
  proxy.Set({});
  EXPECT_TRUE(RunUntil([&] { return read_done.load(); }));
  EXPECT_TRUE(read.status.ok()) << read.status.ToString();
  // The read is sent again, and perhaps a question of the loop's own; the pieces are not.
  EXPECT_GE(Counter(*store, "commands_sent_again"), 1u);
  EXPECT_LE(Counter(*store, "commands_sent_again"), 2u);
  EXPECT_EQ(Look(store.get(), "large"), Code::kNotFound);
}

// The store sees only lengths and framing. Flipped bytes of the payload are found by the layers
// above.
TEST_F(RedisStoreTest, AFlippedBitNeverHangsOrBreaksIt) {
  FaultProxy proxy(server_.port());
  RedisStoreOptions options = OptionsFor(fmt::format("127.0.0.1:{}", proxy.port()));
  options.timeout_nanos = kSecond / 5;
  options.threads = 1;
  options.connections = 1;
  const auto direct = Open(OptionsFor(server_.address()));
  const auto store = Open(options);
  constexpr size_t kBody = 40'000;
  // Around the manifest's length, its bytes, its end, and the first piece's length.
  std::vector<uint64_t> positions;
  for (const uint64_t around : {uint64_t{0}, uint64_t{60}, uint64_t{4160}, uint64_t{4175}}) {
    for (uint64_t i = 0; i < ByTestLevel(8u, 14u, 40u); ++i) positions.push_back(around + i);
  }
  for (const uint64_t position : positions) {
    ASSERT_TRUE(Write(direct.get(), "a", kBody, 1, /*if_absent=*/false).ok());
    proxy.Set({.flip_answer_byte = position, .times = 1});
    Blob target(kBody, 2);
    BlobRequest read{.name = "a",
                     .head = target.head(),
                     .body = target.body(),
                     .deadline_nanos = In(5 * kSecond)};
    Do(store.get(), &read).ok();
    proxy.Set({});
    ASSERT_TRUE(RunUntil([&] {
      return Read(direct.get(), "a", kBody, 1).ok() || Look(direct.get(), "a") == Code::kNotFound;
    }));
  }
  ASSERT_TRUE(Write(direct.get(), "a", kBody, 1, /*if_absent=*/false).ok());
  EXPECT_TRUE(RunUntil([&] { return Read(store.get(), "a", kBody, 1).ok(); }));
}

TEST_F(RedisStoreTest, AServerThatSaysNothingIsGivenUpAndComesBack) {
  RedisServer server;
  RedisStoreOptions options = OptionsFor(server.address());
  if (!IsFullRun()) options.timeout_nanos = kSecond / 2;
  const auto store = Open(options);
  ASSERT_TRUE(Write(store.get(), "a", 100'000, 1).ok());
  server.Stop();
  EXPECT_EQ(Read(store.get(), "a", 100'000, 1, In(kSecond / 10)).code(), Code::kLate);
  EXPECT_EQ(Read(store.get(), "a", 100'000, 1).code(), Code::kUnavailable);
  if (IsFullRun()) std::this_thread::sleep_for(seconds(30));
  EXPECT_NE(Read(store.get(), "a", 100'000, 1, In(kSecond / 10)).code(), Code::kOk);
  server.Continue();
  EXPECT_TRUE(RunUntil([&] { return Read(store.get(), "a", 100'000, 1).ok(); }));
}

TEST_F(RedisStoreTest, AServerThatIsKilledIsUnavailableAndServesAgainWhenItIsBack) {
  RedisServer::Options server_options;
  server_options.arguments = {"--appendonly", "yes", "--appendfsync", "no"};
  RedisServer server(server_options);
  const auto store = Open(OptionsFor(server.address()));
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(Write(store.get(), fmt::format("a/{}", i), 50'000, static_cast<uint64_t>(i)).ok());
  }
  server.Kill();
  const Status gone = Read(store.get(), "a/0", 50'000, 0);
  EXPECT_EQ(gone.code(), Code::kUnavailable);
  EXPECT_NE(gone.message().find(server.address()), std::string::npos) << gone.ToString();
  server.Start();
  EXPECT_TRUE(RunUntil([&] { return Read(store.get(), "a/0", 50'000, 0).ok(); }));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Read(store.get(), fmt::format("a/{}", i), 50'000, static_cast<uint64_t>(i)).ok());
  }
}

TEST_F(RedisStoreTest, OfTwoServersTheOneThatIsThereIsAsked) {
  RedisStoreOptions options = OptionsFor(server_.address());
  options.servers.insert(options.servers.begin(), fmt::format("127.0.0.1:{}", FreePort()));
  const auto store = Open(options);
  EXPECT_TRUE(Write(store.get(), "a", 50'000, 1).ok());
  EXPECT_TRUE(Read(store.get(), "a", 50'000, 1).ok());
}

TEST_F(RedisStoreTest, NamesOfHostsAreLookedUp) {
  const auto store = Open(OptionsFor(fmt::format("localhost:{}", server_.port())));
  EXPECT_TRUE(Write(store.get(), "a", 50'000, 1).ok());
  const auto nowhere = Open(OptionsFor("does-not-exist.invalid:6379"));
  EXPECT_EQ(Look(nowhere.get(), "a"), Code::kUnavailable);
}

TEST_F(RedisStoreTest, AServerThatIsFullSaysSo) {
  RedisServer::Options server_options;
  server_options.arguments = {"--maxmemory", "8mb", "--maxmemory-policy", "noeviction"};
  RedisServer server(server_options);
  const auto store = Open(OptionsFor(server.address()));
  Status status;
  int written = 0;
  while (status.ok() && written < 100) {
    status = Write(store.get(), fmt::format("a/{}", written), 300'000, 1);
    if (status.ok()) ++written;
  }
  EXPECT_EQ(status.code(), Code::kNoSpace) << status.ToString();
  EXPECT_GT(written, 5);
  // A write that did not fit has left nothing behind.
  EXPECT_TRUE(RunUntil([&] { return KeysOf(server) == written * (1 + 19); }));
  Status small;
  for (int i = 0; i < 10'000 && small.ok(); ++i) {
    small = Write(store.get(), fmt::format("small/{}", i), 100, 1);
  }
  EXPECT_EQ(small.code(), Code::kNoSpace);
  for (int i = 0; i < written; ++i) {
    EXPECT_TRUE(Read(store.get(), fmt::format("a/{}", i), 300'000, 1).ok());
  }
  // Deleting makes room.
  for (int i = 0; i < written; ++i) {
    EXPECT_TRUE(Remove(store.get(), fmt::format("a/{}", i)).ok());
  }
  EXPECT_TRUE(RunUntil([&] { return Write(store.get(), "b", 300'000, 1).ok(); }));
}

TEST_F(RedisStoreTest, AnEvictedBlobIsAMiss) {
  RedisServer::Options server_options;
  server_options.arguments = {"--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru"};
  RedisServer server(server_options);
  const auto store = Open(OptionsFor(server.address()));
  constexpr uint64_t kBlobs = 80;
  for (uint64_t i = 0; i < kBlobs; ++i) {
    const Status status = Write(store.get(), fmt::format("a/{}", i), 300'000, i);
    EXPECT_TRUE(status.ok() || status.code() == Code::kNoSpace) << status.ToString();
  }
  uint64_t hits = 0;
  for (uint64_t i = 0; i < kBlobs; ++i) {
    const Status status = Read(store.get(), fmt::format("a/{}", i), 300'000, i);
    EXPECT_TRUE(status.ok() || status.code() == Code::kNotFound) << status.ToString();
    if (status.ok()) ++hits;
  }
  EXPECT_LT(hits, kBlobs);
  // A server does not distinguish a key that is a second old from a new one. Any blob may therefore
  // lose a piece to the next one. Blobs must not all lose pieces at once.
  EXPECT_TRUE(RunUntil([&] {
    std::ignore = Write(store.get(), "last", 300'000, 1);
    return Read(store.get(), "last", 300'000, 1).ok();
  }));
}

TEST_F(RedisStoreTest, ItReportsTheServersUsedMemoryAndLimit) {
  server_.Ask({"CONFIG", "SET", "maxmemory", "123456789"});
  const auto store = Open(OptionsFor(server_.address()));
  ASSERT_TRUE(Write(store.get(), "a", 50'000, 1).ok());
  EXPECT_TRUE(RunUntil([&] {
    Look(store.get(), "a");
    return store->Usage().used_bytes > 0;
  }));
  EXPECT_EQ(store->Usage().capacity_bytes, 123456789u);
  server_.Ask({"CONFIG", "SET", "maxmemory", "0"});
}

TEST_F(RedisStoreTest, NamesOfManyPrefixesCostTheServerNoMoreThanThoseOfOne) {
  const auto store = Open(OptionsFor(server_.address()));
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(Write(store.get(), fmt::format("list/{:02}/a", i), 100, 1).ok());
  }
  const auto scans = [this] {
    const std::string text = server_.Ask({"INFO", "commandstats"}).text;
    const size_t at = text.find("cmdstat_scan:calls=");
    return at == std::string::npos ? 0 : std::stoi(text.substr(at + 19));
  };
  const auto list = [&](std::vector<std::string> prefixes, const std::string& after, size_t max) {
    std::promise<Result<BlobStore::Names>> listed;
    store->ListAny(std::move(prefixes), after, max,
                   [&](Result<BlobStore::Names> names) { listed.set_value(std::move(names)); });
    Result<BlobStore::Names> names = listed.get_future().get();
    EXPECT_TRUE(names.ok()) << names.status().ToString();
    std::vector<std::string> all;
    if (names.ok()) {
      for (const BlobName& name : *names) all.push_back(name.name);
    }
    return all;
  };
  const int before = scans();
  EXPECT_EQ(list({"list/07/"}, "", 10), std::vector<std::string>{"list/07/a"});
  const int once = scans() - before;
  EXPECT_GT(once, 0);
  const std::vector<std::string> prefixes = {"list/29/", "list/03/", "list/99/", "list/1", "a/"};
  std::vector<std::string> all = {"list/03/a"};
  for (int i = 10; i < 20; ++i) all.push_back(fmt::format("list/{}/a", i));
  all.emplace_back("list/29/a");
  EXPECT_EQ(list(prefixes, "", 100), all);
  EXPECT_EQ(scans() - before, 2 * once);
  EXPECT_TRUE(list(prefixes, all.back(), 100).empty());
  EXPECT_EQ(list(prefixes, all[3], 2), std::vector<std::string>(&all[4], &all[6]));
  EXPECT_EQ(scans() - before, 2 * once) << "they are still known";
}

// The rights that docs/operating/redis.md names, and no others.
constexpr const char* kRights[] = {
    "~aquifer:*", "+get",    "+getrange", "+set",  "+exists",        "+unlink", "+eval",
    "+persist",   "+expire", "+scan",     "+info", "+cluster|slots", "+asking"};

TEST_F(RedisStoreTest, AUserOfTheAclNeedsOnlyTheDocumentedRights) {
  std::vector<std::string> words = {"ACL", "SETUSER", "alice", "on", ">wonder", "resetkeys"};
  words.insert(words.end(), std::begin(kRights), std::end(kRights));
  ASSERT_EQ(server_.Ask(words).text, "OK");
  RedisStoreOptions options = OptionsFor(server_.address());
  options.user = "alice";
  options.password = "wonder";
  const auto store = Open(options);
  ASSERT_TRUE(Write(store.get(), "a", 50'000, 1).ok());
  ASSERT_TRUE(Write(store.get(), "a", 60'000, 2, /*if_absent=*/false).ok());
  EXPECT_TRUE(Read(store.get(), "a", 60'000, 2).ok());
  EXPECT_EQ(Look(store.get(), "a"), Code::kOk);
  std::atomic<size_t> listed = 0;
  store->List("", "", 10, [&](const Result<BlobStore::Names>& names) {
    EXPECT_TRUE(names.ok()) << names.status().ToString();
    listed = names.ok() ? names->size() : 99;
  });
  EXPECT_TRUE(RunUntil([&] { return listed != 0; }));
  EXPECT_EQ(listed, 1u);
  EXPECT_TRUE(Remove(store.get(), "a").ok());
  EXPECT_TRUE(RunUntil([&] { return Counter(*store, "failures") == 0; }));

  options.prefix = "elsewhere:";
  const auto denied = Open(options);
  const Status status = Write(denied.get(), "a", 100, 1);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("ACL"), std::string::npos) << status.ToString();
}

TEST_F(RedisStoreTest, WrongCredentialsAreSaidToBeThat) {
  server_.Ask({"ACL", "SETUSER", "bob", "on", ">builder", "~*", "+@all"});
  RedisStoreOptions options = OptionsFor(server_.address());
  options.user = "bob";
  options.password = "not-the-builder";
  const auto store = Open(options);
  for (int i = 0; i < 2; ++i) {  // Also while the store pauses before it tries again.
    BlobRequest look{.kind = BlobKind::kLook, .name = "a"};
    const Status status = Do(store.get(), &look);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_NE(status.message().find("user 'bob' or the password"), std::string::npos)
        << status.ToString();
    EXPECT_EQ(status.message().find("not-the-builder"), std::string::npos);
  }
  EXPECT_EQ(store->Describe().find("not-the-builder"), std::string::npos);
  EXPECT_NE(store->Describe().find("bob@127.0.0.1"), std::string::npos);

  RedisServer::Options closed_options;
  closed_options.arguments = {"--requirepass", "sesame"};
  closed_options.password = "sesame";
  RedisServer closed(closed_options);
  BlobRequest look{.kind = BlobKind::kLook, .name = "a"};
  const Status status = Do(Open(OptionsFor(closed.address())).get(), &look);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("wants a password"), std::string::npos) << status.ToString();
  RedisStoreOptions right = OptionsFor(closed.address());
  right.password = "sesame";
  EXPECT_EQ(Look(Open(right).get(), "a"), Code::kNotFound);
}

TEST_F(RedisStoreTest, TlsCarriesAnySizeAndBelievesOnlyTheRightCertificate) {
  RedisServer::Options server_options;
  server_options.tls = true;
  server_options.arguments = {"--requirepass", "sesame"};
  server_options.password = "sesame";
  RedisServer server(server_options);
  RedisStoreOptions options = OptionsFor(server.address());
  options.tls = true;
  options.ca_file = server.ca_file();
  options.password = "sesame";
  options.piece_bytes = uint32_t{512} << 10;
  const auto store = Open(options);
  for (const size_t bytes : {size_t{1}, size_t{50'000}, size_t{3} << 20}) {
    const std::string name = fmt::format("a/{}", bytes);
    ASSERT_TRUE(Write(store.get(), name, bytes, bytes).ok());
    EXPECT_TRUE(Read(store.get(), name, bytes, bytes).ok());
  }
  EXPECT_TRUE(store->Describe().starts_with("rediss://")) << store->Describe();

  const auto refusal = [](const RedisStoreOptions& wrong) {
    BlobRequest look{.kind = BlobKind::kLook, .name = "a"};
    const Status status = Do(Open(wrong).get(), &look);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    return status.message();
  };
  RedisStoreOptions strange = options;
  strange.ca_file = "";  // The system does not know the authority.
  EXPECT_NE(refusal(strange).find("certificate is not accepted"), std::string::npos);
  EXPECT_NE(refusal(strange).find("; next step: name the authority"), std::string::npos);
  RedisStoreOptions misnamed = options;
  misnamed.tls_name = "example.org";
  EXPECT_NE(refusal(misnamed).find("certificate is not accepted"), std::string::npos);
  RedisStoreOptions named = options;
  named.tls_name = "localhost";
  EXPECT_EQ(Look(Open(named).get(), "none"), Code::kNotFound);
  // A server without TLS, which waits for more bytes; then a client without TLS.
  RedisStoreOptions plain_server = options;
  plain_server.servers = {server_.address()};
  plain_server.timeout_nanos = kSecond / 2;
  EXPECT_THAT(refusal(plain_server),
              AllOf(HasSubstr("says nothing to a TLS handshake for 500 ms; next step: "),
                    HasSubstr("write tls = false")));
  RedisStoreOptions plain_client = options;
  plain_client.tls = false;
  plain_client.timeout_nanos = kSecond / 2;
  EXPECT_THAT(refusal(plain_client), HasSubstr("; next step: if that port is for TLS, write tls = "
                                               "true"));
  plain_client.password.clear();
  EXPECT_THAT(refusal(plain_client), HasSubstr("write tls = true"));
}

// A server that answers everything with one line, until it ends.
class Babbler {
 public:
  Babbler() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    AQ_CHECK(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    AQ_CHECK(::listen(listener_.get(), 64) == 0);
    AQ_CHECK(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
    address_ = fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
    thread_ = std::thread([this] {
      while (true) {
        const Descriptor client(::accept(listener_.get(), nullptr, nullptr));
        if (!client.valid()) return;
        char heard[4096];
        const std::string_view line = "220 what can I do for you?\r\n";
        if (::recv(client.get(), heard, sizeof(heard), 0) > 0) {
          [[maybe_unused]] const ssize_t said =
              ::send(client.get(), line.data(), line.size(), MSG_NOSIGNAL);
        }
      }
    });
  }
  ~Babbler() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  const std::string& address() const { return address_; }

 private:
  const Descriptor listener_;
  std::string address_;
  std::thread thread_;
};

TEST_F(RedisStoreTest, AServerOfAnotherKindIsToldWithAndWithoutTls) {
  const Babbler babbler;
  RedisStoreOptions options = OptionsFor(babbler.address());
  const auto refusal = [&options] {
    BlobRequest look{.kind = BlobKind::kLook, .name = "a"};
    return Do(Open(options).get(), &look).message();
  };
  EXPECT_THAT(refusal(), AllOf(HasSubstr("is not Redis's protocol; next step: name the port"),
                               HasSubstr("write tls = true")));
  options.tls = true;
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("the server does not speak TLS"), HasSubstr("write tls = false")));
}

// The work of each of many processes at the same time. All write the same blobs, each with bytes of
// its own, read them and remove some. Every blob that is read was written by one process, whole.
constexpr uint64_t kSharedBlobs = 12;
constexpr size_t kSharedBytes = 60'000;

int ChildMain(const std::string& address, uint64_t self, uint64_t rounds) {
  DieWithParent();
  const auto store = Open(OptionsFor(address));
  SeededRandom random(self);
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t which = random.Below(kSharedBlobs);
    const std::string name = fmt::format("shared/{}", which);
    const Status written = Write(store.get(), name, kSharedBytes, which * 100 + self);
    if (!written.ok()) return TellParent(written.ToString()), 1;
    Blob target(kSharedBytes, 0);
    BlobRequest read{.name = name, .head = target.head(), .body = target.body()};
    const Status status = Do(store.get(), &read);
    bool known = status.code() == Code::kNotFound;  // Another process has removed it.
    for (uint64_t writer = 0; writer < 8 && status.ok() && !known; ++writer) {
      known = Blob(kSharedBytes, which * 100 + writer).bytes == target.bytes;
    }
    if (!known) return TellParent("a blob that nobody wrote: " + status.ToString()), 1;
    if (random.Below(4) == 0) {
      const Code removed = Remove(store.get(), name).code();
      if (removed != Code::kOk && removed != Code::kNotFound) return TellParent("remove"), 1;
    }
  }
  TellParent("done");
  return 0;
}

TEST_F(RedisStoreTest, EightProcessesAtOnceNeverSeeAWrongByteAndLeaveNothingBehind) {
  std::vector<std::unique_ptr<ChildProcess>> children;
  const std::string rounds = std::to_string(ByTestLevel(30, 80, 1000));
  for (int i = 0; i < 8; ++i) {
    children.push_back(
        ChildProcess::Start({"child", server_.address(), std::to_string(i), rounds}));
  }
  for (const auto& child : children) {
    EXPECT_EQ(child->ReadLine(seconds(100)).value_or("nothing"), "done");
    EXPECT_EQ(child->Wait(), 0);
  }
  const auto store = Open(OptionsFor(server_.address()));
  for (uint64_t i = 0; i < kSharedBlobs; ++i) {
    const Code code = Remove(store.get(), fmt::format("shared/{}", i)).code();
    EXPECT_TRUE(code == Code::kOk || code == Code::kNotFound);
  }
  EXPECT_TRUE(RunUntil([&] { return KeysOf(server_) == 0; }));
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  if (argc == 5 && std::string_view(argv[1]) == "child") {
    return aquifer::ChildMain(argv[2], std::stoull(argv[3]), std::stoull(argv[4]));
  }
  testing::InitGoogleTest(&argc, argv);
  if (!aquifer::HasRedisServer()) {
    fmt::print("there is no redis-server here: nothing is tested\n");
    return 0;
  }
  return RUN_ALL_TESTS();
}
