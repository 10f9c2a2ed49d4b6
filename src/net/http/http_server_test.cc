// The HTTP server against clients that are slow, loud, many or wrong.
#include "net/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "testing/node/http_peer.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

HttpResponse Refused(unsigned status, std::string_view message) {
  return {.status = status, .body = std::string(message)};
}

// Answers with what it was asked for.
class Echo final : public HttpHandler {
 public:
  std::optional<HttpResponse> Screen(const HttpRequest& request) override {
    if (request.path == "/refused") return Refused(403, "no");
    return std::nullopt;
  }
  bool TakesPieces(const HttpRequest& request) override { return request.path == "/pieces"; }
  HttpResponse Refusal(unsigned status, std::string_view, std::string_view message) override {
    return Refused(status, message);
  }

  milliseconds Handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) override {
    if (request.path == "/never" || request.path == "/wait") {
      const MutexLock lock(&mutex_);
      kept_.push_back(std::move(answer));
      return request.path == "/wait" ? std::chrono::minutes(1) : milliseconds(50);
    }
    if (request.path == "/pieces") {
      answer->OnHangUp([this] { hung_up_ = true; });
      answer->Begin({.content_type = "text/plain"});
      PassOn(answer);
      return milliseconds(0);
    }
    if (request.path == "/flood") {
      answer->OnHangUp([this] { hung_up_ = true; });
      answer->Begin({.content_type = "text/plain"});
      for (int i = 0; i < 100; ++i) answer->Send(std::string(1 << 20, 'x'));
      return milliseconds(0);
    }
    HttpResponse response;
    response.body = request.method + " " + request.path + " " + request.body;
    if (request.path == "/large") response.body.assign(64 << 20, 'x');
    response.body += request.on_socket ? " socket" : "";
    answer->Reply(std::move(response));
    return std::chrono::seconds(30);
  }

  size_t kept() {
    const MutexLock lock(&mutex_);
    return kept_.size();
  }
  std::vector<std::shared_ptr<HttpAnswer>> Kept() {
    const MutexLock lock(&mutex_);
    return std::exchange(kept_, {});
  }
  bool hung_up() const { return hung_up_; }

 private:
  // Sends each piece back as it comes.
  void PassOn(const std::shared_ptr<HttpAnswer>& answer) {
    answer->ReadBody([this, answer](Result<std::string> piece) {
      if (!piece.ok()) return;
      if (piece->empty()) return answer->End();
      answer->Send(*std::move(piece));
      PassOn(answer);
    });
  }

  Mutex mutex_;
  std::vector<std::shared_ptr<HttpAnswer>> kept_ AQ_GUARDED_BY(mutex_);
  std::atomic<bool> hung_up_ = false;
};

class HttpServerTest : public testing::Test {
 protected:
  void Start(const HttpLimits& limits = {}) {
    auto server = StartHttpServer({.address = HttpAddress{.host = "127.0.0.1", .port = 0},
                                   .socket = socket(),
                                   .limits = limits},
                                  &handler_);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  uint16_t port() const { return server_->address()->port; }
  std::string socket() const { return scratch_.path() + "/node.admin.sock"; }

  int StatusOf(const std::string& bytes) {
    HttpPeer peer(port());
    peer.Send(bytes);
    const auto response = peer.Receive();
    return response ? response->status : 0;
  }

  ScratchDirectory scratch_;
  Echo handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AConnectionServesManyRequests) {
  Start();
  HttpPeer peer(port());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(peer.Send(i % 2 == 0 ? GetText("/a") : PostText("/b", "{}")));
    const auto response = peer.Receive();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 200);
    EXPECT_EQ(response->body, i % 2 == 0 ? "GET /a " : "POST /b {}");
    EXPECT_EQ(response->headers.count("access-control-allow-origin"), 0u);
    EXPECT_EQ(response->headers.at("cache-control"), "no-store");
  }
}

TEST_F(HttpServerTest, RequestsSentBehindEachOtherAreAnsweredInOrder) {
  Start();
  HttpPeer peer(port());
  std::string all;
  for (int i = 0; i < 100; ++i) all += PostText("/" + std::to_string(i), std::string(100, 'x'));
  ASSERT_TRUE(peer.Send(all));
  for (int i = 0; i < 100; ++i) {
    const auto response = peer.Receive();
    ASSERT_TRUE(response) << i;
    EXPECT_EQ(response->body, "POST /" + std::to_string(i) + " " + std::string(100, 'x'));
  }
}

