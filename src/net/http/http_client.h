// Asks an HTTP/1.1 server, by TCP or on a Unix socket. One request at a time; the connection is
// kept for the next one, and made anew where the server has closed it.
//
// One thread at a time. Each call waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

struct HttpServerPlace {
  std::string socket{};  // Or:
  std::string host{};    // A name or a numeric address, IPv6 without brackets.
  std::string port{};
};

struct HttpCall {
  std::string method = "GET";
  std::string target{};  // "/v1/status?limit=5"
  std::vector<std::pair<std::string, std::string>> headers{};
  std::string body{};
  // Where set, the body is what this returns, piece by piece until there is none.
  std::function<std::optional<std::string>()> next_piece{};
  // Where set, it gets the body of the answer as it comes; false ends the call.
  std::function<bool(std::string_view piece)> on_piece{};
  // For all of it, from connecting to the last byte.
  std::chrono::milliseconds limit = std::chrono::seconds(15);
  uint64_t max_answer_bytes = uint64_t{64} << 20;  // Where there is no `on_piece`.
};

struct HttpReceived {
  unsigned status = 0;
  std::string content_type{};
  std::string body{};  // Empty where `on_piece` has it.
};

class HttpClient {
 public:
  explicit HttpClient(HttpServerPlace place);
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;

  // kNotFound: nobody listens there. kInvalid: this user may not connect. kLate: the limit has
  // passed. kUnavailable: the connection failed, or this build has no HTTP. Messages say what
  // happened, for a person.
  Result<HttpReceived> Ask(const HttpCall& call);

 private:
  class Connection;

  HttpServerPlace place_;
  std::unique_ptr<Connection> connection_;  // Null: none is kept.
};

}  // namespace aquifer
