#include "testing/node/http_peer.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

namespace aquifer {
namespace {

constexpr int kWaitMs = 60'000;

template <class Address>
Descriptor Connected(int family, const Address& address) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int result =
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  return result == 0 ? std::move(socket) : Descriptor();
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

HttpPeer::HttpPeer(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socket_ = Connected(AF_INET, address);
}

HttpPeer::HttpPeer(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket.data(),
              std::min(socket.size(), sizeof(address.sun_path) - 1));
  socket_ = Connected(AF_UNIX, address);
}

bool HttpPeer::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool HttpPeer::Fill() {
  pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, kWaitMs) <= 0) return false;
  char chunk[4096];
  const ssize_t got = ::recv(socket_.get(), chunk, sizeof(chunk), 0);
  if (got <= 0) return false;
  input_.append(chunk, static_cast<size_t>(got));
  return true;
}

std::optional<HeardResponse> HttpPeer::Receive() {
  size_t end = 0;
  while ((end = input_.find("\r\n\r\n")) == std::string::npos) {
    if (!Fill()) return std::nullopt;
  }
  HeardResponse response;
  std::string_view header = std::string_view(input_).substr(0, end + 2);
  const size_t space = header.find(' ');
  std::from_chars(header.data() + space + 1, header.data() + space + 4, response.status);
  header.remove_prefix(header.find("\r\n") + 2);
  while (!header.empty()) {
    const std::string_view line = header.substr(0, header.find("\r\n"));
    const size_t colon = line.find(": ");
    response.headers[Lower(std::string(line.substr(0, colon)))] = line.substr(colon + 2);
    header.remove_prefix(line.size() + 2);
  }
  input_.erase(0, end + 4);
  size_t length = 0;
  const std::string& text = response.headers["content-length"];
  std::from_chars(text.data(), text.data() + text.size(), length);
  while (input_.size() < length) {
    if (!Fill()) return std::nullopt;
  }
  response.body = input_.substr(0, length);
  input_.erase(0, length);
  return response;
}

std::string HttpPeer::ReceiveUntil(std::string_view text) {
  while (input_.find(text) == std::string::npos && Fill()) {
  }
  return std::exchange(input_, {});
}

std::string HttpPeer::ReceiveAll() {
  while (Fill()) {
  }
  return std::exchange(input_, {});
}

bool HttpPeer::WaitForEnd() {
  pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  while (::poll(&waiting, 1, kWaitMs) > 0) {
    char chunk[4096];
    if (::recv(socket_.get(), chunk, sizeof(chunk), 0) <= 0) return true;
  }
  return false;
}

std::string GetText(std::string_view path, std::string_view headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, headers);
}

std::string PostText(std::string_view path, std::string_view body, std::string_view headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n{}\r\n{}",
      path, body.size(), headers, body);
}

}  // namespace aquifer
