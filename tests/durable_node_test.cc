// Tests data that outlives a node, over real stores of every kind. Nodes in processes of their own
// are killed, several nodes share one store, and stores fail under them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "aquifer/cache.h"
#include "base/crypto/sha256.h"
#include "base/text/hex.h"
#include "testing/cache/served_node.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/fault_proxy.h"
#include "testing/node/http_peer.h"
#include "testing/scratch_directory.h"
#include "testing/servers/redis_server.h"
#include "testing/servers/s3_server.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr size_t kBlocks = 16;

bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 3000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

void WriteSecret(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
}

bool FilesHave(const std::string& directory, const std::string& bytes) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    if (text.str().find(bytes) != std::string::npos) return true;
  }
  return false;
}

bool PathsHave(const std::string& directory, const std::string& text) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().string().find(text) != std::string::npos) return true;
  }
  return false;
}

// Sorted, without names that begin with a dot.
std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with('.')) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// A store that nodes share, with the network to it.
class SharedStore {
 public:
  virtual ~SharedStore() = default;
  virtual std::string tier() const = 0;  // Lines of a [[tier]].
  virtual bool Has(const std::string& bytes) = 0;
  virtual bool Empty() = 0;
  // Null if there is no network.
  virtual FaultProxy* network() { return nullptr; }
  virtual void Kill() {}
  virtual void Start() {}
};

class SharedDirectory final : public SharedStore {
 public:
  std::string tier() const override {
    return fmt::format("kind = \"posix\"\nsize = \"16GiB\"\ndirectory = \"{}\"\n", path_);
  }
  bool Has(const std::string& bytes) override { return FilesHave(path_, bytes); }
  bool Empty() override { return NamesIn(path_).empty(); }
  const std::string& path() const { return path_; }

 private:
  const ScratchDirectory scratch_;
  const std::string path_ = scratch_.Sub("shared");
};

class SharedRedis final : public SharedStore {
 public:
  std::string tier() const override {
    return fmt::format(
        "kind = \"redis\"\nwrites = \"durable\"\ntls = false\nendpoints = [\"127.0.0.1:{}\"]\n",
        proxy_.port());
  }
  bool Has(const std::string& bytes) override {
    const RespReply keys = server_.Ask({"KEYS", "*"});
    for (const RespReply& key : keys.items) {
      const RespReply value = server_.Ask({"GET", key.text});
      if (value.text.find(bytes) != std::string::npos) return true;
    }
    return false;
  }
  bool Empty() override { return server_.Ask({"DBSIZE"}).integer == 0; }
  FaultProxy* network() override { return &proxy_; }
  void Kill() override { server_.Kill(); }
  void Start() override { server_.Start(); }

 private:
  // Writes reach the disk at once, because the server will be killed.
  RedisServer server_{{.arguments = {"--appendonly", "yes", "--appendfsync", "always"},
                       .user = {},
                       .password = {}}};
  FaultProxy proxy_{server_.port()};
};

class SharedBucket final : public SharedStore {
 public:
  std::string tier() const override {
    return fmt::format(
        "kind = \"object\"\nendpoints = [\"http://127.0.0.1:{}\"]\nbucket = \"{}\"\n"
        "credentials = \"{}\"\n",
        proxy_.port(), S3Server::kBucket, credentials_);
  }
  SharedBucket() {
    const AwsCredentials given = server_.Options().credentials.given;
    WriteSecret(credentials_,
                fmt::format("[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n",
                            given.access_key, given.secret_key));
  }
  bool Has(const std::string& bytes) override { return FilesHave(server_.PathOf(""), bytes); }
  bool Empty() override { return !FilesHave(server_.PathOf(""), ""); }
  FaultProxy* network() override { return &proxy_; }
  void Kill() override { server_.Kill(); }
  void Start() override { server_.Start(); }

 private:
  const ScratchDirectory scratch_;
  const std::string credentials_ = scratch_.Sub("credentials");
  S3Server server_{{.in_attributes = S3Server::HasAttributes()}};
  FaultProxy proxy_{server_.port()};
};

struct Kind {
  std::string name;
  bool encrypted = false;
};

