// Tests the program `aquifer serve` from outside: which clients are let in, what a reload changes,
// what it tells systemd, and what it records.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "aquifer/cache.h"
#include "base/check.h"
#include "base/crypto/sha256.h"
#include "base/descriptor.h"
#include "base/text/hex.h"
#include "net/http/http_server.h"
#include "node/config/node_config.h"
#include "testing/cache/served_node.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/child_process.h"
#include "testing/node/http_peer.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr const char* kKnockerFlag = "--knocker-child";
constexpr uid_t kNobody = 65534;

bool Eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 3000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

std::string HashOf(const std::string& token) {
  return HexOf(Sha256Of(std::as_bytes(std::span(token))));
}

std::string TextOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A client in a process of its own, for another user's: prints whether it was let in.
int RunKnocker(const std::string& socket, const std::string& tenant, const std::string& token) {
  DieWithParent();
  const auto cache = Connect({.socket = socket, .token = token}, {.tenant = tenant});
  TellParent(cache.ok() ? "let in" : cache.status().message());
  return 0;
}

class Serve : public testing::Test {
 protected:
  // Every user may look for the socket.
  void SetUp() override { ASSERT_EQ(::chmod(scratch_.path().c_str(), 0755), 0); }

  void Start(std::vector<std::string> more = {}, const std::vector<std::string>& wrapper = {}) {
    std::vector<std::string> arguments = {"--socket", socket_, "--dram", "256MiB", "--http", http_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    node_.emplace(AQUIFER_PROGRAM_PATH, arguments, wrapper);
    ASSERT_TRUE(node_->AwaitReady()) << node_->said();
  }
  int Stop() {
    node_->Signal(SIGTERM);
    return node_->Wait();
  }

  ScratchDirectory scratch_;
  const std::string socket_ = scratch_.Sub("node.sock");
  std::string http_ = "off";
  std::optional<ServedNode> node_;
};

// ---- Tenants ----

class ServeTenants : public Serve {
 protected:
  struct Entry {
    std::string name;
    std::string token;
    std::string more = {};
  };
  void WriteTenants(const std::vector<Entry>& entries) {
    std::string text;
    for (const Entry& entry : entries) {
      text += fmt::format("[[tenant]]\nname = \"{}\"\ntoken_sha256 = \"{}\"\n{}\n", entry.name,
                          HashOf(entry.token), entry.more);
    }
    WriteFile(text);
  }
  void WriteFile(const std::string& text) { WriteClosed(tenants_, text); }
  static void WriteClosed(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  }
  void WriteMaster() { WriteClosed(master_, std::string(64, 'c')); }
  void WriteConfig(const std::string& text) { std::ofstream(config_, std::ios::trunc) << text; }
  // The node reads the file, changes nothing, and says why.
  void ReloadInVain(const std::string& config, const std::string& why) {
    WriteConfig(config);
    node_->Signal(SIGHUP);
    ASSERT_TRUE(node_->AwaitLine("reload: ")) << node_->said();
    EXPECT_TRUE(node_->said().ends_with("reload: nothing was changed: " + why + "\n"))
        << node_->said();
  }
  std::string TenantsLine() const { return fmt::format("tenants = \"{}\"\n", tenants_); }
  std::string MasterLine() const { return fmt::format("master_key_file = \"{}\"\n", master_); }
  // Data keys are made below this directory, and not in the host's own place.
  std::vector<std::string> WithState() const {
    return {"env", "STATE_DIRECTORY=" + scratch_.Sub("state")};
  }
  void StartWithTenants() {
    WriteConfig(TenantsLine() + "encryption = \"off\"\n");
    ASSERT_NO_FATAL_FAILURE(Start({"--config", config_, "--nvme", "off"}));
  }
  unsigned SocketMode() const {
    struct stat info{};
    AQ_CHECK(::stat(socket_.c_str(), &info) == 0);
    return info.st_mode & 0777;
  }
  std::string Knock(const std::string& tenant, const std::string& token) {
    const auto cache = Connect({.socket = socket_, .token = token}, {.tenant = tenant});
    return cache.ok() ? "let in" : cache.status().message();
  }

