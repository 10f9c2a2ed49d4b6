#include "store/redis/redis_connection.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/descriptor.h"

namespace aquifer {
namespace {

constexpr size_t kPayloadBytes = size_t{256} << 10;
constexpr size_t kMostUnderWay = (size_t{1} << 20) / kPayloadBytes;

// A connection, and the server's end of it.
class RedisConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(bind(listener.get(), any, bytes), 0);
    ASSERT_EQ(listen(listener.get(), 1), 0);
    ASSERT_EQ(getsockname(listener.get(), any, &bytes), 0);
    auto stream =
        Stream::Connect(*NumericAddress("127.0.0.1", ntohs(address.sin_port)), nullptr, "");
    ASSERT_TRUE(stream.ok());
    server_ = Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    connection_.Begin(*std::move(stream));
  }

  void Enqueue(size_t count, bool reads) {
    for (size_t i = 0; i < count; ++i) {
      RedisCommand command;
      command.text = "*\n";
      if (reads) {
        command.answer_bytes = kPayloadBytes;
      } else {
        command.payload[0] = payload_;
      }
      connection_.Enqueue(std::move(command), 0);
    }
  }

  // How many bytes reach the server until nothing more is sent.
  size_t Sent() {
    size_t sent = 0;
    while (true) {
      EXPECT_TRUE(connection_.Pump(0).ok());
      std::vector<char> bytes(size_t{1} << 20);
      const ssize_t got = recv(server_.get(), bytes.data(), bytes.size(), 0);
      if (got > 0) sent += static_cast<size_t>(got);
      if (got <= 0 && !connection_.WantsRoom() && !connection_.HasMore()) return sent;
    }
  }

  void Answer(std::string_view text) {
    ASSERT_EQ(send(server_.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    pollfd answered{.fd = connection_.descriptor(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&answered, 1, /*timeout=*/-1), 1);
  }

  std::vector<std::byte> payload_ = std::vector<std::byte>(kPayloadBytes);
  Descriptor server_;
  size_t replies_ = 0;
  RedisConnection connection_{{}, 0, [this](const RedisCommand&, const RespReply&) { ++replies_; }};
};

TEST_F(RedisConnectionTest, PayloadIsSentNoFurtherAheadOfAnswersThanAServerTakesWell) {
  constexpr size_t kCommandBytes = 2 + kPayloadBytes;
  Enqueue(4 * kMostUnderWay, /*reads=*/false);
  EXPECT_EQ(Sent(), kMostUnderWay * kCommandBytes);
  Answer("+OK\r\n");
  EXPECT_EQ(Sent(), kCommandBytes);
  EXPECT_EQ(replies_, 1u);
  Answer("+OK\r\n+OK\r\n");
  EXPECT_EQ(Sent(), 2 * kCommandBytes);
  EXPECT_EQ(replies_, 3u);
}

TEST_F(RedisConnectionTest, AnswersAreAskedForNoFurtherAheadThanAServerTakesWell) {
  Enqueue(4 * kMostUnderWay, /*reads=*/true);
  EXPECT_EQ(Sent(), kMostUnderWay * 2);
  Answer("$-1\r\n");
  EXPECT_EQ(Sent(), 2u);
}

}  // namespace
}  // namespace aquifer
