// The part of NodeClient that speaks HTTP.
#include <fmt/format.h>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <optional>
#include <utility>

#include "cli/node_client.h"

namespace aquifer {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using AnySocket = net::generic::stream_protocol::socket;
using Stream = beast::basic_stream<net::generic::stream_protocol>;

constexpr uint64_t kMaxAnswerBytes = uint64_t{64} << 20;

Result<AnySocket> ConnectLocal(net::io_context* context, const std::string& path) {
  net::local::stream_protocol::socket socket(*context);
  beast::error_code error;
  socket.connect(net::local::stream_protocol::endpoint(path), error);
  if (!error) return AnySocket(std::move(socket));
  if (error == net::error::access_denied) {
    return Status(
        Code::kUnavailable,
        fmt::format("{} belongs to another user; run this as that user or as root, or use "
                    "--http with --token-file",
                    path));
  }
  return Status(
      Code::kUnavailable,
      fmt::format("no node answers on {} ({}); start one with `aquifer serve`, or name its "
                  "socket with --socket",
                  path, error.message()));
}

Result<AnySocket> ConnectTcp(net::io_context* context, const std::string& host,
                             const std::string& port) {
  net::ip::tcp::resolver resolver(*context);
  net::ip::tcp::socket socket(*context);
  beast::error_code error;
  const auto found = resolver.resolve(host, port, error);
  if (!error) net::connect(socket, found, error);
  if (!error) return AnySocket(std::move(socket));
  return Status(Code::kUnavailable,
                fmt::format("no node answers at {} port {} ({}); start one with `aquifer serve "
                            "--http`, or correct the address",
                            host, port, error.message()));
}

}  // namespace

Result<NodeClient::Answer> NodeClient::Exchange(const std::string& method,
                                                const std::string& target, const std::string& body,
                                                std::chrono::milliseconds limit) const {
  net::io_context context;
  Result<AnySocket> socket =
      socket_.empty() ? ConnectTcp(&context, host_, port_) : ConnectLocal(&context, socket_);
  if (!socket.ok()) return socket.status();
  Stream stream(std::move(*socket));
  http::request<http::string_body> request(http::string_to_verb(method), target, 11);
  const bool six = host_.find(':') != std::string::npos;
  request.set(http::field::host,
              socket_.empty() ? (six ? "[" + host_ + "]" : host_) + ":" + port_ : "localhost");
  if (!token_.empty()) request.set(http::field::authorization, "Bearer " + token_);
  request.keep_alive(false);
  if (method == "POST") {
    request.set(http::field::content_type, "application/json");
    request.body() = body;
    request.prepare_payload();
  }
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxAnswerBytes);
  beast::error_code failure;
  stream.expires_after(limit);
  http::async_write(stream, request, [&](beast::error_code error, size_t) {
    if (error) {
      failure = error;
      return;
    }
    http::async_read(stream, buffer, parser,
                     [&](beast::error_code read_error, size_t) { failure = read_error; });
  });
  context.run();
  if (failure) {
    return Status(Code::kUnavailable,
                  fmt::format("the node at {} did not answer: {}; look at its log, and ask again",
                              where_, failure.message()));
  }
  return Answer{.status = parser.get().result_int(), .body = std::move(parser.get().body())};
}

}  // namespace aquifer
