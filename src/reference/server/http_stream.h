// An HTTP/1.1 server for answers that come piece by piece. It reads requests, hands them to a
// handler, and writes the handler's answers, now or later. It tells the handler when a peer hangs
// up. Only the handler interprets requests.
//
// One thread does all of it and never waits. Connections, bytes and times are bounded. The server
// closes the connection of a peer that does not read its answer.
//
// Only the .cc includes Boost.Beast. Without Beast, http_stream_absent.cc is built.
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
  std::string path{};    // "/v1/completions", without the '?' and the text behind it.
  std::string body{};
};

// The answer to one request. Any thread may call; no function waits. Bytes after the answer's end,
// or after the peer has gone, are dropped.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  // Sends the whole answer at once.
  virtual void Reply(unsigned status, std::string content_type, std::string body) = 0;

  // Sends the answer in pieces, with status 200.
  virtual void Begin(std::string content_type) = 0;
  virtual void Send(std::string piece) = 0;
  virtual void End() = 0;

  // `callback` runs on the server's thread, at most once, when the peer goes before the answer's
  // end. It runs at once if the peer has gone already.
  virtual void OnHangUp(std::function<void()> callback) = 0;
};

// Runs on the server's thread; must not wait.
using HttpStreamHandler = std::function<void(HttpCall, std::shared_ptr<HttpAnswer>)>;

struct HttpStreamOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any port that is free.
  size_t max_connections = 256;
  uint64_t max_body_bytes = 16 << 20;
  size_t max_unsent_bytes = 4 << 20;
  std::chrono::milliseconds idle = std::chrono::seconds(120);
  std::chrono::milliseconds receive = std::chrono::seconds(30);
  std::chrono::milliseconds send = std::chrono::seconds(30);
  // Makes the JSON for requests that are refused before the handler gets them: too long, or no
  // HTTP.
  std::function<std::string(unsigned status, const std::string& what)> error_body{};
};

class HttpStreamServer {
 public:
  virtual ~HttpStreamServer() = default;  // Closes every connection.
  virtual uint16_t port() const = 0;
};

// kBusy: the port is taken. kUnavailable: this build has no HTTP.
Result<std::unique_ptr<HttpStreamServer>> StartHttpStreamServer(const HttpStreamOptions& options,
                                                                HttpStreamHandler handler);

}  // namespace aquifer::reference
