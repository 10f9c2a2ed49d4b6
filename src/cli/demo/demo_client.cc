#include "cli/demo/demo_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/descriptor.h"

namespace aquifer {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::minutes(1);
constexpr int kLookMs = 100;

double MillisecondsSince(Clock::time_point began) {
  return std::chrono::duration<double, std::milli>(Clock::now() - began).count();
}

class Exchange {
 public:
  explicit Exchange(const std::atomic<bool>* interrupted) : interrupted_(interrupted) {}

  Result<DemoReply> Run(uint16_t port, const std::string& body) {
    AQ_RETURN_IF_ERROR(Connect(port));
    began_ = Clock::now();
    AQ_RETURN_IF_ERROR(
        Send(fmt::format("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                         "application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                         body.size(), body)));
    AQ_RETURN_IF_ERROR(ReadHead());
    while (!over_) {
      TakeChunks();
      if (over_) break;
      AQ_RETURN_IF_ERROR(Fill());
    }
    return std::move(reply_);
  }

 private:
  Status Connect(uint16_t port) {
    socket_ = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!socket_.valid() || ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address),
                                      sizeof(address)) != 0) {
      return Status(Code::kUnavailable,
                    fmt::format("the replica does not answer: {}", std::strerror(errno)));
    }
    return Status();
  }

  Status Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return Status(Code::kUnavailable, "the replica has hung up");
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return Status();
  }

  // Some more bytes.
  Status Fill() {
    const auto end = Clock::now() + kPatience;
    pollfd event{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    while (::poll(&event, 1, kLookMs) <= 0) {
      if (*interrupted_) return Status(Code::kLate, "interrupted");
      if (Clock::now() > end)
        return Status(Code::kLate, "the replica has said nothing for a minute");
    }
    char buffer[16 << 10];
    const ssize_t got = ::recv(socket_.get(), buffer, sizeof(buffer), 0);
    if (got <= 0) return Status(Code::kUnavailable, "the replica has hung up");
    input_.append(buffer, static_cast<size_t>(got));
    return Status();
  }

  Status ReadHead() {
    size_t end = 0;
    while ((end = input_.find("\r\n\r\n")) == std::string::npos) AQ_RETURN_IF_ERROR(Fill());
    const std::string head = input_.substr(0, end);
    input_.erase(0, end + 4);
    if (head.starts_with("HTTP/1.1 200")) return Status();
    while (Fill().ok()) {
    }
    return Status(Code::kUnavailable, fmt::format("the replica refused: {}", input_));
  }

  // Takes each "SIZE\r\nBYTES\r\n" that has come whole.
  void TakeChunks() {
    while (!over_) {
      const size_t line = input_.find("\r\n");
      if (line == std::string::npos) return;
      size_t size = 0;
      std::from_chars(input_.data(), input_.data() + line, size, 16);
      if (input_.size() < line + 2 + size + 2) return;
      body_.append(input_, line + 2, size);
      input_.erase(0, line + 2 + size + 2);
      over_ = size == 0;
      TakeEvents();
    }
  }

  void TakeEvents() {
    for (size_t end = 0; (end = body_.find("\n\n")) != std::string::npos;) {
      const std::string event = body_.substr(0, end);
      body_.erase(0, end + 2);
      constexpr std::string_view kData = "data: ";
      if (!event.starts_with(kData)) continue;
      const json data = json::parse(event.substr(kData.size()), nullptr, false);
      if (data.is_object()) TakeEvent(data);
    }
  }

  void TakeEvent(const json& data) {
    if (data.contains("usage") && data["usage"].is_object()) reply_.usage = data["usage"];
    for (const json& choice : data.value("choices", json::array())) {
      const std::string piece = choice.value("delta", json::object()).value("content", "");
      if (piece.empty()) continue;
      if (reply_.text.empty()) reply_.first_token_ms = MillisecondsSince(began_);
      reply_.text += piece;
    }
  }

  const std::atomic<bool>* const interrupted_;
  Descriptor socket_;
  Clock::time_point began_;
  std::string input_;
  std::string body_;
  bool over_ = false;
  DemoReply reply_;
};

}  // namespace

Result<DemoReply> AskReplica(uint16_t port, json body, const std::atomic<bool>* interrupted) {
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  return Exchange(interrupted).Run(port, body.dump());
}

}  // namespace aquifer
