// HTTP/1.1 on a TCP address and on the administrator's Unix socket: reads requests, hands them to a
// handler and writes what it answers. What they mean is the handler's business.
//
// It has one thread, which does nothing but this and never waits for the cache. Whoever connects is
// distrusted: connections, bytes and times are bounded. When there are too many connections, the
// one that has kept us waiting for longest makes room, never one that waits for our answer; those
// on the Unix socket are counted apart, so that nobody can keep the administrator out.
//
// Boost.Beast is only seen by the .cc. Without it, http_server_absent.cc is built.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "aquifer/status.h"
#include "node/api/http_message.h"
#include "node/config/node_config.h"

namespace aquifer {

using HttpReply = std::function<void(HttpResponse)>;

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Both on the server's thread; neither waits.
  //
  // The header is there. With an answer, the body is not read.
  virtual std::optional<HttpResponse> Screen(const HttpRequest& request) = 0;
  // Calls `reply` once, from any thread, now or later. Returns how long the peer is kept waiting
  // for it: after that it is told so.
  virtual std::chrono::milliseconds Handle(HttpRequest request, HttpReply reply) = 0;
};

struct HttpLimits {
  size_t max_connections = 64;
  size_t max_socket_connections = 16;
  uint32_t max_header_bytes = 8 << 10;
  uint64_t max_body_bytes = 8 << 20;                          // 120 000 keys.
  std::chrono::milliseconds idle = std::chrono::seconds(60);  // Between two requests.
  std::chrono::milliseconds header = std::chrono::seconds(10);
  std::chrono::milliseconds body = std::chrono::seconds(30);
  std::chrono::milliseconds write = std::chrono::seconds(10);
};

struct HttpServerOptions {
  std::optional<HttpAddress> address{};  // None: no TCP.
  std::string socket{};                  // Empty: no Unix socket.
  HttpLimits limits{};
};

class HttpServer {
 public:
  virtual ~HttpServer() = default;  // Ends every connection. A reply that comes later is dropped.

  // With the port that was taken. None: no TCP.
  virtual std::optional<HttpAddress> address() const = 0;
};

// `handler` outlives the server. kBusy: somebody else has the address or the socket. kUnavailable:
// this build has no HTTP.
Result<std::unique_ptr<HttpServer>> StartHttpServer(const HttpServerOptions& options,
                                                    HttpHandler* handler);

// False: StartHttpServer() is always kUnavailable.
bool HttpIsBuilt();

}  // namespace aquifer
