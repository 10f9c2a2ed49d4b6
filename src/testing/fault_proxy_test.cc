#include "testing/fault_proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "base/descriptor.h"

namespace aquifer {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Answers every byte with itself, one connection after the other.
class EchoServer {
 public:
  EchoServer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = Loopback(0);
    socklen_t length = sizeof(address);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~EchoServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }

  uint16_t port() const { return port_; }

 private:
  void Run() const {
    while (true) {
      const Descriptor client(::accept(listener_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      char bytes[1024];
      for (ssize_t length = 0; (length = ::recv(client.get(), bytes, sizeof(bytes), 0)) > 0;) {
        if (::send(client.get(), bytes, static_cast<size_t>(length), MSG_NOSIGNAL) != length) break;
      }
    }
  }

  Descriptor listener_;
  uint16_t port_ = 0;
  std::thread thread_;
};

// Says `text` and hears answers until there are as many bytes, or no more come; "!" at the end
// says that the connection was reset.
class Talker {
 public:
  explicit Talker(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = Loopback(port);
    EXPECT_EQ(
        ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }

  void Say(const std::string& text) const {
    ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  std::string Hear(size_t most) const {
    std::string heard;
    while (heard.size() < most) {
      char byte = 0;
      const ssize_t length = ::recv(socket_.get(), &byte, 1, 0);
      if (length < 0) return heard + "!";
      if (length == 0) return heard;
      heard.push_back(byte);
    }
    return heard;
  }
  std::string Ask(const std::string& text) const {
    Say(text);
    return Hear(text.size());
  }
  bool HearsNothing() const {
    pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&waiting, 1, 20) == 0;
  }

 private:
  Descriptor socket_;
};

TEST(FaultProxyTest, WithoutFaultsEverythingPassesAndIsCounted) {
  const EchoServer server;
  FaultProxy proxy(server.port());
  EXPECT_EQ(Talker(proxy.port()).Ask("hello"), "hello");
  EXPECT_EQ(Talker(proxy.port()).Ask("again"), "again");
  proxy.Set({});
  EXPECT_EQ(proxy.connections(), 2u);
  EXPECT_EQ(proxy.request_bytes(), 10u);
  EXPECT_EQ(proxy.answer_bytes(), 10u);
  EXPECT_EQ(proxy.faults_happened(), 0u);
}

TEST(FaultProxyTest, RefusedConnectionsAreResetAlsoThoseThatAreOpen) {
  const EchoServer server;
  FaultProxy proxy(server.port());
  const Talker open(proxy.port());
  EXPECT_EQ(open.Ask("hello"), "hello");
  proxy.Set({.refuse = true});
  EXPECT_EQ(open.Hear(1), "!");
  EXPECT_EQ(Talker(proxy.port()).Hear(1), "!");
  proxy.Set({});
  EXPECT_EQ(Talker(proxy.port()).Ask("hello"), "hello");
}

TEST(FaultProxyTest, AnAnswerIsCutEndedOrChangedAtItsByteAsOftenAsSaid) {
  const EchoServer server;
  FaultProxy proxy(server.port());
  proxy.Set({.cut_answers_after = 3, .times = 1});
  EXPECT_EQ(Talker(proxy.port()).Ask("hello"), "hel!");
  EXPECT_EQ(Talker(proxy.port()).Ask("hello"), "hello");
  proxy.Set({.end_answers_after = 2});
  EXPECT_EQ(Talker(proxy.port()).Ask("hello"), "he");
  proxy.Set({.flip_answer_byte = 4});
  EXPECT_EQ(Talker(proxy.port()).Ask("hello"), "helln");
  EXPECT_EQ(proxy.faults_happened(), 3u);
}

TEST(FaultProxyTest, BytesAreCountedFromWhenTheFaultsWereSet) {
  const EchoServer server;
  FaultProxy proxy(server.port());
  const Talker open(proxy.port());
  EXPECT_EQ(open.Ask("hello"), "hello");
  proxy.Set({.flip_answer_byte = 1});
  EXPECT_EQ(open.Ask("aaaa"), "a`aa");
  proxy.Set({.cut_requests_after = 2});
  EXPECT_EQ(open.Ask("hello").back(), '!');
}

TEST(FaultProxyTest, StalledBytesComeWhenTheStallIsOver) {
  const EchoServer server;
  FaultProxy proxy(server.port());
  proxy.Set({.stall = true});
  const Talker talker(proxy.port());
  talker.Say("hello");
  EXPECT_TRUE(talker.HearsNothing());
  proxy.Set({.delay = std::chrono::milliseconds(1)});
  EXPECT_EQ(talker.Hear(5), "hello");
}

}  // namespace
}  // namespace aquifer