class DurableNode : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const std::string& name = GetParam().name;
    if (name == "Redis" && !HasRedisServer()) GTEST_SKIP() << "there is no redis-server";
    if (name == "Bucket" && S3Server::ProgramPath(S3Program::kVersity).empty()) {
      GTEST_SKIP() << "there is no versitygw; tools/install-peers installs it";
    }
    if (name == "Directory") store_ = std::make_unique<SharedDirectory>();
    if (name == "Redis") store_ = std::make_unique<SharedRedis>();
    if (name == "Bucket") store_ = std::make_unique<SharedBucket>();
    WriteSecret(scratch_.Sub("master"), std::string(64, 'c') + "\n");
    ::setenv("STATE_DIRECTORY", scratch_.Sub("state").c_str(), 1);  // For the nodes.
    WriteConfig("");
  }
  void WriteConfig(const std::string& more, bool keys_apart = false) {
    const std::string keys =
        fmt::format("master_key_file = \"{}\"\nkey_store = \"{}\"\n", scratch_.Sub("master"),
                    keys_apart || GetParam().name == "Redis" ? scratch_.Sub("keys") : "shared");
    std::ofstream(config_) << more << (GetParam().encrypted ? keys : "")
                           << "[[tier]]\nname = \"shared\"\n"
                           << store_->tier();
  }

  // Makes the only tenant's blocks not durable, unless a session says so.
  void LetTenantBeOfNoClass() {
    token_ = "a token";
    WriteSecret(
        scratch_.Sub("tenants.toml"),
        fmt::format("[[tenant]]\nname = \"local\"\ntoken_sha256 = \"{}\"\ndurability = \"none\"\n",
                    HexOf(Sha256Of(std::as_bytes(std::span(token_))))));
    WriteConfig(fmt::format("tenants = \"{}\"\n{}", scratch_.Sub("tenants.toml"),
                            GetParam().encrypted ? "" : "encryption = \"off\"\n"));
  }

  // A node with only memory of its own, and an engine connected to it.
  struct Host {
    std::unique_ptr<ServedNode> node;
    std::unique_ptr<Cache> cache;
    std::unique_ptr<TestEngine> engine;

    void Kill() {
      engine.reset();
      cache.reset();
      node->Kill();
      node->Wait();
      node.reset();
    }
  };
  void Start(Host* host, int number = 0, const std::string& http = "off") {
    const std::string socket = scratch_.Sub(fmt::format("node{}.sock", number));
    const std::vector<std::string> arguments = {"--config", config_, "--nvme", "off",
                                                "--http",   http,    "--dram", "128MiB",
                                                "--socket", socket};
    host->node = std::make_unique<ServedNode>(AQUIFER_PROGRAM_PATH, arguments);
    ASSERT_TRUE(host->node->AwaitReady()) << host->node->said();
    auto cache = Connect({.socket = socket, .token = token_}, {});
    ASSERT_TRUE(cache.ok()) << cache.status().ToString();
    host->cache = *std::move(cache);
    host->engine = std::make_unique<TestEngine>(host->cache.get(), LayoutOfBytes(kBlockBytes));
  }

  static Chain ChainOf(const Host& host, uint64_t seed) {
    return Chain(host.engine->layout(), {.seed = seed, .blocks = kBlocks});
  }
  static Status Flush(const Host& host) {
    FlushRequest flush;
    flush.tier = TierKind::kDurable;
    flush.timeout_nanos = 60 * kDefaultTimeoutNanos;
    host.cache->Flush(&flush);
    host.engine->Finish(flush);
    return flush.status;
  }
  // Stores a chain, and kills the host.
  void StoreAndDie(uint64_t seed) {
    Host host;
    ASSERT_NO_FATAL_FAILURE(Start(&host));
    ASSERT_EQ(host.engine->Store(ChainOf(host, seed)), kBlocks);
    const Status flushed = Flush(host);
    ASSERT_TRUE(flushed.ok()) << flushed.ToString();
    host.Kill();
  }
  // The node asks the store for the blocks; the store may be out of service for a while.
  static void ExpectRecalled(const Host& host, const Chain& chain) {
    EXPECT_TRUE(Eventually([&] { return host.engine->Matched(chain) == kBlocks; }));
    EXPECT_EQ(host.engine->Recall(chain), (Recalled{.right = kBlocks}));
  }
  static void ExpectRecalled(const Host& host, uint64_t seed) {
    SCOPED_TRACE(seed);
    ExpectRecalled(host, ChainOf(host, seed));
  }

  const ScratchDirectory scratch_;
  const std::string config_ = scratch_.Sub("aquifer.toml");
  std::string token_;
  std::unique_ptr<SharedStore> store_;
};