  const std::string tenants_ = scratch_.Sub("tenants.toml");
  const std::string master_ = scratch_.Sub("master");
  const std::string config_ = scratch_.Sub("aquifer.toml");
};

TEST_F(ServeTenants, WithoutAMasterKeyANodeWithTenantsDoesNotStart) {
  WriteTenants({{.name = "a", .token = "token of a"}});
  WriteConfig(TenantsLine());
  node_.emplace(AQUIFER_PROGRAM_PATH,
                std::vector<std::string>{"--socket", socket_, "--dram", "256MiB", "--http", "off",
                                         "--nvme", "off", "--config", config_});
  EXPECT_FALSE(node_->AwaitReady());
  EXPECT_THAT(node_->said(), AllOf(HasSubstr(config_ + ":1: tenants: with tenants"),
                                   HasSubstr("there is no master key")));
}

TEST_F(ServeTenants, AFileThatCannotBeUsedIsToldWithTheLineThatNamesIt) {
  WriteTenants({{.name = "a", .token = "token of a"}});
  struct Case {
    std::string line;
    std::string said;
  };
  const std::string absent = scratch_.Sub("absent");
  const std::string unreadable = absent + " cannot be read: No such file or directory";
  const Case cases[] = {
      {fmt::format("tenants = \"{}\"\n", absent), "tenants: " + unreadable},
      {fmt::format("master_key_file = \"{}\"\n", absent), "master_key_file: " + unreadable},
      {fmt::format("master_key_file = \"{}\"\n", tenants_),
       fmt::format("master_key_file: {}:1: this is not a master key", tenants_)},
  };
  for (const Case& wrong : cases) {
    WriteConfig("drain_budget = \"5s\"\n" + wrong.line);
    ServedNode node(AQUIFER_PROGRAM_PATH, {"--socket", socket_, "--dram", "256MiB", "--http", "off",
                                           "--nvme", "off", "--config", config_});
    EXPECT_FALSE(node.AwaitReady());
    EXPECT_THAT(node.said(), AllOf(HasSubstr("aquifer serve: " + config_ + ":2: " + wrong.said),
                                   Not(HasSubstr("This node uses"))));
    EXPECT_EQ(node.Wait(), 2);
  }
}

TEST_F(ServeTenants, AKeyStoreThatCannotBeUsedIsToldWithItsLine) {
  WriteMaster();
  WriteConfig(MasterLine() + fmt::format("key_store = \"{}/below/a/file\"\n", master_));
  ServedNode node(AQUIFER_PROGRAM_PATH,
                  {"--socket", socket_, "--dram", "256MiB", "--http", "off", "--nvme", "off",
                   "--config", config_},
                  WithState());
  EXPECT_FALSE(node.AwaitReady());
  EXPECT_THAT(node.said(), HasSubstr("aquifer serve: " + config_ + ":2: key_store: "));
}

TEST_F(ServeTenants, ATierThatIsAddedDoesNotTakeTheKeysElsewhere) {
  WriteMaster();
  const std::string keys = scratch_.Sub("state/keys");
  const std::string tier = fmt::format(
      "[[tier]]\nname = \"shared\"\nkind = \"posix\"\ndirectory = \"{}\"\nsize = \"16GiB\"\n",
      scratch_.Sub("shared"));
  WriteConfig(MasterLine());
  ASSERT_NO_FATAL_FAILURE(Start({"--config", config_, "--nvme", "off"}, WithState()));
  const auto made = [](const std::string& directory) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
      if (!entry.path().filename().string().starts_with('.')) return true;
    }
    return false;
  };
  ASSERT_TRUE(Eventually([&] { return made(keys); }));
  EXPECT_EQ(Stop(), 0);
  WriteConfig(MasterLine() + tier);
  ServedNode refused(AQUIFER_PROGRAM_PATH,
                     {"--socket", socket_, "--dram", "256MiB", "--http", "off", "--nvme", "off",
                      "--config", config_},
                     WithState());
  EXPECT_FALSE(refused.AwaitReady());
  EXPECT_THAT(refused.said(), AllOf(HasSubstr("aquifer serve: key_store: this node's data keys are "
                                              "in " +
                                              keys + ", "),
                                    HasSubstr(scratch_.Sub("shared/keys")),
                                    HasSubstr("key_store = \"" + keys + "\"")));
  EXPECT_EQ(refused.Wait(), 2);
  // As the message says.
  WriteConfig(MasterLine() + fmt::format("key_store = \"{}\"\n", keys) + tier);
  ASSERT_NO_FATAL_FAILURE(Start({"--config", config_, "--nvme", "off"}, WithState()));
  EXPECT_EQ(Stop(), 0);
  EXPECT_FALSE(made(scratch_.Sub("shared/keys")));
}

