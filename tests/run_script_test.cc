// Runs ./run as a person does: it starts a node and engines, shows their work, and ends them when
// told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/child_process.h"
#include "testing/node/http_peer.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using std::chrono::seconds;

class RunScript : public testing::Test {
 protected:
  // The script ends its node when this process dies.
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
    return Start({"--document", "1024", "--socket", socket_, "--dram", "128MiB", "--nvme",
                  scratch_.Sub("nvme") + ":1GiB", "--http", "off"});
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
    EXPECT_TRUE(run->ReadUntil("after the crash", seconds(120)).has_value());
    const auto curl = run->ReadUntil("curl -s http://127.0.0.1:", seconds(120));
    ASSERT_TRUE(curl.has_value());
    const auto port = static_cast<uint16_t>(std::stoul(curl->substr(curl->find("0.1:") + 4)));
    EXPECT_TRUE(run->ReadUntil("ctl status --socket " + socket_, seconds(60)).has_value());
    EXPECT_TRUE(run->ReadUntil("demo --socket " + socket_, seconds(60)).has_value());
    const std::string call = "Connect({.socket = \"" + socket_ + "\"}, {})";  // As below.
    EXPECT_TRUE(run->ReadUntil(call, seconds(60)).has_value());
    {
      // Both the node and the engine stay up.
      auto cache = Connect({.socket = socket_}, {});
      ASSERT_TRUE(cache.ok()) << cache.status().ToString();
      TestEngine engine(cache->get(), LayoutOfBytes(1 << 16));
      const Chain chain(engine.layout(), {.seed = 1, .blocks = 4});
      EXPECT_EQ(engine.Store(chain), 4u);
      EXPECT_TRUE(engine.Evict(chain)->status.ok());
      HttpPeer peer(port);
      ASSERT_TRUE(
          peer.Send(PostText("/v1/completions", R"({"model": "constructed", "temperature": 0,
              "prompt": "directory Bababa 417 ; Bababe 88 ; ask Bababe . Bababe"})")));
      const auto answer = peer.Receive();
      ASSERT_TRUE(answer.has_value());
      EXPECT_THAT(answer->body, testing::HasSubstr(R"("text":" 88 .")"));
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
