// The client against the server, and against servers that are wrong.
#include "net/http/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "net/http/http_server.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Says from which peer a request came, and sends bodies back.
class Mirror final : public HttpHandler {
 public:
  bool TakesPieces(const HttpRequest& request) override { return request.path == "/pieces"; }
  HttpResponse Refusal(unsigned status, std::string_view, std::string_view message) override {
    return {.status = status, .body = std::string(message)};
  }
  milliseconds Handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) override {
    if (request.path == "/never") return milliseconds(0);
    if (request.path == "/pieces") {
      answer->Begin({.content_type = "text/plain"});
      PassOn(answer);
      return milliseconds(0);
    }
    answer->Reply({.status = request.path == "/missing" ? 404u : 200u,
                   .content_type = "text/plain",
                   .body = request.body.empty() ? request.peer : request.body});
    return milliseconds(0);
  }

 private:
  void PassOn(const std::shared_ptr<HttpAnswer>& answer) {
    answer->ReadBody([this, answer](Result<std::string> piece) {
      if (!piece.ok()) return;
      if (piece->empty()) return answer->End();
      answer->Send(*std::move(piece));
      PassOn(answer);
    });
  }
};

class HttpClientTest : public testing::Test {
 protected:
  void Start(uint16_t port = 0) {
    auto server = StartHttpServer({.address = HttpAddress{.host = "127.0.0.1", .port = port},
                                   .socket = scratch_.Sub("http.sock")},
                                  &handler_);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
    if (port != 0) return;
    client_ = HttpClient({.host = "127.0.0.1", .port = std::to_string(server_->address()->port)});
  }

  ScratchDirectory scratch_;
  Mirror handler_;
  std::unique_ptr<HttpServer> server_;
  HttpClient client_{HttpServerPlace{}};
};

TEST_F(HttpClientTest, AConnectionIsKeptForTheNextRequest) {
  Start();
  const auto first = client_.Ask({.target = "/who"});
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(first->status, 200u);
  EXPECT_EQ(first->content_type, "text/plain");
  EXPECT_THAT(first->body, HasSubstr("127.0.0.1:"));
  EXPECT_EQ(client_.Ask({.target = "/who"})->body, first->body);  // The same port of ours.
  EXPECT_EQ(client_.Ask({.target = "/missing"})->status, 404u);
}

TEST_F(HttpClientTest, AConnectionThatTheServerHasClosedIsMadeAnew) {
  Start();
  const auto first = client_.Ask({.target = "/who"});
  ASSERT_TRUE(first.ok());
  const uint16_t port = server_->address()->port;
  server_.reset();
  Start(port);
  const auto second = client_.Ask({.target = "/who"});
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_NE(second->body, first->body);
}

TEST_F(HttpClientTest, AUnixSocketIsAskedAlike) {
  Start();
  HttpClient local({.socket = scratch_.Sub("http.sock")});
  EXPECT_THAT(local.Ask({.target = "/who"})->body, HasSubstr("process "));
  EXPECT_EQ(local.Ask({.method = "POST", .target = "/x", .body = "hello"})->body, "hello");
}

TEST_F(HttpClientTest, BodiesPassPieceByPieceInBothDirections) {
  Start();
  int left = 20;
  size_t bytes = 0;
  const auto received = client_.Ask({.method = "POST",
                                     .target = "/pieces",
                                     .next_piece = [&]() -> std::optional<std::string> {
                                       if (left-- == 0) return std::nullopt;
                                       return std::string(1000, 'p');
                                     },
                                     .on_piece =
                                         [&](std::string_view piece) {
                                           bytes += piece.size();
                                           return true;
                                         }});
  ASSERT_TRUE(received.ok()) << received.status().ToString();
  EXPECT_EQ(bytes, 20'000u);
  EXPECT_EQ(received->body, "");
}

TEST_F(HttpClientTest, AnAnswerThatDoesNotComeIsLate) {
  Start();
  const auto received = client_.Ask({.target = "/never", .limit = milliseconds(50)});
  EXPECT_EQ(received.status().code(), Code::kLate);
}

TEST_F(HttpClientTest, AnAnswerThatIsTooLongIsRefused) {
  Start();
  const auto received = client_.Ask(
      {.method = "POST", .target = "/x", .body = std::string(5000, 'x'), .max_answer_bytes = 1000});
  EXPECT_EQ(received.status().code(), Code::kUnavailable);
  EXPECT_THAT(received.status().message(), HasSubstr("more than 1000 bytes"));
}

TEST_F(HttpClientTest, WhereNobodyListensNobodyIsFound) {
  Start();
  server_.reset();
  EXPECT_EQ(client_.Ask({.target = "/who"}).status().code(), Code::kNotFound);
  HttpClient local({.socket = scratch_.Sub("http.sock")});
  EXPECT_EQ(local.Ask({.target = "/who"}).status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace aquifer
