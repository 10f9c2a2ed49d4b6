// A node's life: what starts it, what a reload changes, and how it ends.
#include "node/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "aquifer/cache.h"
#include "base/descriptor.h"
#include "testing/node/http_peer.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class NodeProcessTest : public testing::Test {
 protected:
  NodeProcessTest() {
    overrides_.config = scratch_.Sub("aquifer.toml");
    overrides_.socket = scratch_.Sub("node.sock");
    overrides_.http = "off";
    overrides_.dram = "64MiB";
    overrides_.nvme = {"off"};
    host_ = ThisHost();
    host_.state_directory = scratch_.Sub("state");
    WriteConfig("");
  }

  void WriteConfig(const std::string& text) {
    std::ofstream(scratch_.Sub("aquifer.toml"), std::ios::trunc) << text;
  }
  std::string WriteClosed(const std::string& name, const std::string& text) {
    std::ofstream(scratch_.Sub(name), std::ios::trunc) << text;
    EXPECT_EQ(::chmod(scratch_.Sub(name).c_str(), 0600), 0);
    return scratch_.Sub(name);
  }

  Status Start() {
    const Result<NodeConfig> config = LoadNodeConfig(overrides_);
    AQ_RETURN_IF_ERROR(config.status());
    Result<NodePlan> plan = PlanNode(*config, host_);
    AQ_RETURN_IF_ERROR(plan.status());
    process_ = std::make_unique<NodeProcess>(
        NodeProcessOptions{.overrides = overrides_, .host = host_, .version = "1", .log = &log_},
        *std::move(plan), SecretEnvironment::Take());
    return process_->Start();
  }

  // All that was logged so far.
  std::string Log() {
    // The log's thread writes in its own time.
    const std::string mark = "mark " + std::to_string(++marks_);
    log_.Write("error: " + mark);
    std::string text;
    for (int i = 0; i < 5000 && text.find(mark + "\n") == std::string::npos; ++i) {
      ::usleep(1000);
      std::stringstream all;
      all << std::ifstream(scratch_.Sub("log")).rdbuf();
      text = all.str();
    }
    return text;
  }

  HeardResponse Ask(const std::string& bytes) const {
    HttpPeer peer(scratch_.Sub("node.admin.sock"));
    peer.Send(bytes);
    return peer.Receive().value_or(HeardResponse{});
  }

  const ScratchDirectory scratch_;
  const Descriptor file_{::open(scratch_.Sub("log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600)};
  NodeLog log_{{.descriptor = file_.get()}, SystemClock()};
  int marks_ = 0;
  NodeOverrides overrides_;
  NodeHost host_;
  std::unique_ptr<NodeProcess> process_;
};

TEST_F(NodeProcessTest, ServesClientsAndItsAdministrator) {
  ASSERT_TRUE(Start().ok());
  const auto cache = Connect({.socket = scratch_.Sub("node.sock")}, {});
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  EXPECT_EQ(Ask(GetText("/readyz")).status, 200);
  EXPECT_THAT(Log(), AllOf(HasSubstr("This node uses\n  config "),
                           HasSubstr("\n  encryption   off, because there is no master key")));
}

TEST_F(NodeProcessTest, AReloadChangesWhatItCanAndNamesWhatNeedsARestart) {
  ASSERT_TRUE(Start().ok());
  WriteConfig("drain_budget = 1\noverdue = \"7s\"\nlog_level = \"warning\"\n");
  EXPECT_TRUE(process_->Reload().ok());
  log_.Set(LogLevel::kInfo, LogFormat::kText);
  EXPECT_THAT(Log(), Not(HasSubstr("reload: done")));  // It is below the new level.
  WriteConfig("overdue = \"7s\"\n");
  EXPECT_TRUE(process_->Reload().ok());
  EXPECT_THAT(Log(), AllOf(HasSubstr("reload: done"), HasSubstr("reload: drain_budget is changed"),
                           HasSubstr("reload: overdue differs; restart the node")));
}

TEST_F(NodeProcessTest, AReloadWithMistakesChangesNothingAndTellsAllOfThem) {
  ASSERT_TRUE(Start().ok());
  WriteConfig("drain_budget = \"no\"\nlog_format = \"xml\"\nlog_level = \"error\"\n");
  EXPECT_EQ(process_->Reload().code(), Code::kInvalid);
  EXPECT_THAT(Log(), AllOf(HasSubstr("error: reload: nothing was changed: "),
                           HasSubstr("aquifer.toml:1: drain_budget: "),
                           HasSubstr("aquifer.toml:2: log_format: ")));
  EXPECT_EQ(Ask(GetText("/readyz")).status, 200);
}

TEST_F(NodeProcessTest, AReloadDoesNotTurnEncryptionOn) {
  ASSERT_TRUE(Start().ok());
  WriteConfig("master_key_file = \"" + WriteClosed("master", std::string(64, 'c')) + "\"\n");
  const Status status = process_->Reload();
  EXPECT_THAT(status.message(), HasSubstr("restart it to change that"));
}

// A posix tier makes its own directory, and the keys lie in there: neither is there yet.
TEST_F(NodeProcessTest, AFirstStartWithANewKeyStoreRaisesNoAlarm) {
  WriteConfig("master_key_file = \"" + WriteClosed("master", std::string(64, 'c')) +
              "\"\n[[tier]]\nname = \"shared\"\nkind = \"posix\"\nsize = \"1GiB\"\ndirectory = \"" +
              scratch_.Sub("shared") + "\"\n");
  ASSERT_TRUE(Start().ok());
  // Until the tenant's key is made.
  std::string keys;
  for (int i = 0; i < 2000 && keys.find("\"known\":1") == std::string::npos; ++i) {
    keys = Ask(GetText("/v1/keys")).body;
    ::usleep(5000);
  }
  EXPECT_THAT(keys, HasSubstr("\"known\":1"));
  EXPECT_THAT(Log(), Not(HasSubstr("data keys can")));
  EXPECT_THAT(Log(), HasSubstr("\n  encryption   on, with the master key in "));
}

TEST_F(NodeProcessTest, AStartThatCannotBeSaysWhy) {
  WriteConfig("tenants = \"/nowhere/tenants.toml\"\n");
  const Status status = Start();
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("aquifer.toml:1: tenants: "),
                                      HasSubstr("/nowhere/tenants.toml cannot be read")));
}

TEST_F(NodeProcessTest, ADrainedNodeStoresNothingAndSaysWhatIsLost) {
  ASSERT_TRUE(Start().ok());
  const auto cache = Connect({.socket = scratch_.Sub("node.sock")}, {});
  ASSERT_TRUE(cache.ok());
  process_->Drain();
  EXPECT_EQ(Ask(GetText("/readyz")).status, 503);
  EXPECT_THAT(Log(), AllOf(HasSubstr("draining, for at most 20 s"),
                           HasSubstr("there is no NVMe, so nothing outlives this process")));
}

}  // namespace
}  // namespace aquifer
