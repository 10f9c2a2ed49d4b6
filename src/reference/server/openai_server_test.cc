// Tests the server with a real engine and clients that behave badly. Nothing that they send ends
// the server, and none of them keeps pages or a connection for ever.
#include "reference/server/openai_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "testing/node/http_peer.h"

namespace aquifer::reference {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Returns false if it did not hold within a minute.
bool Eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

class OpenAiServerTest : public testing::Test {
 protected:
  void Start(const HttpLimits& limits = OpenAiOptions{}.limits) {
    const ModelShape shape{.vocabulary = 258,
                           .hidden = 16,
                           .intermediate = 16,
                           .layers = 1,
                           .heads = 1,
                           .kv_heads = 1,
                           .head_dim = 8,
                           .max_positions = 1 << 16};
    auto engine = StartEngine({}, *RandomWeights(shape, 1), tokenizer_.get());
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = *std::move(engine);
    auto server =
        StartOpenAiServer({.model = "m", .limits = limits}, engine_.get(), tokenizer_.get());
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
  }

  static std::string Completion(size_t max_tokens) {
    return PostText(
        "/v1/completions",
        json{{"model", "m"}, {"prompt", "abc"}, {"temperature", 0}, {"max_tokens", max_tokens}}
            .dump());
  }

  static void ExpectError(const std::optional<HeardResponse>& answer, int status) {
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status, status) << answer->body;
    const json body = json::parse(answer->body, nullptr, false);
    ASSERT_TRUE(body.contains("error")) << answer->body;
    EXPECT_EQ(body["error"]["type"], "invalid_request_error");
  }

  std::unique_ptr<Tokenizer> tokenizer_ = NewByteTokenizer();
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<OpenAiServer> server_;
};

TEST_F(OpenAiServerTest, AMillionBracketsAreRefused) {
  Start();
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  HttpPeer peer(server_->port());
  for (const std::string& body : {R"({"model":"m","prompt":"x","stop":)" + deep + "}",
                                  R"({"model":"m","prompt":)" + deep + "}", deep}) {
    ASSERT_TRUE(peer.Send(PostText("/v1/completions", body)));
    ExpectError(peer.Receive(), 400);
  }
  ASSERT_TRUE(peer.Send(
      PostText("/v1/chat/completions",
               R"({"model":"m","messages":[{"role":"user","content":[{"text":"x","type":)" + deep +
                   "}]}]}")));
  ExpectError(peer.Receive(), 400);
}

TEST_F(OpenAiServerTest, BytesThatAreNoHttpAreRefusedAlsoBehindARequest) {
  Start();
  HttpPeer peer(server_->port());
  ASSERT_TRUE(peer.Send(GetText("/health")));
  ASSERT_TRUE(peer.Receive().has_value());
  ASSERT_TRUE(peer.Send("this is no HTTP\r\n\r\n"));
  ExpectError(peer.Receive(), 400);
  EXPECT_TRUE(peer.WaitForEnd());
}

TEST_F(OpenAiServerTest, WhoSendsTooMuchHearsWhy) {
  Start({.max_body_bytes = 1 << 20});
  HttpPeer peer(server_->port());
  peer.Send(PostText("/v1/completions", std::string(2 << 20, ' ')));
  ExpectError(peer.Receive(), 413);
  HttpPeer other(server_->port());
  other.Send(GetText("/health", "X-Long: " + std::string(32 << 10, 'x') + "\r\n"));
  ExpectError(other.Receive(), 431);
}

TEST_F(OpenAiServerTest, AClientThatHangsUpFreesItsPagesWhateverElseItHasSent) {
  Start();
  uint64_t cancelled = 0;
  for (const std::string& more : {std::string(), std::string("\r\n"), GetText("/health")}) {
    for (const bool at_once : {true, false}) {
      {
        HttpPeer peer(server_->port());
        ASSERT_TRUE(peer.Send(Completion(60'000) + (at_once ? more : "")));
        ASSERT_TRUE(Eventually([&] { return engine_->figures().running == 1; }));
        ASSERT_TRUE(at_once || peer.Send(more));
      }
      ++cancelled;
      EXPECT_TRUE(Eventually([&] { return engine_->figures().cancelled == cancelled; }));
      EXPECT_TRUE(Eventually([&] { return engine_->figures().pages_in_use == 0; }));
    }
  }
}

TEST_F(OpenAiServerTest, WhoNeverStopsSendingIsHungUpOn) {
  Start();
  HttpPeer peer(server_->port());
  ASSERT_TRUE(peer.Send(Completion(60'000)));
  const std::string much(1 << 20, 'x');
  EXPECT_TRUE(Eventually([&] { return !peer.Send(much); }));
  EXPECT_TRUE(Eventually([&] { return engine_->figures().cancelled == 1; }));
}

TEST_F(OpenAiServerTest, RequestsThatAreSentTogetherAreAnsweredInTheirOrder) {
  Start();
  HttpPeer peer(server_->port());
  ASSERT_TRUE(peer.Send(Completion(5) + GetText("/health") + GetText("/v1/models")));
  for (const char* text : {"text_completion", "ok", "\"list\""}) {
    const auto answer = peer.Receive();
    ASSERT_TRUE(answer.has_value()) << text;
    EXPECT_THAT(answer->body, HasSubstr(text));
  }
}

TEST_F(OpenAiServerTest, WhoAsksForTheHeadAloneGetsNoBody) {
  Start();
  HttpPeer peer(server_->port());
  ASSERT_TRUE(peer.Send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n" + GetText("/health")));
  const auto answer = peer.Receive();  // Takes the following bytes for the body.
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->body, StartsWith("HTTP/1.1 200"));
}

TEST_F(OpenAiServerTest, WhoAsksWhetherToSendTheBodyIsTold) {
  Start();
  HttpPeer peer(server_->port());
  const std::string request =
      PostText("/v1/completions", json{{"model", "m"}, {"prompt", "abc"}, {"max_tokens", 1}}.dump(),
               "Expect: 100-continue\r\n");
  const size_t body = request.find("\r\n\r\n") + 4;
  ASSERT_TRUE(peer.Send(request.substr(0, body)));
  EXPECT_EQ(peer.Receive()->status, 100);
  ASSERT_TRUE(peer.Send(request.substr(body)));
  EXPECT_EQ(peer.Receive()->status, 200);
}

TEST_F(OpenAiServerTest, AClientOfHttp10GetsAStreamThatEndsWithItsConnection) {
  Start();
  HttpPeer peer(server_->port());
  std::string request =
      PostText("/v1/completions",
               json{{"model", "m"}, {"prompt", "abc"}, {"max_tokens", 2}, {"stream", true}}.dump());
  request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
  ASSERT_TRUE(peer.Send(request));
  const std::string answer = peer.ReceiveAll();
  EXPECT_THAT(answer, AllOf(HasSubstr("text/event-stream"), Not(HasSubstr("Transfer-Encoding"))));
  EXPECT_THAT(answer, EndsWith("}\n\ndata: [DONE]\n\n"));
}

TEST_F(OpenAiServerTest, AConnectionOnWhichNothingMoreComesIsClosed) {
  Start({.idle = std::chrono::milliseconds(100)});
  HttpPeer peer(server_->port());
  ASSERT_TRUE(peer.Send(GetText("/health")));
  ASSERT_TRUE(peer.Receive().has_value());
  EXPECT_TRUE(peer.WaitForEnd());
}

}  // namespace
}  // namespace aquifer::reference