TEST_P(DurableNode, AFreshNodeRecallsBlocksThatAnotherWroteBeforeItWasKilled) {
  ASSERT_NO_FATAL_FAILURE(StoreAndDie(7));
  Host host;
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  const Chain chain = ChainOf(host, 7);
  std::string plain(kBlockBytes, '\0');
  FillPayload(chain.keys()[3], 0, std::as_writable_bytes(std::span(plain)));
  EXPECT_EQ(store_->Has(plain.substr(4096, 64)), !GetParam().encrypted);
  ExpectRecalled(host, 7);
}

// The tenant's blocks are not durable, and those of the other session stay where they are.
TEST_P(DurableNode, ASessionMayBeOfItsOwnClass) {
  LetTenantBeOfNoClass();
  Host host;
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  // Both chains begin with the same blocks.
  const auto chain_of = [](const Host& at, uint64_t seed) {
    return ChainOf(at, 6).Fork(2, seed, kBlocks - 2);
  };
  for (const uint64_t seed : {8, 7}) {
    const Chain chain = chain_of(host, seed);
    ASSERT_EQ(host.engine->Store(chain), kBlocks);
    SessionForecast forecast{.session = fmt::format("session {}", seed)};
    forecast.chain = host.engine->Slice(chain, {.first = kBlocks - 1, .count = 1});
    forecast.durability = seed == 7 ? Durability::kDurable : Durability::kNone;
    host.cache->Hint(forecast);
  }
  const Status flushed = host.engine->Flush();
  EXPECT_EQ(flushed.code(), Code::kUnavailable) << "the other is in memory alone";
  EXPECT_THAT(flushed.message(),
              testing::HasSubstr("what is to be durable is safe; 14 other blocks"));
  Host other;
  ASSERT_NO_FATAL_FAILURE(Start(&other, 1));
  ExpectRecalled(other, chain_of(other, 7));
  EXPECT_EQ(other.engine->Matched(chain_of(other, 8)), 2u);
}

TEST_P(DurableNode, ASessionsOwnClassOutlivesTheNode) {
  LetTenantBeOfNoClass();
  Host host;
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  const Chain chain = ChainOf(host, 7);
  ASSERT_EQ(host.engine->Store(chain), kBlocks);
  SessionForecast forecast{.session = "chat"};
  forecast.chain = host.engine->Slice(chain, {.first = kBlocks - 1, .count = 1});
  forecast.durability = Durability::kDurable;
  host.cache->Hint(forecast);
  const Status hinted = host.engine->Flush();
  ASSERT_TRUE(hinted.ok()) << hinted.ToString();
  host.Kill();
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  ExpectRecalled(host, 7);
  ASSERT_EQ(host.engine->Store(ChainOf(host, 7).Fork(kBlocks, 8, 4)), kBlocks + 4);
  const Status flushed = host.engine->Flush();
  EXPECT_TRUE(flushed.ok()) << flushed.ToString();
  host.Kill();
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  const Chain next = ChainOf(host, 7).Fork(kBlocks, 8, 4);
  EXPECT_TRUE(Eventually([&] { return host.engine->Matched(next) == kBlocks + 4; }));
}

TEST_P(DurableNode, SeveralAtOnceShareOneStore) {
  const auto count = ByTestLevel(2, 2, 8);
  std::vector<Host> hosts(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) ASSERT_NO_FATAL_FAILURE(Start(&hosts[i], i));
  // All hosts store the same chain, and each one of its own.
  for (uint64_t i = 0; i < hosts.size(); ++i) {
    hosts[i].engine->Store(ChainOf(hosts[i], 1));
    hosts[i].engine->Store(ChainOf(hosts[i], 100 + i));
  }
  for (const Host& host : hosts) {
    const Status flushed = Flush(host);
    EXPECT_TRUE(flushed.ok()) << flushed.ToString();
  }
  // Half of the hosts die, and the others have everything.
  for (size_t i = 0; i < hosts.size() / 2; ++i) hosts[i].Kill();
  ExpectRecalled(hosts.back(), 1);
  for (uint64_t i = 0; i < hosts.size(); ++i) ExpectRecalled(hosts.back(), 100 + i);
}