TEST_F(ServeTenants, OnlyTheRightTenantTokenAndUserAreLetIn) {
  const uid_t self = ::geteuid();
  WriteTenants({{"red", "red secret"},
                {"blue", "blue secret", fmt::format("uids = [{}]", self)},
                {"far", "far secret", fmt::format("uids = [{}]", self + 1)}});
  ASSERT_NO_FATAL_FAILURE(StartWithTenants());
  EXPECT_EQ(Knock("red", "red secret"), "let in");
  EXPECT_EQ(Knock("blue", "blue secret"), "let in");
  // All three get the same answer.
  const std::string refusal = Knock("red", "wrong");
  EXPECT_THAT(refusal, HasSubstr("access denied"));
  EXPECT_EQ(Knock("red", ""), refusal);
  EXPECT_EQ(Knock("red", "blue secret"), refusal);
  EXPECT_EQ(Knock("nobody", "red secret"), refusal);
  EXPECT_EQ(Knock("local", ""), refusal);
  EXPECT_EQ(Knock("far", "far secret"), refusal);
  // The log says why.
  EXPECT_TRUE(node_->AwaitLine("wrong token")) << node_->said();
  EXPECT_TRUE(node_->AwaitLine("unknown tenant")) << node_->said();
  EXPECT_TRUE(node_->AwaitLine("wrong user")) << node_->said();
  EXPECT_THAT(node_->said(), Not(HasSubstr("secret"))) << "a token is in the log";
  EXPECT_EQ(Stop(), 0);
}

TEST_F(ServeTenants, AnotherUserIsLetInWhereTheFileSaysSo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  WriteTenants({{"theirs", "t", fmt::format("uids = [{}]", kNobody)},
                {"ours", "o", fmt::format("uids = [{}]", ::geteuid())}});
  ASSERT_NO_FATAL_FAILURE(StartWithTenants());
  const auto as_nobody = [this](const std::string& tenant, const std::string& token) {
    const auto child = ChildProcess::Start(
        {kKnockerFlag, socket_, tenant, token},
        {"setpriv", "--reuid", std::to_string(kNobody), "--clear-groups", "--inh-caps=-all"});
    return child->ReadLine(seconds(30)).value_or("could not be started");
  };
  const std::string theirs = as_nobody("theirs", "t");
  if (theirs == "could not be started") GTEST_SKIP() << "this program is closed to others";
  EXPECT_EQ(theirs, "let in");
  EXPECT_THAT(as_nobody("ours", "o"), HasSubstr("access denied"));
  EXPECT_THAT(Knock("theirs", "t"), HasSubstr("access denied"));
}

TEST_F(ServeTenants, ASignalChangesThemAndAMistakeChangesNothing) {
  WriteTenants({{"red", "old"}, {"blue", "b"}});
  ASSERT_NO_FATAL_FAILURE(StartWithTenants());
  const auto cache = Connect({.socket = socket_, .token = "b"}, {.tenant = "blue"});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 8, .tenant = "blue"});
  ASSERT_EQ(engine.Store(chain), 8u);

  WriteTenants({{"red", "new"}, {"blue", "b"}, {"green", "g"}});
  node_->Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return Knock("red", "new") == "let in"; }));
  EXPECT_THAT(Knock("red", "old"), HasSubstr("access denied"));
  EXPECT_EQ(Knock("green", "g"), "let in");
  EXPECT_EQ(engine.Recall(chain), Recalled{.right = 8}) << "who is in stays in";

  WriteFile("[[tenant]]\nname = \"red\"\ntoken_sha265 = \"00\"\n");
  node_->Signal(SIGHUP);
  EXPECT_TRUE(node_->AwaitLine("nothing was changed")) << node_->said();
  EXPECT_THAT(node_->said(), HasSubstr("token_sha256")) << "what was meant";
  EXPECT_EQ(Knock("red", "new"), "let in");

  WriteTenants({{"blue", "b"}});
  node_->Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return Knock("red", "new") != "let in"; }));
  EXPECT_EQ(engine.Recall(chain), Recalled{.right = 8});
}

