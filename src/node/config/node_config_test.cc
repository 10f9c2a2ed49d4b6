#include "node/config/node_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/text/hex_text.h"
#include "testing/example_file.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

using Kind = SizeChoice::Kind;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr std::string_view kDigest =
    "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

NodeConfig Parsed(const std::string& text) {
  const Result<NodeConfig> config = ParseNodeConfig(text, "n.toml");
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return config.ok() ? *config : NodeConfig{};
}

std::string Refusal(const std::string& text) {
  const Result<NodeConfig> config = ParseNodeConfig(text, "n.toml");
  EXPECT_FALSE(config.ok()) << text;
  EXPECT_EQ(config.status().code(), Code::kInvalid);
  return config.status().message();
}

TEST(NodeConfigTest, EveryMistakeIsToldAtOnce) {
  const std::string refusal = Refusal(R"(socket = "here"
polcy = "lru"
overdue = 0
[dram]
size = "1MiB"
sync = true
[[tier]]
name = "a"
kind = "posix"
size = "1MiB"
tls = true
)");
  for (const char* const line :
       {"n.toml:1: socket: 'here'", "n.toml:2: polcy: there is no such key; did you mean 'policy'?",
        "n.toml:3: overdue: ", "n.toml:5: dram.size: ",
        "n.toml:6: dram.sync: 'sync' belongs in [nvme]", "n.toml:10: tier[0].size: ",
        "n.toml:11: tier[0].tls: 'tls' is for tiers of kind redis", "needs 'directory'"}) {
    EXPECT_THAT(refusal, HasSubstr(line));
  }
  EXPECT_EQ(std::count(refusal.begin(), refusal.end(), '\n'), 7) << refusal;
}

TEST(NodeConfigTest, MistakesOfTheFileAndOfTheCommandLineAreToldTogether) {
  const ScratchDirectory scratch;
  std::ofstream(scratch.Sub("n.toml")) << "overdue = 0\n";
  const auto config =
      LoadNodeConfig({.config = scratch.Sub("n.toml"), .http = "x", .dram = "1KiB"});
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), AllOf(HasSubstr("n.toml:1: overdue: "),
                                               HasSubstr("\n--http: "), HasSubstr("\n--dram: ")));
}

TEST(NodeConfigTest, AnEmptyFileIsTheDefaults) { EXPECT_EQ(Parsed(""), NodeConfig{}); }

TEST(NodeConfigTest, EveryKeyIsRead) {
  const NodeConfig config = Parsed(R"(
socket = "/srv/aquifer/socket"
http = "[::1]:80"
worker_threads = 5
policy = "lru"
overdue = "5m"
drain_budget = 7
log_level = "warning"
log_format = "json"
record = "/srv/trace"
tenants = "/etc/aquifer/tenants.toml"
admin_token_sha256 = ")" + std::string(kDigest) +
                                   R"("
encryption = "off"
master_key_file = "/etc/aquifer/master"
key_store = "far"
[dram]
size = "40%"
keep_available = "1GiB"
[nvme]
directories = ["/mnt/a", "/mnt/b/"]
size = "2TiB"
engine = "threads"
sync = true
segment = "128MiB"
write_budget = "200MB"
written_part = 0.65
[[tier]]
name = "far"
kind = "object"
bucket = "kv-cache"
)");
  EXPECT_EQ(config.socket, "/srv/aquifer/socket");
  EXPECT_EQ(config.http, (HttpAddress{.host = "::1", .port = 80}));
  EXPECT_TRUE(config.http_asked);
  EXPECT_EQ(config.worker_threads, 5u);
  EXPECT_EQ(config.policy, EvictionPolicy::kLru);
  EXPECT_EQ(config.overdue_seconds, 300);
  EXPECT_EQ(config.drain_seconds, 7);
  EXPECT_EQ(config.log_level, LogLevel::kWarning);
  EXPECT_EQ(config.log_format, LogFormat::kJson);
  EXPECT_EQ(config.record_file, "/srv/trace");
  EXPECT_EQ(config.tenants_file, "/etc/aquifer/tenants.toml");
  EXPECT_EQ(Sha256Text(*config.admin_token_sha256), kDigest);
  EXPECT_EQ(config.encryption, Encryption::kOff);
  EXPECT_EQ(config.master_key_file, "/etc/aquifer/master");
  EXPECT_EQ(config.key_store, "far");
  ASSERT_EQ(config.tiers.size(), 1u);
  EXPECT_EQ(config.tiers[0].bucket, "kv-cache");
  EXPECT_EQ(config.dram, (SizeChoice{Kind::kPercent, 40}));
  EXPECT_EQ(config.keep_available_bytes, kGiB);
  EXPECT_THAT(*config.nvme_directories, ElementsAre("/mnt/a", "/mnt/b"));
  EXPECT_EQ(config.nvme, (SizeChoice{Kind::kBytes, 2048 * kGiB}));
  EXPECT_EQ(config.nvme_engine, NvmeEngine::kThreads);
  EXPECT_TRUE(config.nvme_sync);
  EXPECT_EQ(config.nvme_segment_bytes, 128 * kMiB);
  EXPECT_EQ(config.nvme_write_bytes_per_second, 200'000'000u);
  EXPECT_EQ(config.nvme_written_part, 0.65);
  // Nothing that a reader forgot: every key differs from the default.
  const ReloadChanges changes = CompareForReload(NodeConfig{}, config);
  EXPECT_EQ(changes.applied.size() + changes.need_restart.size(),
            NodeConfigKeys().size() - TierConfigKeys().size() + 1);
}

