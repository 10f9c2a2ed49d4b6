#include "net/http/http_client.h"

#include <fmt/format.h>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cstddef>

namespace aquifer {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using AnySocket = net::generic::stream_protocol::socket;
using Stream = beast::basic_stream<net::generic::stream_protocol>;

constexpr size_t kPieceBytes = 64 << 10;

bool WasClosed(beast::error_code error) {
  return error == http::error::end_of_stream || error == net::error::connection_reset ||
         error == net::error::broken_pipe || error == net::error::eof;
}

Status Failed(beast::error_code error) {
  return Status(error == beast::error::timeout ? Code::kLate : Code::kUnavailable, error.message());
}

}  // namespace

// A connection and its own loop, which runs while a call waits.
class HttpClient::Connection {
 public:
  Connection() : stream_(context_) {}

  // Until then everything on this connection is to be done.
  void ExpireAt(std::chrono::steady_clock::time_point when) { stream_.expires_at(when); }

  Status Connect(const HttpServerPlace& place) {
    beast::error_code error;
    if (!place.socket.empty()) {
      net::local::stream_protocol::socket socket(context_);
      socket.connect(net::local::stream_protocol::endpoint(place.socket), error);
      if (!error) stream_.socket() = AnySocket(std::move(socket));
    } else {
      net::ip::tcp::resolver resolver(context_);
      const auto found = resolver.resolve(place.host, place.port, error);
      if (!error) error = ConnectToOne(found);
    }
    if (!error) return Status();
    if (error == beast::error::timeout) return Failed(error);
    return Status(error == net::error::access_denied ? Code::kInvalid : Code::kNotFound,
                  error.message());
  }

  // With `error` set where it failed before anything of an answer came.
  Result<HttpReceived> Exchange(const HttpCall& call, const std::string& host,
                                beast::error_code* error) {
    *error = Write(call, host);
    if (*error) return Failed(*error);
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(UINT64_MAX);
    if (call.method == "HEAD") parser.skip(true);
    *error = Wait([&](auto done) { http::async_read_header(stream_, buffer_, parser, done); });
    if (*error) return Failed(*error);
    HttpReceived received;
    received.status = parser.get().result_int();
    received.content_type = std::string(parser.get()[http::field::content_type]);
    std::string piece(kPieceBytes, '\0');
    while (!parser.is_done()) {
      auto& body = parser.get().body();
      body.data = piece.data();
      body.size = piece.size();
      body.more = true;
      beast::error_code failed =
          Wait([&](auto done) { http::async_read_some(stream_, buffer_, parser, done); });
      if (failed == http::error::need_buffer) failed = {};
      const std::string_view got(piece.data(), piece.size() - body.size);
      if (!got.empty()) {
        if (call.on_piece == nullptr) {
          received.body += got;
        } else if (!call.on_piece(got)) {
          return Status(Code::kLate, "the caller wanted no more of the answer");
        }
      }
      if (failed) return Failed(failed);
      if (received.body.size() > call.max_answer_bytes) {
        return Status(Code::kUnavailable,
                      fmt::format("the answer has more than {} bytes", call.max_answer_bytes));
      }
    }
    keep_ = parser.get().keep_alive();
    return received;
  }

  // Returns true if another request may follow.
  bool keep() const { return keep_; }

 private:
  template <class Begin>
  beast::error_code Wait(Begin begin) {
    beast::error_code result;
    begin([&result](beast::error_code error, size_t) { result = error; });
    context_.restart();
    context_.run();
    return result;
  }

  beast::error_code ConnectToOne(const net::ip::tcp::resolver::results_type& found) {
    beast::error_code result = net::error::host_not_found;
    for (const auto& entry : found) {
      beast::error_code ignored;
      stream_.socket().close(ignored);  // The last try may have left one of another address family.
      stream_.async_connect(net::generic::stream_protocol::endpoint(entry.endpoint()),
                            [&result](beast::error_code error) { result = error; });
      context_.restart();
      context_.run();
      if (!result || result == beast::error::timeout) break;
    }
    return result;
  }

  beast::error_code Write(const HttpCall& call, const std::string& host) {
    std::string head =
        fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", call.method, call.target, host);
    for (const auto& [name, value] : call.headers) head += fmt::format("{}: {}\r\n", name, value);
    if (call.next_piece != nullptr) {
      head += "Transfer-Encoding: chunked\r\n";
    } else if (!call.body.empty() || call.method == "POST" || call.method == "PUT") {
      head += fmt::format("Content-Length: {}\r\n", call.body.size());
    }
    head += "\r\n";
    beast::error_code error = WriteAll(head + call.body);
    if (call.next_piece == nullptr) return error;
    while (!error) {
      const std::optional<std::string> piece = call.next_piece();
      if (!piece) return WriteAll("0\r\n\r\n");
      if (!piece->empty()) error = WriteAll(fmt::format("{:x}\r\n{}\r\n", piece->size(), *piece));
    }
    return error;
  }

  beast::error_code WriteAll(const std::string& text) {
    return Wait([&](auto done) { net::async_write(stream_, net::buffer(text), done); });
  }

  net::io_context context_{1};
  Stream stream_;
  beast::flat_buffer buffer_;
  bool keep_ = false;
};

HttpClient::HttpClient(HttpServerPlace place) : place_(std::move(place)) {}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;

Result<HttpReceived> HttpClient::Ask(const HttpCall& call) {
  const auto end = std::chrono::steady_clock::now() + call.limit;
  const bool six = place_.host.find(':') != std::string::npos;
  const std::string host =
      !place_.socket.empty()
          ? "localhost"
          : fmt::format("{}:{}", six ? "[" + place_.host + "]" : place_.host, place_.port);
  // A server may have closed the connection that was kept, which shows when it is used. A request
  // that changes something is not sent twice, so it has a new connection.
  const bool repeatable = call.method == "GET" || call.method == "HEAD";
  while (true) {
    std::unique_ptr<Connection> connection = std::move(connection_);
    const bool kept = connection != nullptr && repeatable;
    if (!kept) connection = std::make_unique<Connection>();
    connection->ExpireAt(end);
    if (!kept) AQ_RETURN_IF_ERROR(connection->Connect(place_));
    beast::error_code error;
    Result<HttpReceived> received = connection->Exchange(call, host, &error);
    if (kept && WasClosed(error)) continue;
    if (received.ok() && connection->keep()) connection_ = std::move(connection);
    return received;
  }
}

}  // namespace aquifer
