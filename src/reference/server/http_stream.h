// HTTP/1.1 for answers that come piece by piece. It reads requests, hands them to a handler, writes
// what that answers, now or later, and tells it when the peer hangs up. What requests mean is the
// handler's business.
//
// One thread does all of it and never waits. Connections, bytes and times are bounded; a peer that
// does not read what it is sent is hung up on.
//
// Boost.Beast is only seen by the .cc. Without it, http_stream_absent.cc is built.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aquifer/status.h"

namespace aquifer::reference {

struct HttpCall {
  std::string method{};  // "POST"
  std::string path{};    // "/v1/completions", without what follows a '?'.
  std::string body{};
};

// The answer to one request. Any thread; nothing of it waits. What comes after the end, or after
// the peer has gone, is dropped.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  // All at once.
  virtual void Reply(unsigned status, std::string content_type, std::string body) = 0;

  // Or in pieces, with status 200.
  virtual void Begin(std::string content_type) = 0;
  virtual void Send(std::string piece) = 0;
  virtual void End() = 0;

  // Called on the server's thread, at most once, when the peer goes before the end; at once if it
  // has gone already.
  virtual void OnHangUp(std::function<void()> callback) = 0;
};

// On the server's thread; must not wait.
using HttpStreamHandler = std::function<void(HttpCall, std::shared_ptr<HttpAnswer>)>;

struct HttpStreamOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any that is free.
  size_t max_connections = 256;
  uint64_t max_body_bytes = 16 << 20;
  size_t max_unsent_bytes = 4 << 20;
  std::chrono::milliseconds idle = std::chrono::seconds(120);
  std::chrono::milliseconds receive = std::chrono::seconds(30);
  std::chrono::milliseconds send = std::chrono::seconds(30);
  // JSON for what is refused before the handler hears of it: too long, or no HTTP.
  std::function<std::string(unsigned status, const std::string& what)> error_body{};
};

class HttpStreamServer {
 public:
  virtual ~HttpStreamServer() = default;  // Hangs up on everyone.
  virtual uint16_t port() const = 0;
};

// kBusy: the port is taken. kUnavailable: this build has no HTTP.
Result<std::unique_ptr<HttpStreamServer>> StartHttpStreamServer(const HttpStreamOptions& options,
                                                                HttpStreamHandler handler);

}  // namespace aquifer::reference