TEST(NodeConfigTest, SwitchesAreWrittenOut) {
  const NodeConfig config = Parsed("http = \"off\"\n[nvme]\ndirectories = []\n");
  EXPECT_FALSE(config.http.has_value());
  EXPECT_THAT(*config.nvme_directories, IsEmpty());
  EXPECT_EQ(Parsed("[dram]\nsize = 1073741824\n").dram, (SizeChoice{Kind::kBytes, kGiB}));
  EXPECT_EQ(Parsed("http = \"localhost:0\"\n").http, (HttpAddress{"127.0.0.1", 0}));
}

TEST(NodeConfigTest, UnknownKeysAreRefusedWithLineAndSuggestion) {
  EXPECT_EQ(Refusal("\nsokcet = \"/x\"\n"),
            "n.toml:2: sokcet: there is no such key; did you mean 'socket'?");
  EXPECT_EQ(Refusal("[nvme]\n\ndirectores = [\"/x\"]\n"),
            "n.toml:3: nvme.directores: there is no such key; did you mean 'directories'?");
  EXPECT_THAT(Refusal("[drma]\nsize = 1\n"), HasSubstr("did you mean 'dram'?"));
  EXPECT_THAT(Refusal("frobnicate = 1\n"), HasSubstr("there are: socket, http"));
}

TEST(NodeConfigTest, KeysInTheWrongPlaceAreSentToTheRightOne) {
  EXPECT_THAT(Refusal("keep_available = 5\n"), HasSubstr("'keep_available' belongs in [dram]"));
  EXPECT_THAT(Refusal("size = 5\n"), HasSubstr("belongs in [dram] or in [nvme]"));
  EXPECT_THAT(Refusal("[nvme]\nsync = true\nhttp = \"off\"\n"),
              AllOf(StartsWith("n.toml:3: "), HasSubstr("above the first [section]")));
  EXPECT_THAT(Refusal("dram = \"5GiB\"\n"), HasSubstr("must be a table"));
}

