// ./run as a person uses it: it starts a node, shows that it lives, and ends it when told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "testing/chain.h"
#include "testing/child_process.h"
#include "testing/scratch_directory.h"
#include "testing/test_engine.h"

namespace aquifer {
namespace {

using std::chrono::seconds;

class RunScript : public testing::Test {
 protected:
  // It takes its node along when this process dies.
  std::unique_ptr<ChildProcess> Start(const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {"setpriv",
                                      "--pdeathsig",
                                      "TERM",
                                      "env",
                                      "AQUIFER_PROGRAM=" AQUIFER_PROGRAM_PATH,
                                      AQUIFER_SOURCE_DIR "/run"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return ChildProcess::StartCommand(words);
  }
  std::unique_ptr<ChildProcess> StartNode() {
    return Start({"--socket", socket_, "--dram", "128MiB", "--nvme", scratch_.Sub("nvme") + ":1GiB",
                  "--http", "off"});
  }

  ScratchDirectory scratch_;
  const std::string socket_ = scratch_.Sub("node.sock");
};

TEST_F(RunScript, ShowsALivingNodeAndEndsItWithADrain) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto run = StartNode();
    ASSERT_TRUE(run->ReadUntil("ready on " + socket_, seconds(60)).has_value());
    EXPECT_TRUE(run->ReadUntil("stored     8 blocks", seconds(60)).has_value());
    EXPECT_TRUE(run->ReadUntil("verified   every byte", seconds(60)).has_value());
    EXPECT_TRUE(run->ReadUntil("ctl status --socket " + socket_, seconds(60)).has_value());
    EXPECT_TRUE(run->ReadUntil("demo --socket " + socket_, seconds(60)).has_value());
    const std::string call = "Connect({.socket = \"" + socket_ + "\"}, {})";  // As below.
    EXPECT_TRUE(run->ReadUntil(call, seconds(60)).has_value());
    {
      // It stays up, and nothing of the demonstration is left.
      auto cache = Connect({.socket = socket_}, {});
      ASSERT_TRUE(cache.ok()) << cache.status().ToString();
      TestEngine engine(cache->get(), LayoutOfBytes(1 << 16));
      EXPECT_EQ(engine.StatsOf(TierKind::kDram).tenant_bytes, 0u);
      const Chain chain(engine.layout(), {.seed = 1, .blocks = 4});
      EXPECT_EQ(engine.Store(chain), 4u);
      EXPECT_TRUE(engine.Evict(chain)->status.ok());
    }
    run->Signal(signal);
    EXPECT_TRUE(run->ReadUntil("drained", seconds(60)).has_value());
    EXPECT_EQ(run->Wait(), 0);
    EXPECT_FALSE(std::filesystem::exists(socket_));
  }
}

TEST_F(RunScript, ANodeThatCannotStartSaysWhyAndEndsIt) {
  const auto run = Start({"--socket", socket_, "--dram", "lots"});
  EXPECT_TRUE(run->ReadUntil("'lots'", seconds(60)).has_value());
  EXPECT_EQ(run->Wait(), 2);
}

TEST_F(RunScript, TheDemonstrationNeedsANode) {
  const auto demo = ChildProcess::StartCommand({AQUIFER_PROGRAM_PATH, "demo", "--socket", socket_});
  EXPECT_TRUE(demo->ReadUntil("aquifer demo: ", seconds(60)).has_value());
  EXPECT_EQ(demo->Wait(), 1);
}

}  // namespace
}  // namespace aquifer
