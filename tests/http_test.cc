// Tests the real program's HTTP, and `aquifer ctl` and `aquifer top` against it: which clients are
// answered, with which answer, and that a hostile client can do no harm.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "aquifer/cache.h"
#include "base/descriptor.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/node/http_peer.h"
#include "testing/scratch_directory.h"

extern char** environ;

namespace aquifer {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr char kToken[] = "an administrator's secret";
// The token's SHA-256.
constexpr char kTokenDigest[] = "0c41229d5955461f56b6e6630915023fbbb60c58ef52845c6f358d24000ce300";

std::string TextOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
};

pid_t Spawn(const std::vector<std::string>& arguments, const std::string& out,
            const std::string& err, const std::string& in = "/dev/null") {
  std::vector<std::string> words = {AQUIFER_PROGRAM_PATH};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY;
  posix_spawn_file_actions_addopen(&actions, 0, in.c_str(), O_RDONLY | O_NOCTTY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), flags, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), flags, 0600);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

int WaitFor(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// A node in a process of its own, on a free port.
class HttpTest : public testing::Test {
 protected:
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      WaitFor(pid_);
    }
  }

  // `config`: the content of its file.
  void Start(const std::string& config = "", const std::vector<std::string>& more = {}) {
    std::ofstream(path("aquifer.toml")) << config;
    std::vector<std::string> arguments = {"serve",  "--config", path("aquifer.toml"),    "--socket",
                                          socket(), "--http",   "127.0.0.1:0",           "--dram",
                                          "64MiB",  "--nvme",   path("nvme") + ":512MiB"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    pid_ = Spawn(arguments, path("out"), path("log"));
    ASSERT_TRUE(LogSays("ready on"));
    const std::string log = Log();
    std::smatch found;
    ASSERT_TRUE(std::regex_search(log, found, std::regex("HTTP on 127.0.0.1:(\\d+)"))) << log;
    port_ = static_cast<uint16_t>(std::stoi(found[1]));
  }

  std::string path(const std::string& name) const { return scratch_.path() + "/" + name; }
  std::string socket() const { return path("node.sock"); }
  std::string admin_socket() const { return path("node.admin.sock"); }
  std::string Log() const { return TextOf(path("log")); }

  // Returns true once the log has the text, and false if the node has ended.
  bool LogSays(const std::string& text) const {
    while (Log().find(text) == std::string::npos) {
      siginfo_t ended{};
      if (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          ended.si_pid != 0) {
        ADD_FAILURE() << "the node ended: " << Log();
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  HeardResponse Ask(const std::string& bytes, bool on_socket = false) const {
    std::unique_ptr<HttpPeer> peer =
        on_socket ? std::make_unique<HttpPeer>(admin_socket()) : std::make_unique<HttpPeer>(port_);
    peer->Send(bytes);
    return peer->Receive().value_or(HeardResponse{});
  }
  // All of an answer that ends with the connection, as of a request for the head alone.
  std::string HeadOf(const std::string& bytes) const {
    HttpPeer peer(port_);
    peer.Send(bytes);
    return peer.ReceiveAll();
  }
  HeardResponse AskAdmin(const std::string& bytes) const { return Ask(bytes, true); }

  // The tenant's data key is made in the background.
  void AwaitKey() const {
    while (json::parse(AskAdmin(GetText("/v1/keys")).body).at("known") == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  static std::string ErrorCode(const HeardResponse& response) {
    const json body = json::parse(response.body, nullptr, false);
    return body.is_object() && body.contains("error") ? body["error"].value("code", "") : "";
  }

  Outcome Aquifer(const std::vector<std::string>& arguments) const {
    Outcome outcome;
    outcome.status = WaitFor(Spawn(arguments, path("ctl.out"), path("ctl.err")));
    outcome.out = TextOf(path("ctl.out"));
    outcome.err = TextOf(path("ctl.err"));
    return outcome;
  }
  Outcome Ctl(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "ctl");
    arguments.insert(arguments.end(), {"--socket", socket()});
    return Aquifer(arguments);
  }

  const ScratchDirectory scratch_;
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

// ---- What is answered ----

TEST_F(HttpTest, ANodeThatServesIsHealthyReadyAndMeasured) {
  Start();
  EXPECT_EQ(Ask(GetText("/healthz")).body, "ok\n");
  EXPECT_EQ(Ask(GetText("/readyz")).status, 200);
  const HeardResponse metrics = Ask(GetText("/metrics"));
  EXPECT_EQ(metrics.status, 200);
  EXPECT_THAT(metrics.headers.at("content-type"), HasSubstr("version=0.0.4"));
  EXPECT_THAT(metrics.body,
              AllOf(HasSubstr("aquifer_tier_capacity_bytes{tier=\"dram\"} 67108864\n"),
                    HasSubstr("aquifer_tier_in_service{tier=\"nvme\"} 1\n")));
  EXPECT_EQ(Ask(GetText("/nothing")).status, 404);
  EXPECT_EQ(Ask(PostText("/healthz", "{}")).status, 405);
  // The paths of load balancers and older probes.
  for (const char* path : {"/healthz", "/readyz"}) {
    EXPECT_EQ(Ask(fmt::format("GET {} HTTP/1.0\r\n\r\n", path)).status, 200) << path;
    const std::string head = HeadOf(fmt::format("HEAD {} HTTP/1.0\r\n\r\n", path));
    EXPECT_THAT(head, testing::StartsWith("HTTP/1.1 200 ")) << path;
    EXPECT_TRUE(head.ends_with("\r\n\r\n")) << path;
  }
  EXPECT_EQ(Ask("GET /v1/status HTTP/1.0\r\n\r\n").status, 403);
  EXPECT_THAT(HeadOf("HEAD /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n"),
              testing::StartsWith("HTTP/1.1 405 "));
  kill(pid_, SIGTERM);
  EXPECT_EQ(WaitFor(std::exchange(pid_, -1)), 0);
  EXPECT_NE(access(admin_socket().c_str(), F_OK), 0);
}

// Checks types and required fields, and no others: only the rules that our description uses.
void Check(const json& schema, const json& document, const json& value, const std::string& where) {
  if (schema.contains("$ref")) {
    const auto pointer = json::json_pointer(schema["$ref"].get<std::string>().substr(1));
    return Check(document.at(pointer), document, value, where);
  }
  const json types = schema.at("type").is_array() ? schema["type"] : json::array({schema["type"]});
  const bool fits = std::any_of(types.begin(), types.end(), [&value](const json& type) {
    return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
           (type == "string" && value.is_string()) || (type == "boolean" && value.is_boolean()) ||
           (type == "integer" && value.is_number_integer()) ||
           (type == "number" && value.is_number()) || (type == "null" && value.is_null());
  });
  ASSERT_TRUE(fits) << where << " is " << value.dump() << ", and not " << types.dump();
  if (value.is_array()) {
    for (const json& each : value) Check(schema.at("items"), document, each, where + "[]");
  }
  if (!value.is_object()) return;
  for (const json& name : schema.value("required", json::array())) {
    EXPECT_TRUE(value.contains(name.get<std::string>())) << where << " lacks " << name;
  }
  const json properties = schema.value("properties", json::object());
  const json others = schema.value("additionalProperties", json(true));
  for (const auto& [name, field] : value.items()) {
    if (properties.contains(name)) {
      Check(properties[name], document, field, where + "." + name);
    } else if (others.is_object()) {
      Check(others, document, field, where + "." + name);
    } else {
      EXPECT_EQ(others, true) << where << " has " << name << ", which is not described";
    }
  }
}

// src/node/api/http_routes_test.cc tests that every call is described.
TEST_F(HttpTest, EveryCallThatIsDescribedAnswersAsDescribed) {
  std::ofstream(path("master")) << std::string(64, 'a');
  ASSERT_EQ(chmod(path("master").c_str(), 0600), 0);
  Start(
      fmt::format("master_key_file = \"{}\"\n[[tier]]\nname = \"shared\"\nkind = \"posix\"\n"
                  "directory = \"{}\"\nsize = \"1GiB\"\n",
                  path("master"), path("shared")));
  AwaitKey();
  const json document = json::parse(AskAdmin(GetText("/openapi.json")).body);
  EXPECT_EQ(document.at("openapi"), "3.1.0");
  EXPECT_TRUE(document == json::parse(TextOf(AQUIFER_SOURCE_DIR "/docs/api/openapi.json")));
  const std::map<std::string, std::string> bodies = {
      {"/v1/pin", R"({"keys":["00000000000000000000000000000000000000000000000000000000000000ff"],
                     "seconds":5})"},
      {"/v1/unpin",
       R"({"keys":["00000000000000000000000000000000000000000000000000000000000000ff"]})"},
      {"/v1/prestage",
       R"({"keys":["00000000000000000000000000000000000000000000000000000000000000ff"],
          "timeout_ms":1000})"},
      {"/v1/evict", R"({"everything":true})"},
      {"/v1/record/start", json{{"file", path("trace.jsonl")}}.dump()},
      {"/v1/record/stop", ""},
      {"/v1/tiers/test", R"({"tier":"shared"})"},
      {"/v1/tenants/delete", R"({"tenant":"local"})"},
      {"/v1/keys/rewrap", ""},
      {"/v1/drain", ""},
      {"/v1/undrain", ""}};
  for (const auto& [path, methods] : document.at("paths").items()) {
    SCOPED_TRACE(path);
    ASSERT_EQ(methods.size(), 1u);
    const bool get = methods.contains("get");
    const HeardResponse response = AskAdmin(get ? GetText(path) : PostText(path, bodies.at(path)));
    EXPECT_EQ(response.status, 200) << response.body;
    const json& content = methods.front().at("responses").at("200").at("content");
    if (content.contains("application/json")) {
      Check(content["application/json"]["schema"], document, json::parse(response.body), path);
    }
    // The answer to the wrong method.
    const HeardResponse wrong = AskAdmin(get ? PostText(path, "{}") : GetText(path));
    EXPECT_EQ(wrong.status, 405);
    const bool probe = path == "/healthz" || path == "/readyz";
    EXPECT_EQ(wrong.headers.at("allow"), probe ? "GET, HEAD" : (get ? "GET" : "POST"));
  }
}

TEST_F(HttpTest, EnginesBlocksAreCountedAndCanBePinnedPrestagedAndEvicted) {
  Start();
  auto cache = Connect({.socket = socket()}, {});
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 12});
  ASSERT_EQ(engine.Store(chain), 12u);
  EXPECT_EQ(engine.Recall(chain).right, 12u);
  EXPECT_EQ(engine.Recall(Chain(engine.layout(), {.seed = 2, .blocks = 3})).missed, 3u);
  engine.NameSession("chat/7 \"x\"", chain);
  ASSERT_TRUE(engine.Eventually([this] {
    return json::parse(AskAdmin(GetText("/v1/sessions")).body).at("sessions").size() == 1;
  }));

  const std::string metrics = Ask(GetText("/metrics")).body;
  EXPECT_THAT(
      metrics,
      AllOf(HasSubstr("aquifer_fetch_hits_total{tier=\"dram\",tenant=\"local\"} 12\n"),
            HasSubstr("aquifer_fetch_hit_bytes_total{tier=\"dram\",tenant=\"local\"} 786432\n"),
            HasSubstr("aquifer_fetch_misses_total{reason=\"not_found\",tenant=\"local\"} 3\n"),
            HasSubstr("aquifer_committed_blocks_total{tenant=\"local\"} 12\n")));
  const json session =
      json::parse(AskAdmin(GetText("/v1/sessions?tenant=local&limit=1")).body).at("sessions")[0];
  EXPECT_EQ(session.at("session"), "chat/7 \"x\"");
  EXPECT_EQ(session.at("blocks"), 12);
  EXPECT_EQ(session.at("head"), chain.keys().back().ToHex());

  const json by_session = {{"session", "chat/7 \"x\""}};
  json pin = by_session;
  pin["seconds"] = 60;
  EXPECT_EQ(json::parse(AskAdmin(PostText("/v1/pin", pin.dump())).body),
            (json{{"pinned", 12}, {"blocks", 12}}));
  EXPECT_EQ(json::parse(AskAdmin(PostText("/v1/unpin", by_session.dump())).body),
            (json{{"unpinned", 12}, {"blocks", 12}}));
  EXPECT_EQ(json::parse(AskAdmin(PostText("/v1/prestage", by_session.dump())).body),
            (json{{"found", 12}, {"staged", 12}}));
  const json by_keys = {{"keys", {chain.keys()[11].ToHex(), chain.keys()[10].ToHex()}}};
  EXPECT_EQ(json::parse(AskAdmin(PostText("/v1/evict", by_keys.dump())).body),
            (json{{"evicted", 2}}));
  EXPECT_EQ(engine.Matched(chain), 10u);
  EXPECT_EQ(json::parse(AskAdmin(PostText("/v1/evict", R"({"everything":true})")).body),
            (json{{"evicted", 10}}));
  EXPECT_EQ(engine.Matched(chain), 0u);
  EXPECT_EQ(json::parse(AskAdmin(GetText("/v1/sessions")).body).at("sessions"), json::array());
  EXPECT_EQ(ErrorCode(AskAdmin(PostText("/v1/evict", R"({"session":"nobody's"})"))), "not_found");
}

TEST_F(HttpTest, SessionsAreListedByNamesThatAreTextWhateverEnginesCallThem) {
  Start();
  auto cache = Connect({.socket = socket()}, {});
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 2});
  ASSERT_EQ(engine.Store(chain), 2u);
  const std::string quotes = "x'; touch " + path("pasted") + "; echo '";
  for (const std::string& name : std::vector<std::string>{"\xFF", "\xFE", "\x80x", "\xC2\x9B[31m",
                                                          "a\nb", quotes, "\xC3\xA9", "z"}) {
    engine.NameSession(name, chain);
  }
  ASSERT_TRUE(engine.Eventually([&] {  // This is the last block, so all blocks before it are there.
    return AskAdmin(PostText("/v1/unpin", R"({"session":"z"})")).status == 200;
  }));
  std::vector<std::string> names;
  for (std::string target = "/v1/sessions?limit=1"; !target.empty() && names.size() < 10;) {
    const json page = json::parse(AskAdmin(GetText(target)).body);
    ASSERT_EQ(page.at("sessions").size(), 1u);
    names.push_back(page["sessions"][0].at("session"));
    std::string next;
    for (const char c : page.at("next").get<std::string>()) {
      next += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    target = next.empty() ? "" : "/v1/sessions?limit=1&after=" + next;
  }
  EXPECT_EQ(names, (std::vector<std::string>{quotes, "z", "\xC3\xA9"}));
  EXPECT_THAT(Ctl({"sessions", "--limit", "1"}).out,
              HasSubstr("--after 'x'\\''; touch " + path("pasted") + "; echo '\\'''\n"));
}

TEST_F(HttpTest, ABlockOfADurableTierIsAHitInEveryView) {
  const std::string config = fmt::format(
      "[[tier]]\nname = \"shared\"\nkind = \"posix\"\ndirectory = \"{}\"\nsize = \"1GiB\"\n",
      path("shared"));
  Start(config);
  const Chain chain(LayoutOfBytes(kBlockBytes), {.seed = 1, .blocks = 4});
  {
    auto cache = Connect({.socket = socket()}, {});
    ASSERT_TRUE(cache.ok()) << cache.status().ToString();
    TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
    ASSERT_EQ(engine.Store(chain), 4u);
    FlushRequest flush;
    flush.tier = TierKind::kDurable;
    flush.timeout_nanos = 60 * kDefaultTimeoutNanos;
    engine.cache()->Flush(&flush);
    engine.Finish(flush);
    ASSERT_TRUE(flush.status.ok()) << flush.status.ToString();
  }
  kill(pid_, SIGTERM);
  ASSERT_EQ(WaitFor(std::exchange(pid_, -1)), 0);
  std::filesystem::remove_all(path("nvme"));
  Start(config);
  auto cache = Connect({.socket = socket()}, {});
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  ASSERT_EQ(engine.Recall(chain).right, 4u);
  const json tenant = json::parse(AskAdmin(GetText("/v1/tenants")).body).at("tenants").at(0);
  EXPECT_EQ(tenant.at("hits_durable"), 4);
  EXPECT_EQ(tenant.at("hit_bytes_durable"), 4 * kBlockBytes);
  EXPECT_THAT(Ctl({"status"}).out, HasSubstr("4 blocks asked for, 100.0 % hit: 0 from dram, 0 from "
                                             "nvme, 4 from durable tiers"));
  EXPECT_THAT(Ctl({"tenants"}).out, HasSubstr("100.0 %"));
  EXPECT_THAT(Aquifer({"top", "--once", "--socket", socket()}).out, HasSubstr("durable 100.0 %"));
}

// A session's chain is of one kv group, which its name stands for.
TEST_F(HttpTest, ASessionOfAnotherGroupIsPinnedThere) {
  Start();
  auto cache = Connect({.socket = socket()}, {});
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes, 2));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 5});
  ASSERT_EQ(engine.Store(chain, {.group = 1}), 5u);
  SessionForecast forecast;
  forecast.session = "windows";
  forecast.chain = engine.Slice(chain, {.group = 1});
  (*cache)->Hint(forecast);
  const std::string pin = R"({"session":"windows","seconds":60})";
  ASSERT_TRUE(engine.Eventually([&] { return AskAdmin(PostText("/v1/pin", pin)).status == 200; }));
  EXPECT_EQ(json::parse(AskAdmin(PostText("/v1/pin", pin)).body),
            (json{{"pinned", 5}, {"blocks", 5}}));
}