TEST(NodeConfigTest, ImpossibleValuesAreRefusedWithTheReason) {
  EXPECT_THAT(Refusal("socket = \"node.sock\""), HasSubstr("absolute path"));
  EXPECT_THAT(Refusal("socket = \"/" + std::string(107, 'x') + "\""), HasSubstr("107 bytes"));
  for (const char* http :
       {"9470", "::1:9470", "host:1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "[127.0.0.1]:1",
        "127.0.0.1:-1", "127.0.0.1:1x", ""}) {
    EXPECT_THAT(Refusal("http = \"" + std::string(http) + "\""), HasSubstr("127.0.0.1:9470"));
  }
  EXPECT_THAT(Refusal("http = 9470"), HasSubstr("a text in quotes"));
  EXPECT_THAT(Refusal("worker_threads = 0"), HasSubstr("from 1 to 1024"));
  EXPECT_THAT(Refusal("policy = \"fifo\""), HasSubstr("not one of \"learned\", \"lru\""));
  EXPECT_THAT(Refusal("overdue = 0"), HasSubstr("at least 1s"));
  EXPECT_THAT(Refusal("drain_budget = \"soon\""), HasSubstr("'soon' is not a time"));
  EXPECT_THAT(Refusal("record = \"trace\""), HasSubstr("neither an absolute path nor \"off\""));
  EXPECT_THAT(Refusal("admin_token_sha256 = \"secret\""), HasSubstr("sha256sum"));
  const std::string nothing = Sha256Text(Sha256Of({}));
  EXPECT_THAT(Refusal("admin_token_sha256 = \"" + nothing + "\""), HasSubstr("empty token"));
  EXPECT_THAT(Refusal("encryption = \"yes\""), HasSubstr("\"auto\", \"on\", \"off\""));
  EXPECT_THAT(Refusal("encryption = false"), HasSubstr("a text in quotes"));
  for (const char* size : {"0%", "101%", "-5%", "%", "x%"}) {
    EXPECT_THAT(Refusal("[dram]\nsize = \"" + std::string(size) + "\""), HasSubstr("1% to 100%"));
  }
  EXPECT_THAT(Refusal("[dram]\nsize = \"1MiB\""), HasSubstr("at least 64MiB"));
  EXPECT_THAT(Refusal("[dram]\nsize = true"), HasSubstr("dram.size"));
  EXPECT_THAT(Refusal("[dram]\nkeep_available = \"some\""), HasSubstr("not a size"));
  EXPECT_THAT(Refusal("[nvme]\ndirectories = \"/mnt\""), HasSubstr("nor a list"));
  EXPECT_THAT(Refusal("[nvme]\ndirectories = [\"mnt\"]"), HasSubstr("nvme.directories[0]"));
  EXPECT_EQ(Refusal("[nvme]\nsync = true\ndirectories = [\"/a\", \"/b/../a\"]"),
            "n.toml:3: nvme.directories: /a is there twice; name each once");
  EXPECT_THAT(Refusal("[nvme]\nsize = \"1MiB\""), HasSubstr("at least 257MiB"));
  EXPECT_THAT(Refusal("[nvme]\ndirectories = [\"/a\", \"/b\"]\nsize = \"300MiB\""),
              AllOf(StartsWith("n.toml:3: nvme.size: "), HasSubstr("2 directories is too little")));
  EXPECT_THAT(Refusal("[nvme]\nengine = \"aio\""), HasSubstr("\"io_uring\", \"threads\""));
  EXPECT_THAT(Refusal("[nvme]\nsync = 1"), HasSubstr("true or false"));
  EXPECT_THAT(Refusal("[nvme]\nsegment = 5000000"), HasSubstr("multiple of 4KiB"));
  EXPECT_THAT(Refusal("[nvme]\nwrite_budget = 5"), HasSubstr("unlimited"));
  EXPECT_THAT(Refusal("[nvme]\nwritten_part = 0"), HasSubstr("from 0.01 to 1"));
  std::string many = "[nvme]\ndirectories = [";
  for (int i = 0; i < 17; ++i) many += "\"/d" + std::to_string(i) + "\", ";
  EXPECT_THAT(Refusal(many + "]"),
              AllOf(StartsWith("n.toml:2: nvme.directories: "), HasSubstr("at most 16")));
}

TEST(NodeConfigTest, KeysLieInADirectoryOrInATierThatKeepsThem) {
  const std::string redis = "[[tier]]\nname = \"near\"\nkind = \"redis\"\nendpoints = [\"h:1\"]\n";
  EXPECT_EQ(Parsed("key_store = \"/var/keys/\"").key_store, "/var/keys");
  EXPECT_EQ(Parsed("key_store = \"auto\"").key_store, "");
  EXPECT_THAT(Refusal("\nkey_store = \"near\"\n" + redis),
              AllOf(StartsWith("n.toml:2: key_store: "), HasSubstr("do not belong in Redis")));
  EXPECT_THAT(Refusal("key_store = \"far\"\n" + redis), HasSubstr("no [[tier]] of the name 'far'"));
  EXPECT_THAT(Refusal("master_key_file = \"SECRET\""),
              AllOf(HasSubstr("absolute path nor \"off\""), Not(HasSubstr("SECRET"))));
}

// ---- The command line ----