// A client that was let in is cut off when its token or user no longer counts.
TEST_F(ServeTenants, AChangedTokenOrUserEndsTheConnectionsThatShowedAnother) {
  const uid_t self = ::geteuid();
  WriteTenants({{"token", "old"}, {"user", "u", fmt::format("uids = [{}]", self)}, {"same", "s"}});
  ASSERT_NO_FATAL_FAILURE(StartWithTenants());
  struct Client {
    std::string tenant;
    std::string token;
    std::unique_ptr<Cache> cache = {};
    std::unique_ptr<TestEngine> engine = {};
    std::unique_ptr<Chain> chain = {};
  };
  std::vector<Client> clients(3);
  clients[0] = {.tenant = "token", .token = "old"};
  clients[1] = {.tenant = "user", .token = "u"};
  clients[2] = {.tenant = "same", .token = "s"};
  for (Client& client : clients) {
    auto cache = Connect({.socket = socket_, .token = client.token}, {.tenant = client.tenant});
    ASSERT_TRUE(cache.ok());
    client.cache = *std::move(cache);
    client.engine = std::make_unique<TestEngine>(client.cache.get(), LayoutOfBytes(kBlockBytes));
    client.chain = std::make_unique<Chain>(
        client.engine->layout(), ChainOptions{.seed = 1, .blocks = 8, .tenant = client.tenant});
    ASSERT_EQ(client.engine->Store(*client.chain), 8u);
  }
  WriteTenants(
      {{"token", "new"}, {"user", "u", fmt::format("uids = [{}]", self + 1)}, {"same", "s"}});
  node_->Signal(SIGHUP);
  ASSERT_TRUE(node_->AwaitLine("reload: done, 3 tenants")) << node_->said();
  EXPECT_EQ(clients[0].engine->Recall(*clients[0].chain).right, 0u);
  EXPECT_EQ(clients[1].engine->Recall(*clients[1].chain).right, 0u);
  EXPECT_EQ(clients[2].engine->Recall(*clients[2].chain), Recalled{.right = 8});
}

// A client that was the node's own user must not stay its administrator.
TEST_F(ServeTenants, TheFirstTenantsFileEndsTheConnectionsFromBefore) {
  WriteConfig("encryption = \"off\"\n");
  ASSERT_NO_FATAL_FAILURE(Start({"--config", config_, "--nvme", "off"}));
  auto cache = Connect({.socket = socket_}, {});
  ASSERT_TRUE(cache.ok());
  EXPECT_EQ(SocketMode(), 0600u);
  WriteTenants({{"local", "t"}});
  WriteConfig(TenantsLine() + "encryption = \"off\"\n");
  node_->Signal(SIGHUP);
  ASSERT_TRUE(node_->AwaitLine("reload: done, 1 tenants")) << node_->said();
  DrainRequest drain;
  (*cache)->Drain(&drain);
  ASSERT_TRUE((*cache)->Wait(drain));
  EXPECT_EQ(drain.status.code(), Code::kUnavailable) << drain.status.ToString();
  EXPECT_EQ(Knock("local", "t"), "let in");
  EXPECT_EQ(SocketMode(), 0666u) << "the tenants' users cannot come to it";
}

// Otherwise their blocks would lie on drives unencrypted, although the file asks for encryption.
TEST_F(ServeTenants, ANodeThatEncryptsNothingTakesNoTenantsThatAreToBeEncrypted) {
  WriteConfig("");
  ASSERT_NO_FATAL_FAILURE(Start({"--config", config_, "--nvme", scratch_.Sub("drive:300MiB")}));
  const auto cache = Connect({.socket = socket_}, {});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 8});
  ASSERT_EQ(engine.Store(chain), 8u);
  WriteMaster();
  WriteTenants({{"red", "r"}});
  const std::string wanted[] = {MasterLine(), TenantsLine() + MasterLine(),
                                TenantsLine() + MasterLine() + "encryption = \"on\"\n"};
  for (const std::string& config : wanted) {
    ASSERT_NO_FATAL_FAILURE(ReloadInVain(
        config + "drain_budget = \"17s\"\n",
        "with this configuration what leaves DRAM must be encrypted, and this node encrypts "
        "nothing; restart it to change that"));
    EXPECT_THAT(Knock("red", "r"), HasSubstr("access denied"));
    EXPECT_EQ(SocketMode(), 0600u);
    EXPECT_EQ(engine.Recall(chain), Recalled{.right = 8}) << "who is in stays in";
  }
  // Without a key, asking for encryption is a mistake, as at the start.
  for (const std::string& config : {TenantsLine(), std::string("\nencryption = \"on\"\n")}) {
    WriteConfig(config);
    node_->Signal(SIGHUP);
    ASSERT_TRUE(node_->AwaitLine("reload: nothing was changed: " + config_)) << node_->said();
    EXPECT_THAT(node_->said(), HasSubstr("there is no master key"));
  }
  EXPECT_THAT(Knock("red", "r"), HasSubstr("access denied"));
  node_->Signal(SIGTERM);
  EXPECT_TRUE(node_->AwaitLine("draining, for at most 20 s")) << node_->said();
  EXPECT_EQ(node_->Wait(), 0);
}