TEST_F(HttpTest, OneCommandSaysWhetherAStoreWorksAndAnotherDeletesATenant) {
  std::ofstream(path("master")) << std::string(64, 'a');
  ASSERT_EQ(chmod(path("master").c_str(), 0600), 0);
  const std::string config = fmt::format(
      "master_key_file = \"{}\"\n[[tier]]\nname = \"shared\"\nkind = \"posix\"\n"
      "directory = \"{}\"\nsize = \"1GiB\"\n",
      path("master"), path("shared"));
  Start(config);
  Outcome outcome = Ctl({"tiers", "test", "shared"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr(path("shared")), HasSubstr("2MiB"),
                                 HasSubstr("It works: every byte came back")));
  EXPECT_THAT(Ctl({"tiers"}).out, AllOf(HasSubstr("shared"), HasSubstr("in service")));
  // Only the store's counters have these.
  EXPECT_THAT(
      Ask(GetText("/metrics")).body,
      HasSubstr("aquifer_durable_events_total{tier=\"shared\",event=\"store_removes\"} 24\n"));
  EXPECT_EQ(
      json::parse(Ctl({"tiers", "--json"}).out).at("durable")[0].at("counters").at("store_writes"),
      24);
  outcome = Ctl({"tiers", "test", "shraed"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("there are: shared"));

  // A store that cannot work, and no node at all.
  std::ofstream(path("other.toml"))
      << "[[tier]]\nname = \"shared\"\nkind = \"posix\"\nsize = \"1GiB\"\ndirectory = \""
      << path("absent/shared") << "\"\n";
  outcome = Aquifer({"ctl", "tiers", "test", "shared", "--config", path("other.toml"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  const json report = json::parse(outcome.out);
  EXPECT_EQ(report.at("works"), false);
  EXPECT_EQ(report.at("failed"), "writing 4 KiB");
  EXPECT_THAT(report.at("trouble").get<std::string>(), HasSubstr("absent"));

  // A tenant's blocks are gone with its key.
  AwaitKey();
  auto cache = Connect({.socket = socket()}, {});
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 4});
  ASSERT_EQ(engine.Store(chain), 4u);
  FlushRequest flush;
  flush.tier = TierKind::kDurable;
  flush.timeout_nanos = 60 * kDefaultTimeoutNanos;
  engine.cache()->Flush(&flush);
  engine.Finish(flush);
  ASSERT_TRUE(flush.status.ok()) << flush.status.ToString();
  EXPECT_THAT(Ctl({"keys"}).out, HasSubstr("1 data keys known"));
  EXPECT_THAT(Ctl({"keys", "rewrap"}).out, HasSubstr("0 data keys were wrapped"));
  EXPECT_EQ(Ctl({"tenants", "delete", "local"}).status, 2) << "not without --yes";
  outcome = Ctl({"tenants", "delete", "local", "--yes"});
  EXPECT_THAT(outcome.out, HasSubstr("the key is destroyed")) << outcome.err;
  EXPECT_EQ(engine.Recall(chain).right, 0u);
  EXPECT_THAT(Log(), HasSubstr("audit: /v1/tenants/delete"));
}

TEST_F(HttpTest, ADrainedNodeIsHealthyAndNotReady) {
  Start();
  EXPECT_EQ(json::parse(AskAdmin(PostText("/v1/drain", "{}")).body), (json{{"left", 0}}));
  EXPECT_EQ(Ask(GetText("/readyz")).status, 503);
  EXPECT_EQ(Ask(GetText("/healthz")).status, 200);
  EXPECT_EQ(json::parse(Ask(GetText("/v1/status")).body).at("ready"), false);
}

TEST_F(HttpTest, ADrainedNodeStoresAgainOnceItIsUndrained) {
  Start();
  auto cache = Connect({.socket = socket()}, {});
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 4});
  EXPECT_EQ(Ctl({"drain"}).status, 0);
  EXPECT_EQ(engine.Reserve(chain)->ops.at(0).refusal, Refusal::kDraining);
  EXPECT_THAT(Ctl({"undrain"}).out, HasSubstr("blocks are stored again"));
  EXPECT_EQ(Ask(GetText("/readyz")).status, 200);
  EXPECT_EQ(engine.Store(chain), 4u);
  EXPECT_THAT(Ctl({"undrain"}).out, HasSubstr("was not draining"));
  EXPECT_THAT(Log(), HasSubstr("audit: /v1/undrain"));
}

