#include "reference/server/http_stream.h"

#include <fmt/format.h>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <exception>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/thread_name.h"

namespace aquifer::reference {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Tcp = net::ip::tcp;

constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kReadBytes = 4096;
constexpr uint32_t kMaxHeaderBytes = 16 << 10;
constexpr auto kDiscard = std::chrono::seconds(2);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

class Connection;
using Connections = std::set<Connection*>;

// Runs on the server's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Tcp::socket socket, const HttpStreamOptions& options, const HttpStreamHandler& handler,
             std::shared_ptr<net::io_context> context, std::shared_ptr<Connections> all)
      : options_(options),
        handler_(handler),
        context_(std::move(context)),
        all_(std::move(all)),
        stream_(std::move(socket)),
        buffer_(kBufferBytes) {
    all_->insert(this);
  }
  ~Connection() { all_->erase(this); }

  void AwaitRequest();
  void Drop();

  // Sends the answer number `number`. A late call for another number is ignored.
  void Reply(uint64_t number, unsigned status, const std::string& content_type,
             const std::string& body);
  void Begin(uint64_t number, const std::string& content_type);
  void Send(uint64_t number, const std::string& piece);
  void End(uint64_t number);
  void SetHangUp(uint64_t number, std::function<void()> callback);

 private:
  void GoOnReading();
  void Read();
  void OnHeader();
  void ReadBody();
  void OnReadError(beast::error_code error);
  void Handle();
  void WatchPeer();
  bool IsOpen(uint64_t number) const { return !over_ && number == number_ && answering_; }
  void Refuse(unsigned status, std::string_view what);
  void Push(std::string bytes);
  void WriteNext();
  void FinishAnswer();
  void Discard(uint64_t most);

  const HttpStreamOptions options_;
  const HttpStreamHandler handler_;
  const std::shared_ptr<net::io_context> context_;  // Shared with answers that are still open.
  // The server's list; the server may end before this connection.
  const std::shared_ptr<Connections> all_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;

  uint64_t number_ = 0;     // Number of the request.
  bool answering_ = false;  // The handler has the request, and its answer is not complete.
  bool ending_ = false;     // The answer is complete; queued bytes are still to be written.
  bool keep_alive_ = true;
  bool without_body_ = false;  // The client asked for the head alone.
  bool in_chunks_ = true;      // False for HTTP/1.0: the connection's end marks the answer's.
  bool closing_ = false;       // This answer is the connection's last.
  bool over_ = false;
  bool watching_ = false;  // A read is under way, to notice when the peer goes.
  bool writing_ = false;
  std::deque<std::string> queue_;
  size_t unsent_ = 0;
  std::function<void()> on_hang_up_;
};

// The handler's end of an answer. It may be used from any thread, and after the connection is gone.
class Answer final : public HttpAnswer {
 public:
  Answer(std::shared_ptr<net::io_context> context, std::weak_ptr<Connection> connection,
         uint64_t number)
      : context_(std::move(context)), connection_(std::move(connection)), number_(number) {}

  void Reply(unsigned status, std::string content_type, std::string body) override {
    Post([status, type = std::move(content_type), body = std::move(body), number = number_](
             Connection& connection) { connection.Reply(number, status, type, body); });
  }
  void Begin(std::string content_type) override {
    Post([type = std::move(content_type), number = number_](Connection& connection) {
      connection.Begin(number, type);
    });
  }
  void Send(std::string piece) override {
    Post([piece = std::move(piece), number = number_](Connection& connection) {
      connection.Send(number, piece);
    });
  }
  void End() override {
    Post([number = number_](Connection& connection) { connection.End(number); });
  }
  void OnHangUp(std::function<void()> callback) override {
    net::post(*context_, [connection = connection_, number = number_,
                          callback = std::move(callback)]() mutable {
      const auto held = connection.lock();
      held == nullptr ? callback() : held->SetHangUp(number, std::move(callback));
    });
  }

 private:
  template <class Call>
  void Post(Call call) {
    net::post(*context_, [connection = connection_, call = std::move(call)]() mutable {
      if (const auto held = connection.lock()) call(*held);
    });
  }

  const std::shared_ptr<net::io_context> context_;
  const std::weak_ptr<Connection> connection_;
  const uint64_t number_;
};

// Ends a read that only watches the peer: the next read has another time limit.
void Connection::AwaitRequest() { watching_ ? stream_.cancel() : GoOnReading(); }

void Connection::GoOnReading() {
  if (closing_) {
    stream_.expires_after(kDiscard);
    return Discard(options_.max_body_bytes);
  }
  buffer_.size() > 0 && !answering_ ? Read() : WatchPeer();
}