NodeConfig Overridden(const NodeOverrides& overrides, NodeConfig config = {}) {
  const Status status = ApplyOverrides(overrides, &config);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return config;
}

std::string OverrideRefusal(const NodeOverrides& overrides) {
  NodeConfig config;
  const Status status = ApplyOverrides(overrides, &config);
  EXPECT_EQ(status.code(), Code::kInvalid);
  return status.message();
}

TEST(NodeConfigTest, TheCommandLineCountsBeforeTheFile) {
  const ScratchDirectory scratch;
  const std::string path = scratch.Sub("node.toml");
  std::ofstream(path) << "socket = \"/from/file\"\nrecord = \"/from/file\"\nworker_threads = 9\n"
                         "[dram]\nsize = \"1GiB\"\n";
  const auto config = LoadNodeConfig({.config = path,
                                      .socket = "/from/line",
                                      .http = "127.0.0.1:0",
                                      .dram = "50%",
                                      .nvme = {"/mnt/a:1TiB", "/mnt/b"},
                                      .record = "off"});
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->socket, "/from/line");
  EXPECT_EQ(config->http->port, 0);
  EXPECT_TRUE(config->http_asked);
  EXPECT_EQ(config->dram, (SizeChoice{Kind::kPercent, 50}));
  EXPECT_THAT(*config->nvme_directories, ElementsAre("/mnt/a", "/mnt/b"));
  EXPECT_EQ(config->nvme, (SizeChoice{Kind::kBytes, 2048 * kGiB}));  // 1 TiB a drive.
  EXPECT_EQ(config->record_file, "");
  EXPECT_EQ(config->worker_threads, 9u);
}

TEST(NodeConfigTest, WithoutFileAndOptionsThereAreTheDefaults) {
  EXPECT_EQ(*LoadNodeConfig({}), NodeConfig{});
}

TEST(NodeConfigTest, AFileThatIsNotThereIsAnError) {
  const auto config = LoadNodeConfig({.config = "/nowhere/node.toml"});
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), HasSubstr("/nowhere/node.toml cannot be read"));
}

TEST(NodeConfigTest, RelativePathsOnTheCommandLineStartHere) {
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(Overridden({.socket = "a.sock"}).socket, here + "/a.sock");
  EXPECT_EQ(Overridden({.record = "./t"}).record_file, here + "/t");
  EXPECT_THAT(*Overridden({.nvme = {"x/"}}).nvme_directories, ElementsAre(here + "/x"));
}

TEST(NodeConfigTest, DrivesOnTheCommandLineReplaceThoseOfTheFile) {
  const NodeConfig file = Parsed("[nvme]\ndirectories = [\"/mnt/a\"]\nsize = \"5GiB\"\n");
  const NodeConfig other = Overridden({.nvme = {"/mnt/b"}}, file);
  EXPECT_THAT(*other.nvme_directories, ElementsAre("/mnt/b"));
  EXPECT_EQ(other.nvme, file.nvme);
  EXPECT_THAT(*Overridden({.nvme = {"off"}}, file).nvme_directories, IsEmpty());
}

TEST(NodeConfigTest, WrongOptionsAreNamed) {
  EXPECT_THAT(OverrideRefusal({.socket = ""}), StartsWith("--socket: "));
  EXPECT_THAT(OverrideRefusal({.socket = "/" + std::string(200, 'x')}), StartsWith("--socket: "));
  EXPECT_THAT(OverrideRefusal({.http = "on"}), StartsWith("--http: 'on' is not an address"));
  EXPECT_THAT(OverrideRefusal({.dram = "lots"}), StartsWith("--dram: 'lots' is not a size"));
  EXPECT_THAT(OverrideRefusal({.dram = "1MiB"}), HasSubstr("at least 64MiB"));
  EXPECT_THAT(OverrideRefusal({.record = ""}), StartsWith("--record: "));
  EXPECT_THAT(OverrideRefusal({.nvme = {""}}), StartsWith("--nvme: "));
  EXPECT_THAT(OverrideRefusal({.nvme = {":5GiB"}}), HasSubstr("names no directory"));
  EXPECT_THAT(OverrideRefusal({.nvme = {"/a:lots"}}), HasSubstr("'lots' is not a size"));
  EXPECT_THAT(OverrideRefusal({.nvme = {"/a:1MiB"}}), HasSubstr("at least 257MiB"));
  EXPECT_THAT(OverrideRefusal({.nvme = {"/a:1GiB", "/b:2GiB"}}), HasSubstr("the same share"));
  EXPECT_THAT(OverrideRefusal({.nvme = {"/a", "/a"}}), HasSubstr("there twice"));
  EXPECT_THAT(OverrideRefusal({.nvme = {"/a", "off"}}), HasSubstr("stands alone"));
}