TEST_F(ServeTenants, ANodeThatEncryptsTakesNoConfigurationWithoutThat) {
  WriteMaster();
  WriteTenants({{"red", "r"}});
  WriteConfig(TenantsLine() + MasterLine());
  ASSERT_NO_FATAL_FAILURE(Start({"--config", config_, "--nvme", "off"}, WithState()));
  WriteTenants({{"blue", "b"}});
  for (const std::string& config :
       {TenantsLine() + MasterLine() + "encryption = \"off\"\n", std::string()}) {
    ASSERT_NO_FATAL_FAILURE(ReloadInVain(
        config,
        "with this configuration nothing would be encrypted, and this node encrypts what leaves "
        "DRAM; restart it to change that"));
    EXPECT_EQ(Knock("red", "r"), "let in");
    EXPECT_THAT(Knock("blue", "b"), HasSubstr("access denied"));
  }
  // The node takes another key file of its own, and the tenants with it.
  WriteClosed(master_, std::string(64, 'd') + "\n" + std::string(64, 'c'));
  WriteConfig(TenantsLine() + MasterLine() + "encryption = \"on\"\n");
  node_->Signal(SIGHUP);
  ASSERT_TRUE(node_->AwaitLine("reload: done, 1 tenants")) << node_->said();
  EXPECT_EQ(Knock("blue", "b"), "let in");
}

// A cleaner of /tmp has removed the socket. A reload that fails must change nothing: a client that
// hears of no reload would have the wrong rules.
TEST_F(ServeTenants, ASocketThatIsGoneKeepsNothingOfAReloadBack) {
  if (!HttpIsBuilt()) GTEST_SKIP() << "this build has no HTTP";
  http_ = "127.0.0.1:0";
  WriteConfig("encryption = \"off\"\n");
  ASSERT_NO_FATAL_FAILURE(Start({"--config", config_, "--nvme", "off"}));
  std::smatch port;
  const std::string said = node_->said();
  ASSERT_TRUE(std::regex_search(said, port, std::regex("HTTP on 127.0.0.1:(\\d+)"))) << said;
  const auto metrics = [&port] {
    HttpPeer peer(static_cast<uint16_t>(std::stoi(port[1])));
    peer.Send(GetText("/metrics"));
    return peer.Receive().value_or(HeardResponse{}).status;
  };
  EXPECT_EQ(metrics(), 200);
  ASSERT_EQ(::unlink(socket_.c_str()), 0);
  WriteTenants({{"red", "r"}});
  WriteConfig(TenantsLine() + "encryption = \"off\"\n");
  node_->Signal(SIGHUP);
  ASSERT_TRUE(node_->AwaitLine("reload: done, 1 tenants")) << node_->said();
  EXPECT_THAT(node_->said(), AllOf(HasSubstr("warning: cannot set the mode of " + socket_),
                                   Not(HasSubstr("nothing was changed"))));
  EXPECT_EQ(metrics(), 403);
}

TEST_F(ServeTenants, ASignalChangesQuotasAndTheTimeToDrain) {
  WriteTenants({{"red", "r", "dram_ceiling = \"64MiB\""}});
  ASSERT_NO_FATAL_FAILURE(StartWithTenants());
  const auto cache = Connect({.socket = socket_, .token = "r"}, {.tenant = "red"});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  constexpr size_t kBlocks = 1600;  // 100 MiB.
  const Chain chain(engine.layout(), {.seed = 1, .blocks = kBlocks, .tenant = "red"});
  engine.Store(chain);
  EXPECT_LE(engine.Recall(chain).right, 1024u);

  WriteTenants({{"red", "r"}});
  WriteConfig(TenantsLine() + "encryption = \"off\"\ndrain_budget = \"17s\"\n");
  node_->Signal(SIGHUP);
  ASSERT_TRUE(node_->AwaitLine("reload: done, 1 tenants")) << node_->said();
  engine.Store(chain);
  EXPECT_EQ(engine.Recall(chain).right, kBlocks);
  node_->Signal(SIGTERM);
  EXPECT_TRUE(node_->AwaitLine("draining, for at most 17 s")) << node_->said();
  EXPECT_EQ(node_->Wait(), 0);
}