void Connection::Read() {
  parser_.emplace();
  parser_->header_limit(kMaxHeaderBytes);
  parser_->body_limit(options_.max_body_bytes);
  stream_.expires_after(options_.receive);
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](beast::error_code error, size_t) {
                            error ? self->OnReadError(error) : self->OnHeader();
                          });
}

// A client with a long prompt may wait to be asked for it: curl does, for a second.
void Connection::OnHeader() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  if (parser_->is_done() || !beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    return ReadBody();
  }
  net::async_write(stream_, net::buffer(kContinue),
                   [self = shared_from_this()](beast::error_code error, size_t) {
                     error ? self->Drop() : self->ReadBody();
                   });
}

void Connection::ReadBody() {
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](beast::error_code error, size_t) {
                     error ? self->OnReadError(error) : self->Handle();
                   });
}

void Connection::OnReadError(beast::error_code error) {
  if (error == http::error::body_limit) {
    return Refuse(413, fmt::format("the body has more than {} bytes", options_.max_body_bytes));
  }
  if (error == http::error::header_limit) return Refuse(431, "the header is too long");
  const beast::error_code parse_error = http::error::bad_method;
  if (error.category() == parse_error.category() && error != http::error::end_of_stream &&
      error != http::error::partial_message) {
    return Refuse(400, "this is not HTTP: " + error.message());
  }
  Drop();
}

void Connection::Refuse(unsigned status, std::string_view what) {
  ++number_;
  answering_ = true;
  ending_ = false;
  keep_alive_ = false;
  without_body_ = false;
  Reply(number_, status, "application/json", options_.error_body(status, std::string(what)));
}

void Connection::Handle() {
  auto& message = parser_->get();
  keep_alive_ = message.keep_alive();
  in_chunks_ = message.version() >= 11;
  answering_ = true;
  ending_ = false;
  without_body_ = message.method() == http::verb::head;
  ++number_;
  HttpCall call;
  call.method = std::string(message.method_string());
  call.path = std::string(message.target());
  call.path = call.path.substr(0, call.path.find('?'));
  call.body = std::move(message.body());
  stream_.expires_never();
  if (!watching_) WatchPeer();
  handler_(std::move(call), std::make_shared<Answer>(context_, weak_from_this(), number_));
}

// Between requests this waits for the next one. While a request is answered, it notices when the
// peer goes. Bytes that the peer sends meanwhile are kept; if they are too many, the connection is
// closed.
void Connection::WatchPeer() {
  if (buffer_.max_size() - buffer_.size() < kReadBytes) return Drop();
  watching_ = true;
  if (!answering_) stream_.expires_after(options_.idle);
  stream_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](
                                                           beast::error_code error, size_t bytes) {
    self->watching_ = false;
    const bool makes_way = error == net::error::operation_aborted && !self->over_;
    if (error && !makes_way) return self->Drop();
    self->buffer_.commit(bytes);
    self->GoOnReading();
  });
}

void Connection::Drop() {
  if (over_) return;
  over_ = true;
  stream_.close();
  if (answering_ && on_hang_up_) std::exchange(on_hang_up_, nullptr)();
}

void Connection::SetHangUp(uint64_t number, std::function<void()> callback) {
  if (over_ && number == number_) return callback();
  if (IsOpen(number)) on_hang_up_ = std::move(callback);
}

// `length` is a whole line, or empty.
std::string HeadOf(unsigned status, const std::string& content_type, const std::string& length,
                   bool keep_alive) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nCache-Control: no-store\r\n{}Connection: "
      "{}\r\n\r\n",
      status, std::string(http::obsolete_reason(static_cast<http::status>(status))), content_type,
      length, keep_alive ? "keep-alive" : "close");
}

void Connection::Reply(uint64_t number, unsigned status, const std::string& content_type,
                       const std::string& body) {
  if (!IsOpen(number) || ending_) return;
  ending_ = true;
  Push(HeadOf(status, content_type, fmt::format("Content-Length: {}\r\n", body.size()),
              keep_alive_) +
       (without_body_ ? std::string() : body));
}

void Connection::Begin(uint64_t number, const std::string& content_type) {
  if (!IsOpen(number) || ending_) return;
  if (!in_chunks_) keep_alive_ = false;
  Push(HeadOf(200, content_type, in_chunks_ ? "Transfer-Encoding: chunked\r\n" : "", keep_alive_));
}