TEST_P(DurableNode, AStoreThatFailsIsMissesAndComesBackByItself) {
  if (store_->network() == nullptr) GTEST_SKIP() << "a directory is behind no network";
  ASSERT_NO_FATAL_FAILURE(StoreAndDie(7));
  const std::vector<std::pair<const char*, ProxyFaults>> faults = {
      {"refused", {.refuse = true}},
      {"stalled", {.stall = true}},
      {"cut", {.cut_answers_after = 30'000}},
      {"ended", {.end_answers_after = 30'000}},
      {"flipped", {.flip_answer_byte = 30'000}}};
  for (const auto& [name, fault] : faults) {
    Host host;
    ASSERT_NO_FATAL_FAILURE(Start(&host)) << name;
    const Chain chain = ChainOf(host, 7);
    store_->network()->Set(fault);
    const auto fetch = host.engine->Fetch(chain, {}, kDefaultTimeoutNanos);
    const Recalled meanwhile = host.engine->CheckAndRelease(chain, {}, *fetch);
    EXPECT_EQ(meanwhile.wrong, 0u) << name;
    EXPECT_LT(meanwhile.right, kBlocks) << name;  // Otherwise the fault had no effect.
    store_->network()->Set({});
    ExpectRecalled(host, 7);
    host.Kill();
  }
}

// The pause is longer than any deadline and any patience of the tier. No request waits for it.
// Afterwards the store is used again, and no block is lost.
TEST_P(DurableNode, AStoreThatSaysNothingForHalfAMinuteKeepsNobodyWaiting) {
  if (store_->network() == nullptr) GTEST_SKIP() << "a directory is behind no network";
  if (!IsFullRun()) GTEST_SKIP() << "takes half a minute; with --full";
  ASSERT_NO_FATAL_FAILURE(StoreAndDie(7));
  Host host;
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  store_->network()->Set({.stall = true});
  for (uint64_t second = 0; second < 30; ++second) {
    const Chain cold = ChainOf(host, 7);
    const auto fetch = host.engine->Fetch(cold, {}, kDefaultTimeoutNanos);
    EXPECT_EQ(host.engine->CheckAndRelease(cold, {}, *fetch).right, 0u);
    const Chain warm = ChainOf(host, 100 + second);
    EXPECT_EQ(host.engine->Store(warm), kBlocks);
    EXPECT_EQ(host.engine->Recall(warm).right, kBlocks);
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  store_->network()->Set({});
  ExpectRecalled(host, 7);
  EXPECT_TRUE(Eventually([&] { return Flush(host).ok(); }));
  host.Kill();
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  ExpectRecalled(host, 100);
}

// As when a host starts before the file system is mounted. Blocks acknowledged then would be lost
// below the mount point, and no other node would ever find them.
TEST_P(DurableNode, ADirectoryThatIsNotMountedAtTheStartIsWaitedFor) {
  if (GetParam().name != "Directory") GTEST_SKIP();
  const std::string& directory = static_cast<SharedDirectory*>(store_.get())->path();
  ASSERT_NO_FATAL_FAILURE(StoreAndDie(7));
  std::filesystem::rename(directory, directory + "-elsewhere");
  std::filesystem::create_directory(directory);
  Host host;
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  const std::string line = "now: is its file system mounted?";
  EXPECT_TRUE(host.node->said().find(line) != std::string::npos || host.node->AwaitLine(line))
      << host.node->said();
  ASSERT_EQ(host.engine->Store(ChainOf(host, 8)), kBlocks);
  EXPECT_EQ(Flush(host).code(), Code::kUnavailable);
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  std::filesystem::remove(directory);
  std::filesystem::rename(directory + "-elsewhere", directory);
  ExpectRecalled(host, 7);
  EXPECT_TRUE(Eventually([&] { return Flush(host).ok(); }));
  host.Kill();
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  ExpectRecalled(host, 8);
}

TEST_P(DurableNode, AServerThatIsKilledAndStartedAgainIsUsedAgain) {
  if (store_->network() == nullptr) GTEST_SKIP() << "a directory has no server";
  ASSERT_NO_FATAL_FAILURE(StoreAndDie(7));
  Host host;
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  // Now the node has its data key. Without it the killed server would fail the key store, and the
  // tier would never be asked.
  ASSERT_EQ(host.engine->Store(ChainOf(host, 9)), kBlocks);
  ASSERT_TRUE(Flush(host).ok());
  store_->Kill();
  EXPECT_EQ(host.engine->Recall(ChainOf(host, 7)).right, 0u);
  // The request does not wait for the store.
  EXPECT_EQ(host.engine->Store(ChainOf(host, 8)), kBlocks);
  EXPECT_TRUE(host.node->AwaitLine("tier shared: out of service: ")) << host.node->said();
  EXPECT_THAT(host.node->said(), testing::HasSubstr("; next step: "));
  store_->Start();
  ExpectRecalled(host, 7);
  EXPECT_TRUE(host.node->AwaitLine("tier shared: in service again")) << host.node->said();
  EXPECT_TRUE(Eventually([&] { return Flush(host).ok(); }));
  host.Kill();
  ASSERT_NO_FATAL_FAILURE(Start(&host));
  ExpectRecalled(host, 8);
}

// On a store whose files can be looked at: a key is a file here, and so is a block.
TEST_P(DurableNode, ATenantThatIsDeletedOnOneIsGoneFromTheOthersAndTheStore) {
  if (GetParam().name != "Directory" || !GetParam().encrypted) GTEST_SKIP();
  const std::string& directory = static_cast<SharedDirectory*>(store_.get())->path();
  std::vector<Host> hosts(2);
  ASSERT_NO_FATAL_FAILURE(Start(&hosts[0], 0, "127.0.0.1:0"));
  ASSERT_NO_FATAL_FAILURE(Start(&hosts[1], 1));
  ASSERT_EQ(hosts[0].engine->Store(ChainOf(hosts[0], 7)), kBlocks);
  ASSERT_EQ(hosts[1].engine->Store(ChainOf(hosts[1], 8)), kBlocks);
  for (const Host& host : hosts) ASSERT_TRUE(Flush(host).ok());
  ExpectRecalled(hosts[1], 7);
  const std::vector<std::string> keys = NamesIn(directory + "/keys");
  ASSERT_EQ(keys.size(), 1u);
  std::stringstream key;
  key << std::ifstream(directory + "/keys/" + keys[0]).rdbuf();
  std::string generation;
  for (const char byte : key.str().substr(24, 16)) {
    generation += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  ASSERT_TRUE(PathsHave(directory, "/" + generation));

  HttpPeer administrator(scratch_.Sub("node0.admin.sock"));
  administrator.Send(PostText("/v1/tenants/delete", R"({"tenant":"local"})"));
  const std::optional<HeardResponse> answer = administrator.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 200) << answer->body;
  EXPECT_EQ(hosts[0].engine->Matched(ChainOf(hosts[0], 7)), 0u);
  EXPECT_TRUE(hosts[1].node->AwaitLine("the data key of tenant local is gone"));
  EXPECT_EQ(hosts[1].engine->Matched(ChainOf(hosts[1], 7)), 0u);
  EXPECT_EQ(hosts[1].engine->Matched(ChainOf(hosts[1], 8)), 0u);
  EXPECT_FALSE(PathsHave(directory, "/" + generation)) << "something of it is left";
  EXPECT_THAT(NamesIn(directory + "/keys"), testing::ElementsAre("gone" + generation))
      << "a key was made for a tenant that is deleted";
  // The tenant may come again, with another key.
  ASSERT_EQ(hosts[1].engine->Store(ChainOf(hosts[1], 9)), kBlocks);
  EXPECT_TRUE(Eventually([&] { return Flush(hosts[1]).ok(); }));
  hosts[1].Kill();
  ExpectRecalled(hosts[0], 9);
  EXPECT_EQ(hosts[0].engine->Matched(ChainOf(hosts[0], 8)), 0u);
}

// The tenant comes again, with the same prompt, before the other node has heard of its deletion.
// The blocks that the other node drops then are those of the old key.
TEST_P(DurableNode, AReturningTenantKeepsItsNewBlocksWhenOthersDropItsOldOnes) {
  if (GetParam().name != "Directory" || !GetParam().encrypted) GTEST_SKIP();
  std::vector<Host> hosts(2);
  ASSERT_NO_FATAL_FAILURE(Start(&hosts[0], 0, "127.0.0.1:0"));
  ASSERT_NO_FATAL_FAILURE(Start(&hosts[1], 1));
  ASSERT_EQ(hosts[0].engine->Store(ChainOf(hosts[0], 7)), kBlocks);
  ASSERT_TRUE(Flush(hosts[0]).ok());
  ExpectRecalled(hosts[1], 7);
  HttpPeer administrator(scratch_.Sub("node0.admin.sock"));
  administrator.Send(PostText("/v1/tenants/delete", R"({"tenant":"local"})"));
  const std::optional<HeardResponse> answer = administrator.Receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->status, 200) << answer->body;
  EXPECT_THAT(answer->body, testing::HasSubstr(R"("trouble":"")"));
  EXPECT_THAT(answer->body, testing::HasSubstr(R"("unswept":[])"));
  for (const uint64_t seed : {7, 8}) {
    ASSERT_EQ(hosts[0].engine->Store(ChainOf(hosts[0], seed)), kBlocks);
  }
  ASSERT_TRUE(Eventually([&] { return Flush(hosts[0]).ok(); }));
  EXPECT_TRUE(hosts[1].node->AwaitLine("the data key of tenant local is gone"));
  // A key's blocks are erased once every earlier erasure has been tried.
  ASSERT_EQ(hosts[1].engine->Store(ChainOf(hosts[1], 9)), kBlocks);
  EXPECT_TRUE(Eventually([&] { return Flush(hosts[1]).ok(); }));
  const Status evicted = hosts[1].engine->Evict(ChainOf(hosts[1], 9))->status;
  EXPECT_TRUE(evicted.ok()) << evicted.ToString();
  for (Host& host : hosts) host.Kill();
  Host fresh;
  ASSERT_NO_FATAL_FAILURE(Start(&fresh, 2));
  for (const uint64_t seed : {7, 8}) ExpectRecalled(fresh, seed);
  EXPECT_EQ(fresh.engine->Matched(ChainOf(fresh, 9)), 0u);
}

// Nobody can read the blocks that are left there. They are erased all the same, whichever node
// remembers them.
TEST_P(DurableNode, ATenantThatIsDeletedWhileTheStoreIsAwayIsSweptFromItOnceItIsBack) {
  if (store_->network() == nullptr || !GetParam().encrypted) GTEST_SKIP();
  WriteConfig("", /*keys_apart=*/true);
  const auto ask = [this](const std::string& text) {
    HttpPeer administrator(scratch_.Sub("node0.admin.sock"));
    administrator.Send(text);
    const std::optional<HeardResponse> answer = administrator.Receive();
    return answer.has_value() ? answer->body : "";
  };
  const auto tiers = [&ask] { return ask("GET /v1/tiers HTTP/1.1\r\nHost: a\r\n\r\n"); };
  Host host;
  ASSERT_NO_FATAL_FAILURE(Start(&host, 0, "127.0.0.1:0"));
  ASSERT_EQ(host.engine->Store(ChainOf(host, 7)), kBlocks);
  ASSERT_TRUE(Flush(host).ok());
  EXPECT_THAT(tiers(), testing::HasSubstr(R"("unswept_tenants":0)"));
  store_->Kill();
  const std::string deleted = ask(PostText("/v1/tenants/delete", R"({"tenant":"local"})"));
  EXPECT_THAT(deleted, testing::HasSubstr(R"("key_destroyed":true)"));
  EXPECT_THAT(deleted, testing::HasSubstr(R"("unswept":["shared"])"));
  host.Kill();
  ASSERT_NO_FATAL_FAILURE(Start(&host, 0, "127.0.0.1:0"));
  EXPECT_TRUE(
      Eventually([&] { return tiers().find(R"("unswept_tenants":1)") != std::string::npos; }));
  store_->Start();
  EXPECT_TRUE(
      Eventually([&] { return tiers().find(R"("unswept_tenants":0)") != std::string::npos; }));
  EXPECT_TRUE(store_->Empty());
  EXPECT_THAT(tiers(), testing::HasSubstr(fmt::format(R"("swept_blobs":{})", kBlocks)))
      << "the server has not lost it by itself";
}

INSTANTIATE_TEST_SUITE_P(All, DurableNode,
                         testing::Values(Kind{"Directory", false}, Kind{"Directory", true},
                                         Kind{"Redis", false}, Kind{"Redis", true},
                                         Kind{"Bucket", false}, Kind{"Bucket", true}),
                         [](const auto& test) {
                           return test.param.name + (test.param.encrypted ? "Encrypted" : "Plain");
                         });

}  // namespace
}  // namespace aquifer