TEST_F(HttpServerTest, TheSocketIsTheUsersAlone) {
  Start();
  struct stat info{};
  ASSERT_EQ(::stat(socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  HttpPeer peer(socket());
  ASSERT_TRUE(peer.Send(GetText("/a")));
  EXPECT_EQ(peer.Receive()->body, "GET /a  socket");
  server_.reset();
  EXPECT_NE(::stat(socket().c_str(), &info), 0);  // Gone with the server.
}

// Whatever the mode of the socket is.
TEST_F(HttpServerTest, TheSocketAnswersNoOtherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be somebody else";
  Start();
  ASSERT_EQ(::chmod(socket().c_str(), 0666), 0);
  ASSERT_EQ(::chmod(scratch_.path().c_str(), 0755), 0);
  std::thread([this] {
    // By the kernel's own call, it is this thread alone.
    constexpr uid_t kNobody = 65534;
    ASSERT_EQ(::syscall(SYS_setresuid, -1, kNobody, -1), 0);
    HttpPeer peer(socket());
    ASSERT_TRUE(peer.connected());
    peer.Send(GetText("/a"));
    EXPECT_FALSE(peer.Receive());
  }).join();
  HttpPeer peer(socket());
  ASSERT_TRUE(peer.Send(GetText("/a")));
  EXPECT_TRUE(peer.Receive());
}

TEST_F(HttpServerTest, GarbageIsRefused) {
  Start();
  for (const char* garbage :
       {"nonsense\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}) {
    EXPECT_EQ(StatusOf(garbage), 400) << garbage;
  }
  EXPECT_EQ(StatusOf("GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(GetText("/a")), 200);
}

TEST_F(HttpServerTest, LongHeadersAndBodiesAreRefused) {
  Start({.max_header_bytes = 2000, .max_body_bytes = 1000});
  EXPECT_EQ(StatusOf(GetText("/a", "X: " + std::string(1000, 'x') + "\r\n")), 200);
  EXPECT_EQ(StatusOf(GetText("/a", "X: " + std::string(3000, 'x') + "\r\n")), 431);
  EXPECT_EQ(StatusOf("GET /" + std::string(100'000, 'a')), 431);
  EXPECT_EQ(StatusOf(PostText("/a", std::string(1000, 'x'))), 200);
  EXPECT_EQ(StatusOf(PostText("/a", std::string(1001, 'x'))), 413);
  // Of a length that nobody said.
  EXPECT_EQ(
      StatusOf("POST /a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
               "3e8\r\n" +
               std::string(1000, 'x') + "\r\n3e8\r\n" + std::string(1000, 'x') + "\r\n0\r\n\r\n"),
      413);
}

TEST_F(HttpServerTest, TheBodyOfARefusedRequestIsNotWaitedFor) {
  Start();
  HttpPeer peer(port());
  ASSERT_TRUE(
      peer.Send("POST /refused HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"));
  const auto response = peer.Receive();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 403);
  EXPECT_EQ(response->headers.at("connection"), "close");
  EXPECT_TRUE(peer.WaitForEnd());
}

TEST_F(HttpServerTest, WhoAsksWhetherToSendTheBodyIsTold) {
  Start();
  HttpPeer peer(port());
  ASSERT_TRUE(
      peer.Send("POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
                "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(peer.Receive()->status, 100);
  ASSERT_TRUE(peer.Send("{}"));
  EXPECT_EQ(peer.Receive()->body, "POST /a {}");
}

TEST_F(HttpServerTest, WhoSendsTooSlowlyIsCutOff) {
  Start({.idle = milliseconds(50), .header = milliseconds(50), .body = milliseconds(50)});
  HttpPeer idle(port());
  HttpPeer in_header(port());
  in_header.Send("GET / HTTP/1.1\r\nHo");
  HttpPeer in_body(port());
  in_body.Send("POST /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n123");
  // A byte now and then does not help: the time is for the whole of it.
  while (in_header.Send("x")) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(idle.WaitForEnd());
  EXPECT_TRUE(in_body.WaitForEnd());
}

TEST_F(HttpServerTest, WhoDoesNotReadIsCutOff) {
  Start({.write = milliseconds(50)});
  HttpPeer peer(port());
  ASSERT_TRUE(peer.Send(GetText("/large")));
  // It has asked for far more than sockets hold, and takes nothing: the next one is served.
  EXPECT_EQ(StatusOf(GetText("/a")), 200);
  while (peer.Send(GetText("/a"))) {
  }
}

TEST_F(HttpServerTest, IdleConnectionsMakeRoomForNewOnes) {
  Start({.max_connections = 8});
  std::vector<std::unique_ptr<HttpPeer>> crowd;
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(std::make_unique<HttpPeer>(port()));
    ASSERT_TRUE(crowd.back()->connected());
  }
  EXPECT_EQ(StatusOf(GetText("/a")), 200);
  EXPECT_TRUE(crowd.front()->WaitForEnd());
}

// Nobody keeps a probe out with requests that do not end, wherever they stop.
TEST_F(HttpServerTest, HalfRequestsMakeRoomForNewOnes) {
  Start({.max_connections = 8});
  for (const std::string half :
       {"GET /a HTTP/1.1\r\nHo",
        "GET /a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1"}) {
    std::vector<std::unique_ptr<HttpPeer>> crowd;
    for (int i = 0; i < 20; ++i) {
      crowd.push_back(std::make_unique<HttpPeer>(port()));
      ASSERT_TRUE(crowd.back()->Send(half));
    }
    EXPECT_EQ(StatusOf(GetText("/a")), 200);
    EXPECT_TRUE(crowd.front()->WaitForEnd());
  }
}

TEST_F(HttpServerTest, BusyConnectionsDoNotAndTheSocketHasRoomOfItsOwn) {
  Start({.max_connections = 4});
  std::vector<std::unique_ptr<HttpPeer>> crowd;
  for (int i = 0; i < 4; ++i) {
    crowd.push_back(std::make_unique<HttpPeer>(port()));
    ASSERT_TRUE(crowd.back()->Send(GetText("/wait")));
  }
  while (handler_.kept() < 4) std::this_thread::yield();
  HttpPeer fifth(port());
  fifth.Send(GetText("/a"));
  EXPECT_FALSE(fifth.Receive());
  HttpPeer administrator(socket());
  ASSERT_TRUE(administrator.Send(GetText("/a")));
  EXPECT_EQ(administrator.Receive()->status, 200);
  for (const auto& answer : handler_.Kept()) answer->Reply(HttpResponse{});
  for (const auto& peer : crowd) EXPECT_EQ(peer->Receive()->status, 200);
}

TEST_F(HttpServerTest, AnAnswerThatDoesNotComeIsToldAndMayComeLater) {
  Start();
  HttpPeer peer(port());
  ASSERT_TRUE(peer.Send(GetText("/never")));
  const auto response = peer.Receive();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 503);
  EXPECT_THAT(response->body, HasSubstr("did not answer in time"));
  for (const auto& answer : handler_.Kept()) answer->Reply(HttpResponse{});
  ASSERT_TRUE(peer.Send(GetText("/a")));
  EXPECT_EQ(peer.Receive()->body, "GET /a ");  // Not the late one.
  ASSERT_TRUE(peer.Send(GetText("/never")));
  ASSERT_TRUE(peer.Receive());
  server_.reset();
  for (const auto& answer : handler_.Kept()) answer->Reply(HttpResponse{});
}

TEST_F(HttpServerTest, TwoServersDoNotShareAnAddressOrASocket) {
  Start();
  Echo other;
  const auto same_port = StartHttpServer({.address = server_->address(), .socket = {}}, &other);
  EXPECT_EQ(same_port.status().code(), Code::kBusy);
  EXPECT_THAT(same_port.status().message(), HasSubstr("cannot serve HTTP on 127.0.0.1:"));
  const auto same_socket = StartHttpServer({.address = {}, .socket = socket()}, &other);
  EXPECT_EQ(same_socket.status().code(), Code::kBusy);
  EXPECT_EQ(StatusOf(GetText("/a")), 200);
}

// ---- In pieces

TEST_F(HttpServerTest, ABodyIsTakenAndAnsweredPieceByPiece) {
  Start({.max_body_bytes = 10});  // Of whole bodies.
  HttpPeer peer(port());
  ASSERT_TRUE(
      peer.Send("POST /pieces HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                "5\r\nfirst\r\n"));
  std::string heard = peer.ReceiveUntil("first");
  EXPECT_THAT(heard, HasSubstr("Transfer-Encoding: chunked"));  // Before the rest was sent.
  const std::string large(300'000, 'y');
  ASSERT_TRUE(peer.Send("493e0\r\n" + large + "\r\n0\r\n\r\n"));
  heard = peer.ReceiveUntil("0\r\n\r\n");
  EXPECT_GE(std::count(heard.begin(), heard.end(), 'y'), 300'000);
  // The connection is as good as before.
  ASSERT_TRUE(peer.Send(GetText("/a")));
  EXPECT_EQ(peer.Receive()->body, "GET /a ");
  EXPECT_FALSE(handler_.hung_up());
}

TEST_F(HttpServerTest, AHandlerHearsThatThePeerIsGone) {
  Start();
  {
    HttpPeer peer(port());
    ASSERT_TRUE(
        peer.Send("POST /pieces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nfirst"));
    peer.ReceiveUntil("first");
  }
  while (!handler_.hung_up()) std::this_thread::yield();
}

TEST_F(HttpServerTest, ABodyWhosePiecesDoNotComeIsCutOff) {
  Start({.body = milliseconds(50)});
  HttpPeer peer(port());
  ASSERT_TRUE(
      peer.Send("POST /pieces HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nfirst"));
  EXPECT_TRUE(peer.WaitForEnd());
  while (!handler_.hung_up()) std::this_thread::yield();
}

TEST_F(HttpServerTest, APeerThatLeavesTooMuchOfAnAnswerUnreadIsHungUpOn) {
  Start({.max_unsent_bytes = 8 << 20});
  HttpPeer peer(port());
  ASSERT_TRUE(peer.Send(GetText("/flood")));
  while (!handler_.hung_up()) std::this_thread::yield();
}

}  // namespace
}  // namespace aquifer
