// HTTP/1.1 on a TCP address and on a Unix socket: reads requests, hands them to a handler and
// writes what it answers, at once, later or piece by piece. The handler knows what requests
// mean.
//
// A server has one thread, which does nothing but this and never waits. Whoever connects is
// distrusted: connections, bytes and times are bounded. When there are too many connections, the
// one that has kept us waiting for longest makes room, never one that waits for our answer; those
// on the Unix socket are counted apart, so that nobody can keep the administrator out.
//
// Boost.Beast is only seen by the .cc. Without it, http_absent.cc is built.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "aquifer/status.h"
#include "net/http/http_address.h"
#include "net/http/http_message.h"

namespace aquifer {

// The answer to one request. Any thread; nothing of it waits. It may be used when the connection or
// the server is gone: what comes after the end is dropped.
class HttpAnswer {
 public:
  virtual ~HttpAnswer() = default;

  // All at once.
  virtual void Reply(HttpResponse response) = 0;

  // Or in pieces: `head` has no body. A peer that leaves too much unread is hung up on.
  virtual void Begin(HttpResponse head) = 0;
  virtual void Send(std::string piece) = 0;
  virtual void End() = 0;

  // Called on the server's thread, at most once, when the peer goes before the end; at once if it
  // has gone already.
  virtual void OnHangUp(std::function<void()> callback) = 0;

  // Of a handler that takes bodies in pieces: `on_piece` is called once for each call of this, on
  // the server's thread, with what came next. Empty: that was all. An error: the peer is gone or
  // late.
  virtual void ReadBody(std::function<void(Result<std::string> piece)> on_piece) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // All on the server's thread; none waits.
  //
  // The header is there. With an answer, the body is not read.
  virtual std::optional<HttpResponse> Screen(const HttpRequest& /*request*/) {
    return std::nullopt;
  }
  // Returns true if Handle() is to be called before the body is there, which it takes by
  // ReadBody().
  virtual bool TakesPieces(const HttpRequest& /*request*/) { return false; }
  // Answers now or later. Returns how long the peer is kept waiting for the first of it: after that
  // it is told so. 0: for ever.
  virtual std::chrono::milliseconds Handle(HttpRequest request,
                                           std::shared_ptr<HttpAnswer> answer) = 0;
  // The answer to a request that Handle() does not hear of, or did not answer in time.
  virtual HttpResponse Refusal(unsigned status, std::string_view code,
                               std::string_view message) = 0;
};

struct HttpLimits {
  size_t max_connections = 64;
  size_t max_socket_connections = 16;
  uint32_t max_header_bytes = 8 << 10;
  uint64_t max_body_bytes = 8 << 20;  // 120 000 keys. Bodies in pieces have no bound.
  size_t max_unsent_bytes = 4 << 20;  // Of an answer in pieces.
  std::chrono::milliseconds idle = std::chrono::seconds(60);  // Between two requests.
  std::chrono::milliseconds header = std::chrono::seconds(10);
  std::chrono::milliseconds body = std::chrono::seconds(30);  // Or a piece of it.
  std::chrono::milliseconds write = std::chrono::seconds(10);
};

struct HttpServerOptions {
  std::optional<HttpAddress> address{};  // None: no TCP.
  std::string socket{};  // Empty: no Unix socket. Only this process's user and root get in.
  HttpLimits limits{};
  std::string thread_name = "aq-http";
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;  // Ends every connection. An answer that comes later is dropped.

  // With the port that was taken. None: no TCP.
  virtual std::optional<HttpAddress> address() const = 0;
};

// `handler` outlives the server. kBusy: somebody else has the address or the socket. kUnavailable:
// this build has no HTTP.
Result<std::unique_ptr<HttpServer>> StartHttpServer(const HttpServerOptions& options,
                                                    HttpHandler* handler);

// False: StartHttpServer() and HttpClient::Ask() are always kUnavailable.
bool HttpIsBuilt();

}  // namespace aquifer