TEST_F(ServeTenants, TheSameTokensOfTwoTenantsAreTwoChains) {
  WriteTenants({{"red", "r"}, {"blue", "b"}});
  ASSERT_NO_FATAL_FAILURE(StartWithTenants());
  const auto red = Connect({.socket = socket_, .token = "r"}, {.tenant = "red"});
  const auto blue = Connect({.socket = socket_, .token = "b"}, {.tenant = "blue"});
  ASSERT_TRUE(red.ok() && blue.ok());
  TestEngine reds(red->get(), LayoutOfBytes(kBlockBytes));
  TestEngine blues(blue->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(reds.layout(), {.seed = 1, .blocks = 8, .tenant = "red"});
  ASSERT_EQ(reds.Store(chain), 8u);
  EXPECT_EQ(blues.Recall(chain), Recalled{.missed = 8}) << "even with the other's keys";
  EXPECT_EQ(blues.Matched(chain), 0u);
  EXPECT_EQ(reds.Recall(chain), Recalled{.right = 8});
}

TEST_F(Serve, WithoutTenantsOnlyItsOwnUserComesIn) {
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", "off"}));
  EXPECT_TRUE(Connect({.socket = socket_}, {}).ok());
  struct stat file{};
  ASSERT_EQ(::stat(socket_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chmod(socket_.c_str(), 0666), 0);  // Also when somebody opens it by mistake.
  const auto child = ChildProcess::Start(
      {kKnockerFlag, socket_, "local", ""},
      {"setpriv", "--reuid", std::to_string(kNobody), "--clear-groups", "--inh-caps=-all"});
  const auto line = child->ReadLine(seconds(30));
  if (!line.has_value()) GTEST_SKIP() << "this program is closed to others";
  EXPECT_THAT(*line, HasSubstr("denied"));
}

// ---- Drives ----

TEST_F(Serve, ADriveThatAnotherNodeHasIsToldInTheLog) {
  const std::string drive = scratch_.Sub("drive");
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", drive + ":300MiB"}));
  ServedNode second(AQUIFER_PROGRAM_PATH, {"--socket", scratch_.Sub("second.sock"), "--dram",
                                           "128MiB", "--http", "off", "--nvme", drive + ":300MiB"});
  EXPECT_TRUE(second.AwaitLine("drive " + drive + ": out of service")) << second.said();
  second.Signal(SIGTERM);
  EXPECT_EQ(second.Wait(), 0);
  EXPECT_THAT(node_->said(), Not(HasSubstr("out of service")));
}

TEST_F(Serve, AFileIsNoDrive) {
  const std::string file = scratch_.Sub("file");
  std::ofstream(file) << "text";
  ServedNode node(AQUIFER_PROGRAM_PATH, {"--socket", socket_, "--nvme", file + ":300MiB"});
  EXPECT_TRUE(node.AwaitLine(file + " is no directory")) << node.said();
  EXPECT_EQ(node.Wait(), 2);
}

// ---- HTTP ----

TEST_F(Serve, WithoutItsUsualPortANodeThatWasNotAskedForOneServesAllTheSame) {
  if (!HttpIsBuilt()) GTEST_SKIP() << "this build has no HTTP";
  // The port is taken, by this socket or by another process.
  const Descriptor taker(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ASSERT_EQ(::setsockopt(taker.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(HttpAddress{}.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(taker.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    ASSERT_EQ(::listen(taker.get(), 1), 0);
  } else {
    ASSERT_EQ(errno, EADDRINUSE);
  }
  node_.emplace(AQUIFER_PROGRAM_PATH,
                std::vector<std::string>{"--socket", socket_, "--dram", "256MiB", "--nvme", "off"});
  ASSERT_TRUE(node_->AwaitReady()) << node_->said();
  EXPECT_THAT(node_->said(),
              AllOf(HasSubstr("warning: there is no HTTP but for aquifer ctl: cannot "
                              "serve HTTP on " +
                              HttpAddress{}.Text()),
                    Not(HasSubstr(" HTTP on " + HttpAddress{}.Text() + "\n"))));
  EXPECT_TRUE(Connect({.socket = socket_}, {}).ok());
  HttpPeer administrator(scratch_.Sub("node.admin.sock"));
  administrator.Send(GetText("/v1/status"));
  EXPECT_EQ(administrator.Receive().value_or(HeardResponse{}).status, 200);
  EXPECT_EQ(Stop(), 0);
}

// ---- systemd ----

class NotifySocket {
 public:
  explicit NotifySocket(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    AQ_CHECK(path.size() < sizeof(address.sun_path));
    std::memcpy(address.sun_path, path.data(), path.size());
    AQ_CHECK(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  std::string Next() {
    pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 60'000) != 1) return "nothing";
    char text[256];
    const ssize_t got = ::recv(socket_.get(), text, sizeof(text), 0);
    return {text, static_cast<size_t>(std::max<ssize_t>(got, 0))};
  }

 private:
  const Descriptor socket_;
};

TEST_F(Serve, TellsSystemdWhenItServesReloadsAndEnds) {
  const std::string path = scratch_.Sub("notify");
  NotifySocket notify(path);
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", "off"}, {"env", "NOTIFY_SOCKET=" + path}));
  EXPECT_THAT(notify.Next(), HasSubstr("READY=1"));
  EXPECT_TRUE(Connect({.socket = socket_}, {}).ok()) << "it said that it serves";
  node_->Signal(SIGHUP);
  EXPECT_THAT(notify.Next(), HasSubstr("RELOADING=1"));
  EXPECT_THAT(notify.Next(), HasSubstr("READY=1"));
  node_->Signal(SIGTERM);
  EXPECT_THAT(notify.Next(), HasSubstr("STOPPING=1"));
  EXPECT_EQ(node_->Wait(), 0);
}

TEST_F(Serve, StoredBlocksAreThereAfterATermAndANewStart) {
  const std::string nvme = scratch_.Sub("nvme") + ":1GiB";
  const Chain chain(LayoutOfBytes(kBlockBytes), {.seed = 1, .blocks = 100});
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", nvme}));
  {
    const auto cache = Connect({.socket = socket_}, {});
    ASSERT_TRUE(cache.ok());
    TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
    ASSERT_EQ(engine.Store(chain), chain.size());
  }
  node_->Signal(SIGTERM);
  EXPECT_TRUE(node_->AwaitLine("every block is on NVMe")) << node_->said();
  EXPECT_EQ(node_->Wait(), 0);
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", nvme}));
  const auto cache = Connect({.socket = socket_}, {});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  EXPECT_EQ(engine.Recall(chain), Recalled{.right = chain.size()});
}

// ---- Recording ----

class ServeRecording : public Serve {
 protected:
  static std::vector<json> LinesOf(const std::string& path) {
    const std::string text = TextOf(path);
    EXPECT_TRUE(text.empty() || text.back() == '\n');
    std::vector<json> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }

  const std::string trace_ = scratch_.Sub("trace");
};

TEST_F(ServeRecording, RequestsAreRecordedAlsoThoseOfObservers) {
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", "off", "--record", trace_}));
  const Chain chain(LayoutOfBytes(kBlockBytes), {.seed = 1, .blocks = 12});
  const Chain prompt(LayoutOfBytes(kBlockBytes), {.seed = 1, .blocks = 8});
  for (const bool observe : {false, true}) {
    const auto cache = Connect({.socket = socket_, .observe = observe}, {});
    ASSERT_TRUE(cache.ok());
    TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
    EXPECT_EQ(engine.Matched(prompt), 0u);  // An observer does not see the blocks that are there.
    // The prompt, and then the model's answer.
    for (const BlockRange& range : {BlockRange{.count = 8}, {.first = 8, .count = 3}}) {
      EXPECT_EQ(engine.Store(chain, range), observe ? 0 : range.count);
    }
  }
  EXPECT_EQ(Stop(), 0);
  const std::vector<json> lines = LinesOf(trace_);
  ASSERT_THAT(lines, SizeIs(2)) << TextOf(trace_);
  for (const json& line : lines) {
    EXPECT_EQ(line.at("input_length"), 8 * 16);
    EXPECT_EQ(line.at("output_length"), 3 * 16);
    EXPECT_EQ(line.at("hash_ids").size(), 8u);
  }
  EXPECT_EQ(lines[0].at("hash_ids"), lines[1].at("hash_ids"));
}

TEST_F(ServeRecording, AReloadStartsAndStopsIt) {
  const std::string config = scratch_.Sub("aquifer.toml");
  std::ofstream(config) << "";
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", "off", "--config", config}));
  const auto cache = Connect({.socket = socket_}, {});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  engine.Match(Chain(engine.layout(), {.seed = 1, .blocks = 4}));
  std::ofstream(config) << fmt::format("record = \"{}\"\n", trace_);
  node_->Signal(SIGHUP);
  ASSERT_TRUE(node_->AwaitLine("recording what is asked for")) << node_->said();
  engine.Match(Chain(engine.layout(), {.seed = 2, .blocks = 5}));
  std::ofstream(config) << "record = \"off\"\n";
  node_->Signal(SIGHUP);
  ASSERT_TRUE(node_->AwaitLine("recorded 1 requests")) << node_->said();
  engine.Match(Chain(engine.layout(), {.seed = 3, .blocks = 6}));
  const std::vector<json> lines = LinesOf(trace_);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0].at("hash_ids").size(), 5u);
}

TEST_F(ServeRecording, AReloadWhoseFileCannotBeMadeSaysSoAndTheNextOneTriesAgain) {
  const std::string config = scratch_.Sub("aquifer.toml");
  std::ofstream(config) << "";
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", "off", "--config", config}));
  const std::string folder = scratch_.Sub("folder");
  std::ofstream(config) << fmt::format("record = \"{}/trace\"\ndrain_budget = \"17s\"\n", folder);
  node_->Signal(SIGHUP);
  ASSERT_TRUE(node_->AwaitLine("reload: drain_budget is changed")) << node_->said();
  EXPECT_THAT(node_->said(),
              AllOf(HasSubstr("reload: nothing is recorded: " + config + ":1: record: "),
                    Not(HasSubstr("record is changed"))));
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  node_->Signal(SIGHUP);
  ASSERT_TRUE(node_->AwaitLine("reload: record is changed")) << node_->said();
  EXPECT_TRUE(std::filesystem::exists(folder + "/trace"));
}

TEST_F(ServeRecording, ANodeThatIsKilledLeavesWholeLines) {
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", "off", "--record", trace_}));
  const auto cache = Connect({.socket = socket_}, {});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  // Each prompt continues the one before, whose line is then written.
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 400});
  for (size_t blocks = 1; blocks <= chain.size(); ++blocks) engine.Match(chain, {.count = blocks});
  ASSERT_TRUE(Eventually([&] { return !TextOf(trace_).empty(); }));
  node_->Kill();
  node_->Wait();
  std::string text = TextOf(trace_);
  // The last write may have been cut short: every line with a newline is whole.
  text.resize(text.rfind('\n') + 1);
  std::istringstream in(text);
  size_t lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    const json parsed = json::parse(line, nullptr, false);
    ASSERT_FALSE(parsed.is_discarded()) << line;
    EXPECT_EQ(parsed.at("hash_ids").size(), lines + 1);
  }
  EXPECT_GT(lines, 0u);
  // The next node does not touch the file.
  ASSERT_NO_FATAL_FAILURE(Start({"--nvme", "off", "--record", trace_}));
  EXPECT_THAT(node_->said(), HasSubstr(trace_ + ".1"));
}

TEST_F(ServeRecording, AFileThatCannotBeMadeIsRefusedAtTheStart) {
  ServedNode node(AQUIFER_PROGRAM_PATH, {"--socket", socket_, "--dram", "128MiB", "--nvme", "off",
                                         "--http", "off", "--record", "/nowhere/at/all"});
  EXPECT_FALSE(node.AwaitReady());
  EXPECT_THAT(node.said(),
              AllOf(HasSubstr("aquifer serve: --record: record: "), HasSubstr("/nowhere/at/all")));
  EXPECT_EQ(node.Wait(), 1);
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  if (argc == 5 && std::string_view(argv[1]) == aquifer::kKnockerFlag) {
    return aquifer::RunKnocker(argv[2], argv[3], argv[4]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