void Connection::Send(uint64_t number, const std::string& piece) {
  if (!IsOpen(number) || ending_ || piece.empty()) return;
  Push(in_chunks_ ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : piece);
}

void Connection::End(uint64_t number) {
  if (!IsOpen(number) || ending_) return;
  ending_ = true;
  Push(in_chunks_ ? "0\r\n\r\n" : "");
}

void Connection::Push(std::string bytes) {
  unsent_ += bytes.size();
  queue_.push_back(std::move(bytes));
  if (unsent_ > options_.max_unsent_bytes && !ending_) return Drop();
  if (!writing_) WriteNext();
}

void Connection::WriteNext() {
  writing_ = true;
  stream_.expires_after(options_.send);
  net::async_write(stream_, net::buffer(queue_.front()),
                   [self = shared_from_this()](beast::error_code error, size_t) {
                     self->writing_ = false;
                     if (error || self->over_) return self->Drop();
                     self->unsent_ -= self->queue_.front().size();
                     self->queue_.pop_front();
                     if (!self->queue_.empty()) return self->WriteNext();
                     self->stream_.expires_never();
                     if (self->ending_) self->FinishAnswer();
                   });
}

void Connection::FinishAnswer() {
  answering_ = false;
  on_hang_up_ = nullptr;
  if (!keep_alive_) {
    closing_ = true;
    beast::error_code ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
  }
  AwaitRequest();
}

// Reads unread bytes of the peer: closing before they are read would destroy the answer on its way.
void Connection::Discard(uint64_t most) {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kBufferBytes),
                          [self = shared_from_this(), most](beast::error_code error, size_t bytes) {
                            if (error || bytes > most) return self->Drop();
                            self->Discard(most - bytes);
                          });
}

class BeastStreamServer final : public HttpStreamServer {
 public:
  BeastStreamServer(const HttpStreamOptions& options, HttpStreamHandler handler)
      : options_(options), handler_(std::move(handler)), acceptor_(*context_) {}

  ~BeastStreamServer() override {
    net::post(*context_, [this] {
      beast::error_code ignored;
      acceptor_.close(ignored);
      const Connections all = *connections_;
      for (Connection* const connection : all) connection->Drop();
      work_.reset();
    });
    if (thread_.joinable()) thread_.join();
  }

  Status Start() {
    beast::error_code error;
    const Tcp::endpoint endpoint(net::ip::make_address(options_.host, error), options_.port);
    if (!error) acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(net::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(net::socket_base::max_listen_connections, error);
    if (error) {
      return Status(error == net::error::address_in_use ? Code::kBusy : Code::kUnavailable,
                    fmt::format("cannot serve HTTP on {}:{}: {}", options_.host, options_.port,
                                error.message()));
    }
    port_ = acceptor_.local_endpoint(error).port();
    Accept();
    thread_ = std::thread([this] {
      NameThisThread("aq-openai");
      Run();
    });
    return Status();
  }

  uint16_t port() const override { return port_; }

 private:
  // An exception of a library does not end the server.
  void Run() {
    while (!context_->stopped()) {
      try {
        context_->run();
      } catch (const std::exception&) {
        continue;
      }
    }
  }

  void Accept() {
    acceptor_.async_accept([this](beast::error_code error, Tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) return AcceptLater();  // Probably out of descriptors.
      if (connections_->size() < options_.max_connections) {
        beast::error_code ignored;
        socket.set_option(Tcp::no_delay(true), ignored);
        std::make_shared<Connection>(std::move(socket), options_, handler_, context_, connections_)
            ->AwaitRequest();
      }
      Accept();
    });
  }

  void AcceptLater() {
    auto pause = std::make_shared<net::steady_timer>(*context_, kAcceptPause);
    pause->async_wait([this, pause](beast::error_code) {
      if (acceptor_.is_open()) Accept();
    });
  }

  const HttpStreamOptions options_;
  const HttpStreamHandler handler_;
  // Shared with answers that are still open.
  const std::shared_ptr<net::io_context> context_ = std::make_shared<net::io_context>(1);
  std::optional<net::executor_work_guard<net::io_context::executor_type>> work_{
      net::make_work_guard(*context_)};
  Tcp::acceptor acceptor_;
  const std::shared_ptr<Connections> connections_ = std::make_shared<Connections>();
  uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpStreamServer>> StartHttpStreamServer(const HttpStreamOptions& options,
                                                                HttpStreamHandler handler) {
  auto server = std::make_unique<BeastStreamServer>(options, std::move(handler));
  AQ_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<HttpStreamServer>(std::move(server));
}

}  // namespace aquifer::reference