TEST(NodeConfigTest, EveryOptionHasOneTargetAndAHelpText) {
  std::vector<std::string_view> names;
  for (const NodeOption& option : NodeOptions()) {
    names.push_back(option.name);
    EXPECT_NE(option.once == nullptr, option.repeated == nullptr) << option.name;
    EXPECT_FALSE(option.help.empty());
    EXPECT_FALSE(option.value.empty());
  }
  EXPECT_THAT(names, ElementsAre("--config", "--socket", "--http", "--dram", "--nvme", "--record",
                                 "--log-level", "--log-format"));
}

// ---- Reload ----

TEST(NodeConfigTest, AReloadSaysWhatItAppliesAndWhatMustWait) {
  NodeConfig next;
  EXPECT_THAT(CompareForReload(NodeConfig{}, next).applied, IsEmpty());
  next.drain_seconds = 1;
  next.record_file = "/t";
  next.admin_token_sha256 = Sha256Digest{};
  next.socket = "/s";
  next.dram = {Kind::kPercent, 5};
  next.nvme_sync = true;
  const ReloadChanges changes = CompareForReload(NodeConfig{}, next);
  EXPECT_THAT(changes.applied, ElementsAre("drain_budget", "record", "admin_token_sha256"));
  EXPECT_THAT(changes.need_restart, ElementsAre("socket", "dram.size", "nvme.sync"));
}

// ---- etc/aquifer.toml ----

std::string Example() { return ReadExampleFile(AQUIFER_SOURCE_DIR "/etc/aquifer.toml"); }

TEST(NodeConfigTest, TheExampleChangesNothing) { EXPECT_EQ(Parsed(Example()), NodeConfig{}); }

TEST(NodeConfigTest, TheExampleShowsTheDefaults) {
  NodeConfig config = Parsed(WithDefaultsWrittenOut(Example()));
  EXPECT_TRUE(config.http_asked);  // It is written out now.
  config.http_asked = false;
  const std::vector<TierConfig> tiers = std::exchange(config.tiers, {});
  EXPECT_EQ(config, NodeConfig{});
  // Of the tiers, all but what has no default.
  const std::vector<TierConfig> least = Parsed(R"(
[[tier]]
name = "shared"
kind = "posix"
directory = "/mnt/shared/aquifer"
size = "10TB"
[[tier]]
name = "near"
kind = "redis"
endpoints = ["10.0.0.7:6379"]
[[tier]]
name = "far"
kind = "object"
bucket = "kv-cache"
)")
                                            .tiers;
  EXPECT_EQ(tiers, least);
}

TEST(NodeConfigTest, TheExampleShowsEveryKeyOnceAndWhichCanBeReloaded) {
  std::vector<std::string> shown;
  std::vector<std::string> reloadable;
  for (const ExampleSetting& setting : SettingsIn(Example())) {
    // What several kinds of tiers have stands with each.
    const bool again = std::find(shown.begin(), shown.end(), setting.name) != shown.end();
    EXPECT_TRUE(!again || setting.name.starts_with("tier.")) << setting.name;
    if (!again) shown.push_back(setting.name);
    if (setting.prose.find("(reload") != std::string::npos) reloadable.push_back(setting.name);
  }
  EXPECT_EQ(shown, NodeConfigKeys());
  NodeConfig next;
  next.drain_seconds = 1;
  next.record_file = next.tenants_file = next.master_key_file = "/x";
  next.admin_token_sha256 = Sha256Digest{};
  next.log_level = LogLevel::kError;
  next.log_format = LogFormat::kJson;
  EXPECT_EQ(CompareForReload(NodeConfig{}, next).applied, reloadable);
  NodeConfig running;
  CopyReloadable(next, &running);
  EXPECT_EQ(running, next);
}

}  // namespace
}  // namespace aquifer
