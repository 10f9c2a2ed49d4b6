// Runs replicas of the reference engine and their node as processes of their own. They are killed
// in the middle of a conversation, again and again, and give no wrong answer.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "reference/model/directory_text.h"
#include "testing/cache/served_node.h"
#include "testing/child_process.h"
#include "testing/node/http_peer.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A node and two replicas, any of which may be killed.
class Fleet {
 public:
  Fleet() {
    StartNode();
    for (size_t replica = 0; replica < replicas_.size(); ++replica) StartReplica(replica);
  }

  void KillNode() { node_->Kill(); }
  void KillReplica(size_t replica) { replicas_[replica].process->Kill(); }

  void StartNode() {
    if (node_ != nullptr) node_->Wait();  // The old node was killed, and may still be listening.
    node_ = std::make_unique<ServedNode>(
        AQUIFER_PROGRAM_PATH,
        std::vector<std::string>{"--socket", scratch_.Sub("node.sock"), "--dram", "128MiB",
                                 "--nvme", scratch_.Sub("nvme") + ":512MiB", "--http", "off"});
    EXPECT_TRUE(node_->AwaitReady()) << node_->said();
  }

  void StartReplica(size_t replica) {
    replicas_[replica].process = ChildProcess::StartCommand(
        {"setpriv", "--pdeathsig", "KILL", AQUIFER_PROGRAM_PATH, "reference", "--port", "0",
         "--socket", scratch_.Sub("node.sock"), "--requests", "2"});
    const auto line = replicas_[replica].process->ReadUntil("serving on http://", seconds(60));
    ASSERT_TRUE(line.has_value());
    const std::string address = line->substr(line->rfind(':') + 1);
    replicas_[replica].port = static_cast<uint16_t>(std::stoul(address));
  }

  uint16_t port(size_t replica) const { return replicas_[replica].port; }

 private:
  struct Replica {
    std::unique_ptr<ChildProcess> process;
    uint16_t port = 0;
  };

  ScratchDirectory scratch_;
  std::unique_ptr<ServedNode> node_;
  std::array<Replica, 2> replicas_;
};

std::string ChatText(const json& messages) {
  const json body = {{"model", "constructed"},
                     {"temperature", 0},
                     {"max_tokens", 100},
                     {"user", "a chat"},
                     {"messages", messages}};
  return PostText("/v1/chat/completions", body.dump());
}

struct Answered {
  std::string text;
  size_t recalled = 0;  // In tokens.
};

// Returns nothing if the replica died.
std::optional<Answered> Receive(HttpPeer* peer) {
  const auto answer = peer->Receive();
  if (!answer) return std::nullopt;
  EXPECT_EQ(answer->status, 200) << answer->body;
  const json body = json::parse(answer->body);
  const json own = body["usage"]["aquifer"];
  return Answered{.text = body["choices"][0]["message"]["content"],
                  .recalled = own["dram_tokens"].get<size_t>() + own["nvme_tokens"].get<size_t>()};
}

std::optional<Answered> Ask(uint16_t port, const json& messages) {
  HttpPeer peer(port);
  return peer.Send(ChatText(messages)) ? Receive(&peer) : std::nullopt;
}

TEST(ReferenceTest, EveryAnswerIsRightWhicheverProcessIsKilled) {
  const size_t kills = ByTestLevel<size_t>(4, 8, 50);
  constexpr size_t kNode = 2;
  SeededRandom random(11);
  Fleet fleet;
  reference::DirectoryText book(ByTestLevel<size_t>(1500, 3000, 6000), 12);
  json messages = json::array();
  size_t recalled = 0;
  for (size_t turn = 0; turn < kills; ++turn) {
    const reference::DirectoryQuestion question = book.Ask(1 + random.Below(4));
    messages.push_back(
        {{"role", "user"}, {"content", turn == 0 ? book.text() + question.text : question.text}});
    const size_t asked = random.Below(2);
    const size_t victim = random.Below(3);
    HttpPeer peer(fleet.port(asked));
    ASSERT_TRUE(peer.Send(ChatText(messages)));
    std::this_thread::sleep_for(milliseconds(random.Below(60)));
    victim == kNode ? fleet.KillNode() : fleet.KillReplica(victim);
    auto answer = Receive(&peer);
    if (victim == asked && !answer) answer = Ask(fleet.port(1 - asked), messages);
    ASSERT_TRUE(answer.has_value()) << "turn " << turn << ", victim " << victim;
    EXPECT_EQ(answer->text, question.answer) << "turn " << turn << ", victim " << victim;
    recalled += answer->recalled;
    messages.push_back({{"role", "assistant"}, {"content", answer->text}});
    victim == kNode ? fleet.StartNode() : fleet.StartReplica(victim);
  }
  // Without a cache, right answers would prove nothing.
  messages.erase(messages.size() - 1);
  for (size_t tries = 0; recalled == 0 && tries < 20; ++tries) {
    fleet.KillReplica(0);
    fleet.StartReplica(0);
    for (size_t replica = 2; replica-- > 0;) {
      const auto answer = Ask(fleet.port(replica), messages);
      ASSERT_TRUE(answer.has_value());
      recalled += answer->recalled;
    }
  }
  EXPECT_GT(recalled, 0u);
  RecordProperty("recalled_tokens", std::to_string(recalled));
}

}  // namespace
}  // namespace aquifer