TEST_F(HttpTest, ATenantThatNobodyHasIsNotDeletedAndNotMade) {
  std::ofstream(path("master")) << std::string(64, 'a');
  ASSERT_EQ(chmod(path("master").c_str(), 0600), 0);
  Start(
      fmt::format("master_key_file = \"{}\"\nkey_store = \"{}\"\n", path("master"), path("keys")));
  const Outcome outcome = Ctl({"tenants", "delete", "acmee", "--yes"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("there is no tenant 'acmee'"));
  EXPECT_THAT(Ctl({"tenants"}).out, testing::Not(HasSubstr("acmee")));
  // Where a store may have something of it.
  EXPECT_EQ(Ctl({"tenants", "delete", "acmee", "--yes", "--force"}).status, 0);
}

TEST_F(HttpTest, AWrongCallIsRefusedWithAReason) {
  Start();
  for (const char* body :
       {"", "{", "[]", "{}", R"({"session":7})", R"({"keys":[]})", R"({"keys":["zz"]})",
        R"({"session":"a","keys":["00"]})", R"({"sesion":"a"})", R"({"session":"a","group":-1})",
        R"({"session":"a","part":65536})"}) {
    const HeardResponse response = AskAdmin(PostText("/v1/prestage", body));
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(ErrorCode(response), "invalid") << body;
  }
  EXPECT_EQ(AskAdmin(PostText("/v1/evict", R"({"tenant":"nobody","everything":true})")).status,
            404);
  EXPECT_EQ(AskAdmin(PostText("/v1/pin", R"({"session":"a"})")).status, 400);
  EXPECT_EQ(AskAdmin(GetText("/v1/tenants?limit=0")).status, 400);
  EXPECT_EQ(AskAdmin(GetText("/v1/sessions?tenant=nobody")).status, 404);
  EXPECT_EQ(AskAdmin(GetText("/v1/sessions?limt=5")).status, 400);
  EXPECT_EQ(AskAdmin("POST /v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").status,
            415);
}

// ---- Who is answered ----

TEST_F(HttpTest, WebPagesAreNotAnswered) {
  Start();
  for (const char* path : {"/healthz", "/metrics", "/v1/status"}) {
    EXPECT_EQ(Ask(GetText(path, "Origin: http://evil.example\r\n")).status, 403) << path;
    EXPECT_EQ(Ask(GetText(path, "Sec-Fetch-Site: cross-site\r\n")).status, 403) << path;
    EXPECT_EQ(Ask(fmt::format("GET {} HTTP/1.1\r\nHost: evil.example\r\n\r\n", path)).status, 403)
        << path;
    EXPECT_EQ(
        Ask(fmt::format("GET {0} HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", path))
            .status,
        400)
        << path;
  }
  for (const char* path : {"/metrics", "/v1/status"}) {
    EXPECT_EQ(Ask(fmt::format("GET {} HTTP/1.1\r\n\r\n", path)).status, 403) << path;
  }
  EXPECT_EQ(Ask("OPTIONS /v1/drain HTTP/1.1\r\nHost: localhost\r\n"
                "Access-Control-Request-Method: POST\r\nOrigin: http://evil.example\r\n\r\n")
                .status,
            403);
  EXPECT_TRUE(LogSays("audit: refused HTTP of 127.0.0.1:"));
}

TEST_F(HttpTest, WithoutATokenTheAdministratorIsAnsweredOnTheSocketAlone) {
  Start();
  EXPECT_EQ(Ask(GetText("/v1/status")).status, 200);
  for (const char* path : {"/v1/pin", "/v1/unpin", "/v1/prestage", "/v1/evict", "/v1/drain"}) {
    EXPECT_EQ(Ask(PostText(path, "{}", "Authorization: Bearer x\r\n")).status, 403) << path;
  }
  EXPECT_EQ(Ask(GetText("/v1/sessions")).status, 403);
  EXPECT_EQ(AskAdmin(GetText("/v1/sessions")).status, 200);
  struct stat info{};
  ASSERT_EQ(stat(admin_socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(HttpTest, ATenantsConfigurationIsShownBeforeItComes) {
  std::ofstream(path("tenants.toml"))
      << "[[tenant]]\nname = \"a\"\ntoken_sha256 = \"" << std::string(64, '1')
      << "\"\ndram_ceiling = \"64MiB\"\nttl = \"1h\"\npriority = -2\n";
  ASSERT_EQ(chmod(path("tenants.toml").c_str(), 0600), 0);
  Start("tenants = \"" + path("tenants.toml") + "\"\nencryption = \"off\"\n");
  const json tenant = json::parse(AskAdmin(GetText("/v1/tenants")).body).at("tenants").at(0);
  EXPECT_EQ(tenant.at("dram_ceiling_bytes"), 64 << 20);
  EXPECT_EQ(tenant.at("ttl_seconds"), 3600);
  EXPECT_EQ(tenant.at("priority"), -2);
}

TEST_F(HttpTest, CtlAndTopShowAllTenantsAlsoWhereThereAreMoreThanAPage) {
  std::string tenants;
  for (int i = 0; i < 1001; ++i) {
    tenants += fmt::format("[[tenant]]\nname = \"t{0:04}\"\ntoken_sha256 = \"{0:064x}\"\n", i);
  }
  std::ofstream(path("tenants.toml")) << tenants;
  ASSERT_EQ(chmod(path("tenants.toml").c_str(), 0600), 0);
  Start("tenants = \"" + path("tenants.toml") + "\"\nencryption = \"off\"\n");
  const json all = json::parse(Ctl({"tenants", "--json"}).out).at("tenants");
  ASSERT_EQ(all.size(), 1001u);
  EXPECT_EQ(all.back().at("name"), "t1000");
  const Outcome top = Aquifer({"top", "--once", "--socket", socket()});
  EXPECT_THAT(top.out, AllOf(HasSubstr("t0000"), HasSubstr("t1000"))) << top.err;
}

TEST_F(HttpTest, WithTenantsEverythingButHealthNeedsTheToken) {
  std::ofstream(path("tenants.toml"))
      << "[[tenant]]\nname = \"a\"\ntoken_sha256 = \"" << std::string(64, '1')
      << "\"\n[[tenant]]\nname = \"b\"\ntoken_sha256 = \"" << std::string(64, '2') << "\"\n";
  ASSERT_EQ(chmod(path("tenants.toml").c_str(), 0600), 0);
  const std::string config =
      fmt::format("tenants = \"{}\"\nencryption = \"off\"\nadmin_token_sha256 = \"{}\"\n",
                  path("tenants.toml"), kTokenDigest);
  Start(config);
  const std::string token = fmt::format("Authorization: Bearer {}\r\n", kToken);
  for (const char* open : {"/healthz", "/readyz"})
    EXPECT_EQ(Ask(GetText(open)).status, 200) << open;
  for (const char* path : {"/metrics", "/openapi.json", "/v1/status", "/v1/tiers", "/v1/tenants",
                           "/v1/sessions?tenant=a"}) {
    const HeardResponse refused = Ask(GetText(path));
    EXPECT_EQ(refused.status, 401) << path;
    EXPECT_EQ(refused.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(Ask(GetText(path, "Authorization: Bearer wrong\r\n")).status, 401) << path;
    EXPECT_EQ(Ask(GetText(path, token)).status, 200) << path;
    EXPECT_EQ(AskAdmin(GetText(path)).status, 200) << path;
  }
  EXPECT_EQ(Ask(PostText("/v1/drain", "{}")).status, 401);
  const json tenants = json::parse(Ask(GetText("/v1/tenants", token)).body).at("tenants");
  ASSERT_EQ(tenants.size(), 2u);
  EXPECT_EQ(tenants[0].at("name"), "a");
  // With several tenants, the request must name one.
  EXPECT_EQ(AskAdmin(PostText("/v1/evict", R"({"everything":true})")).status, 400);
  EXPECT_EQ(AskAdmin(PostText("/v1/evict", R"({"tenant":"b","everything":true})")).status, 200);
  EXPECT_TRUE(LogSays("audit: /v1/evict \"everything\"=true \"tenant\"=\"b\" for process"));

  std::ofstream(path("token")) << kToken << "\n";
  const std::string address = fmt::format("127.0.0.1:{}", port_);
  EXPECT_EQ(Aquifer({"ctl", "status", "--http", address, "--token-file", path("token")}).status, 0);
  const Outcome without = Aquifer({"ctl", "status", "--http", address});
  EXPECT_EQ(without.status, 2);
  EXPECT_THAT(without.err, HasSubstr("--token-file"));

  // A reload removes the token.
  std::ofstream(path("aquifer.toml"))
      << fmt::format("tenants = \"{}\"\nencryption = \"off\"\n", path("tenants.toml"));
  kill(pid_, SIGHUP);
  ASSERT_TRUE(LogSays("admin_token_sha256 is changed"));
  EXPECT_EQ(Ask(GetText("/metrics", token)).status, 403);
}

TEST_F(HttpTest, ATakenPortIsAnErrorWhereItWasAskedFor) {
  Start();
  const std::string taken = fmt::format("127.0.0.1:{}", port_);
  const Outcome outcome = Aquifer({"serve", "--socket", path("other.sock"), "--http", taken,
                                   "--dram", "64MiB", "--nvme", "off"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("cannot serve HTTP on " + taken), HasSubstr("--http")));
}

// ---- Hostile ----

TEST_F(HttpTest, NothingThatAClientSendsStopsTheOthers) {
  Start();
  std::vector<std::unique_ptr<HttpPeer>> crowd;
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(std::make_unique<HttpPeer>(port_));
    ASSERT_TRUE(crowd.back()->connected());
    if (i % 3 == 1) crowd.back()->Send("GET /metrics HTT");
    if (i % 3 == 2) crowd.back()->Send(GetText("/metrics"));  // This client never reads.
  }
  EXPECT_EQ(AskAdmin(GetText("/healthz")).status, 200);
  crowd.clear();
  EXPECT_EQ(Ask("GET / HTTP/1.1\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n").status, 431);
  EXPECT_EQ(AskAdmin(PostText("/v1/pin", std::string(9 << 20, ' '))).status, 413);
  EXPECT_EQ(Ask("\x16\x03\x01 hello\r\n\r\n").status, 400);
  HttpPeer pipelined(port_);
  std::string all;
  for (int i = 0; i < 50; ++i) all += GetText(i % 2 == 0 ? "/healthz" : "/nothing");
  pipelined.Send(all);
  for (int i = 0; i < 50; ++i) {
    const auto response = pipelined.Receive();
    ASSERT_TRUE(response) << i;
    EXPECT_EQ(response->status, i % 2 == 0 ? 200 : 404);
  }
  EXPECT_EQ(Ask(GetText("/readyz")).status, 200);
}

// ---- aquifer ctl and aquifer top ----

TEST_F(HttpTest, CtlAsksAndActs) {
  Start();
  auto cache = Connect({.socket = socket()}, {});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  const Chain chain(engine.layout(), {.seed = 1, .blocks = 6});
  ASSERT_EQ(engine.Store(chain), 6u);
  engine.NameSession("chat 7", chain);
  ASSERT_TRUE(engine.Eventually(
      [this] { return Ctl({"sessions"}).out.find("chat 7") != std::string::npos; }));

  EXPECT_THAT(Ctl({"status"}).out, AllOf(HasSubstr("ready"), HasSubstr("6 blocks, ")));
  EXPECT_EQ(json::parse(Ctl({"status", "--json"}).out).at("counters").at("committed"), 6);
  EXPECT_THAT(Ctl({"tiers"}).out, AllOf(HasSubstr("dram"), HasSubstr("nvme"), HasSubstr("64MiB")));
  EXPECT_THAT(Ctl({"tenants"}).out, HasSubstr("local"));
  EXPECT_EQ(
      json::parse(Ctl({"sessions", "--json", "--limit", "5"}).out).at("sessions")[0].at("blocks"),
      6);
  EXPECT_EQ(Ctl({"pin", "--session", "chat 7", "--for", "1h"}).out,
            "pinned 6 of 6 blocks for 1h\n");
  EXPECT_EQ(Ctl({"unpin", "--session", "chat 7"}).out, "unpinned 6 of 6 blocks\n");
  EXPECT_EQ(Ctl({"prestage", "--session", "chat 7", "--timeout", "20s"}).out,
            "6 of 6 blocks are in DRAM\n");
  EXPECT_EQ(Ctl({"evict", chain.keys()[5].ToHex()}).out, "1 blocks are gone from every tier\n");
  EXPECT_EQ(Ctl({"evict", "--everything"}).status, 2);
  EXPECT_EQ(json::parse(Ctl({"evict", "--everything", "--yes", "--json"}).out),
            (json{{"evicted", 5}}));
  const Outcome top = Aquifer({"top", "--once", "--socket", socket()});
  EXPECT_EQ(top.status, 0) << top.err;
  EXPECT_THAT(top.out, AllOf(HasSubstr("ready"), HasSubstr("dram"), HasSubstr("local")));
  EXPECT_EQ(Ctl({"drain"}).out,
            "drained: no block is only in DRAM, and nothing is stored any more\n");
  EXPECT_THAT(Ctl({"status"}).out, HasSubstr("draining"));
}

// Reads a terminal's output until it contains `text`.
std::string ReadUntil(int terminal, const std::string& text) {
  std::string all;
  char chunk[4096];
  while (all.find(text) == std::string::npos) {
    const ssize_t got = read(terminal, chunk, sizeof(chunk));
    if (got <= 0) break;
    all.append(chunk, static_cast<size_t>(got));
  }
  return all;
}

TEST_F(HttpTest, TopDrawsAgainAndAgainAndLeavesTheTerminalAsItWas) {
  Start();
  const Descriptor terminal(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.valid());
  ASSERT_EQ(grantpt(terminal.get()), 0);
  ASSERT_EQ(unlockpt(terminal.get()), 0);
  const std::string name = ptsname(terminal.get());
  // Keeps the terminal open.
  const Descriptor other(open(name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios before{};
  ASSERT_EQ(tcgetattr(other.get(), &before), 0);
  const pid_t top = Spawn({"top", "--socket", socket()}, name, path("top.err"), name);
  EXPECT_THAT(ReadUntil(terminal.get(), "local"),
              AllOf(HasSubstr("\x1b[?1049h"), HasSubstr("on average since the start")));
  EXPECT_THAT(ReadUntil(terminal.get(), "local"), HasSubstr("now"));  // A second later.
  termios during{};
  ASSERT_EQ(tcgetattr(other.get(), &during), 0);
  EXPECT_EQ(during.c_lflag & ECHO, 0u);
  ASSERT_EQ(write(terminal.get(), "q", 1), 1);
  EXPECT_THAT(ReadUntil(terminal.get(), "\x1b[?1049l"), HasSubstr("\x1b[?25h"));
  EXPECT_EQ(WaitFor(top), 0) << TextOf(path("top.err"));
  termios after{};
  ASSERT_EQ(tcgetattr(other.get(), &after), 0);
  EXPECT_EQ(after.c_lflag, before.c_lflag);
}

TEST_F(HttpTest, CtlStartsAndStopsARecording) {
  Start();
  EXPECT_EQ(Ctl({"record", "status"}).out, "nothing is recorded\n");
  EXPECT_EQ(Ctl({"record", "stop"}).status, 2);
  EXPECT_EQ(Ctl({"record", "start"}).status, 2);
  EXPECT_THAT(Ctl({"record", "start", path("trace.jsonl")}).out,
              HasSubstr("recording to " + path("trace.jsonl")));
  auto cache = Connect({.socket = socket()}, {});
  ASSERT_TRUE(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  EXPECT_EQ(engine.Matched(Chain(engine.layout(), {.seed = 1, .blocks = 6})), 0u);
  EXPECT_EQ(AskAdmin(PostText("/v1/record/start", R"({"file":"relative"})")).status, 400);
  // Only one recording at a time.
  EXPECT_EQ(Ctl({"record", "start", path("other.jsonl")}).status, 2);
  const Outcome stopped = Ctl({"record", "stop", "--json"});
  EXPECT_EQ(stopped.status, 0) << stopped.err;
  const json recording = json::parse(stopped.out);
  EXPECT_EQ(recording.at("running"), false);
  EXPECT_EQ(recording.at("requests"), 1);
  EXPECT_THAT(TextOf(path("trace.jsonl")), HasSubstr("hash_ids"));
}

TEST_F(HttpTest, CtlNamesTheMistakeAndTheNextStep) {
  const Outcome nobody = Aquifer({"ctl", "status", "--socket", path("nowhere.sock")});
  EXPECT_EQ(nobody.status, 1);
  EXPECT_THAT(nobody.out, IsEmpty());
  EXPECT_THAT(nobody.err, AllOf(HasSubstr("no node answers on"), HasSubstr("nowhere.admin.sock"),
                                HasSubstr("aquifer serve")));
  EXPECT_EQ(Aquifer({"top", "--socket", path("nowhere.sock")}).status, 1);
  for (const char* wrong : {"nonsense", "[::1]", "::1", "::1:9470", "[localhost]:9470", ":9470",
                            "localhost:", "localhost:http", "localhost:0", "localhost:65536"}) {
    const Outcome refused = Aquifer({"ctl", "status", "--http", wrong});
    EXPECT_EQ(refused.status, 2) << wrong;
    EXPECT_THAT(refused.err, HasSubstr(fmt::format("--http: '{}' is not an address", wrong)));
  }
  EXPECT_EQ(Aquifer({"ctl"}).status, 2);
  EXPECT_THAT(Aquifer({"ctl", "statsu"}).err, HasSubstr("Did you mean 'status'?"));
  Start();
  Outcome outcome = Ctl({"pin", "--session", "a"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--for"));
  EXPECT_EQ(Ctl({"pin", "--session", "a", "--for", "soon"}).status, 2);
  // The value that was written, not the one that would have been sent.
  const std::string key(64, '0');
  EXPECT_THAT(Ctl({"pin", "--session", "a", "--for", "20000d"}).err,
              HasSubstr("--for: '20000d' is too long; give at most 3650d"));
  EXPECT_THAT(Ctl({"drain", "--timeout", "2h"}).err,
              HasSubstr("--timeout: '2h' is too long; give at most 1h"));
  EXPECT_THAT(Ctl({"evict", key, "--group", "65536"}).err, HasSubstr("--group"));
  EXPECT_THAT(Ctl({"evict", key, "--part", "-1"}).err, HasSubstr("--part"));
  EXPECT_THAT(Ctl({"sessions", "--limit", "1001"}).err, HasSubstr("--limit"));
  EXPECT_THAT(Ctl({"status"}).out, HasSubstr("ready"));
  EXPECT_EQ(Ctl({"evict"}).status, 2);
  EXPECT_EQ(Ctl({"evict", "zz"}).status, 2);
  outcome = Ctl({"evict", "--session", "nobody's"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("there is no session"));
  outcome = Ctl({"prestage", "--session", "a", "--tenant", "nobody"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no tenant 'nobody'"));
}

}  // namespace
}  // namespace aquifer
