#include "net/http/http_server.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#include "base/descriptor.h"
#include "base/thread_name.h"
#include "net/local/frame_socket.h"

namespace aquifer {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using Local = net::local::stream_protocol;
using Tcp = net::ip::tcp;
using AnySocket = net::generic::stream_protocol::socket;
using Stream = beast::basic_stream<net::generic::stream_protocol>;
using Clock = std::chrono::steady_clock;

constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kReadBytes = 4096;
constexpr size_t kPieceBytes = 64 << 10;
constexpr size_t kMaxDiscardedBytes = 16 << 20;
constexpr auto kDiscard = std::chrono::seconds(2);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

class Connection;

// The connections of one listener.
struct Crowd {
  size_t max = 0;
  bool on_socket = false;
  std::set<Connection*> connections;
};

// One connection, on the server's thread. It goes around: waits for a request, reads its header,
// reads its body or leaves that to the handler, has it answered, writes the answer. While a request
// is answered, a read watches whether the peer goes. It lives as long as something is under way.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using OnPiece = std::function<void(Result<std::string>)>;

  Connection(AnySocket socket, std::string peer, const HttpLimits& limits, HttpHandler* handler,
             std::shared_ptr<Crowd> crowd, std::shared_ptr<net::io_context> context)
      : limits_(limits),
        handler_(handler),
        crowd_(std::move(crowd)),
        context_(std::move(context)),
        peer_(std::move(peer)),
        stream_(std::move(socket)),
        late_(stream_.get_executor()),
        buffer_(kBufferBytes) {
    crowd_->connections.insert(this);
  }
  ~Connection() { crowd_->connections.erase(this); }

  void AwaitRequest();
  void Drop();
  bool over() const { return over_; }
  // None: the peer waits for us.
  std::optional<Clock::time_point> waiting_since() const { return waiting_since_; }

  // For the answer to request `number`; others are late.
  void Reply(uint64_t number, HttpResponse response);
  void Begin(uint64_t number, const HttpResponse& head);
  void Send(uint64_t number, const std::string& piece);
  void End(uint64_t number);
  void SetHangUp(uint64_t number, std::function<void()> callback);
  void ReadPiece(uint64_t number, OnPiece on_piece);

 private:
  using Whole = http::request_parser<http::string_body>;
  using Pieces = http::request_parser<http::buffer_body>;

  void WaitForPeer(Clock::duration limit);
  void WaitForHandler();
  void GoOnReading();
  void WatchPeer();
  void ReadHeader();
  void OnHeader();
  Status ReadFields();
  void Encourage();
  void ReadBody();
  void OnReadError(beast::error_code error);
  void Handle();
  void ReadSome();
  void OnSome(beast::error_code error);
  bool IsOpen(uint64_t number) const { return !over_ && number == number_ && answering_; }
  bool MayBegin(uint64_t number) const { return IsOpen(number) && !begun_; }
  void Refuse(HttpResponse response);
  void Refuse(unsigned status, std::string_view code, const std::string& what) {
    Refuse(handler_->Refusal(status, code, what));
  }
  std::string HeadOf(const HttpResponse& response, const std::string& length);
  void Push(std::string bytes);
  void WriteNext();
  void FinishAnswer();
  void Discard(size_t most);

  const HttpLimits limits_;
  HttpHandler* const handler_;
  const std::shared_ptr<Crowd> crowd_;  // Shared with the listener; it may end before we do.
  const std::shared_ptr<net::io_context> context_;  // Shared with answers to come.
  const std::string peer_;
  Stream stream_;
  net::steady_timer late_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::empty_body>> header_;
  std::optional<Whole> whole_;
  std::optional<Pieces> pieces_;
  HttpRequest request_;

  uint64_t number_ = 0;     // Of the request.
  bool answering_ = false;  // It was handed on, and its answer is not at its end.
  bool begun_ = false;      // Some of the answer is there.
  bool ending_ = false;     // All of it is; what is queued is still to be written.
  bool keep_alive_ = true;
  bool without_body_ = false;  // It asked for the head alone.
  bool in_chunks_ = true;      // False, of HTTP/1.0: pieces end with the connection.
  bool expects_continue_ = false;
  bool closing_ = false;  // That was the last answer.
  bool over_ = false;
  bool watching_ = false;  // A read is under way that tells when the peer goes.
  bool writing_ = false;
  std::deque<std::string> queue_;
  size_t unsent_ = 0;
  std::string piece_;
  OnPiece on_piece_;
  std::function<void()> on_hang_up_;
  std::optional<Clock::time_point> waiting_since_;  // For the peer.
  std::shared_ptr<Connection> self_;                // While a request is answered.
};

// The handler holds this. It may be used from any thread and when the connection is gone.
class Answer final : public HttpAnswer {
 public:
  Answer(std::shared_ptr<net::io_context> context, std::weak_ptr<Connection> connection,
         uint64_t number)
      : context_(std::move(context)), connection_(std::move(connection)), number_(number) {}

  void Reply(HttpResponse response) override {
    Post([response = std::move(response), number = number_](Connection& connection) mutable {
      connection.Reply(number, std::move(response));
    });
  }
  void Begin(HttpResponse head) override {
    Post([head = std::move(head), number = number_](Connection& connection) {
      connection.Begin(number, head);
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
  void ReadBody(Connection::OnPiece on_piece) override {
    net::post(*context_, [connection = connection_, number = number_,
                          on_piece = std::move(on_piece)]() mutable {
      const auto held = connection.lock();
      if (held == nullptr) return on_piece(Status(Code::kUnavailable, "the peer is gone"));
      held->ReadPiece(number, std::move(on_piece));
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

// ---- Reading

// From here on the peer has so long, for what comes next.
void Connection::WaitForPeer(Clock::duration limit) {
  waiting_since_ = Clock::now();
  stream_.expires_after(limit);
}

void Connection::WaitForHandler() {
  waiting_since_.reset();
  stream_.expires_never();
}

// A read that watches the peer makes way: the next one has another limit of time.
void Connection::AwaitRequest() { watching_ ? stream_.cancel() : GoOnReading(); }

void Connection::GoOnReading() {
  if (over_) return;
  if (answering_) return WatchPeer();
  if (closing_) {
    WaitForPeer(kDiscard);
    return Discard(kMaxDiscardedBytes);
  }
  if (buffer_.size() > 0) return ReadHeader();  // The next one was sent behind the last.
  WaitForPeer(limits_.idle);
  WatchPeer();
}

// Between requests this waits for the next one; while one is answered it waits for the peer to go.
// Bytes that come meanwhile are kept for later; a peer that sends too many is hung up on.
void Connection::WatchPeer() {
  if (over_ || watching_) return;
  if (buffer_.max_size() - buffer_.size() < kReadBytes) return Drop();
  watching_ = true;
  stream_.async_read_some(buffer_.prepare(kReadBytes), [self = shared_from_this()](
                                                           beast::error_code error, size_t bytes) {
    self->watching_ = false;
    const bool makes_way = error == net::error::operation_aborted && !self->over_;
    if (error && !makes_way) return self->Drop();
    self->buffer_.commit(bytes);
    self->GoOnReading();
  });
}

void Connection::ReadHeader() {
  header_.emplace();
  header_->header_limit(limits_.max_header_bytes);
  header_->body_limit(UINT64_MAX);  // OnHeader() looks at the length.
  without_body_ = false;
  WaitForPeer(limits_.header);
  http::async_read_header(stream_, buffer_, *header_,
                          [self = shared_from_this()](beast::error_code error, size_t) {
                            error ? self->OnReadError(error) : self->OnHeader();
                          });
}

void Connection::OnReadError(beast::error_code error) {
  if (error == http::error::header_limit) {
    return Refuse(431, "too_large", "the header is too long; send less");
  }
  if (error == http::error::body_limit) {
    return Refuse(413, "too_large",
                  fmt::format("the body has more than {} bytes; send several requests",
                              limits_.max_body_bytes));
  }
  const beast::error_code parse_error = http::error::bad_method;
  if (error.category() == parse_error.category() && error != http::error::end_of_stream &&
      error != http::error::partial_message) {
    return Refuse(400, "invalid", "this is not HTTP: " + error.message());
  }
  Drop();
}

Status Connection::ReadFields() {
  const auto& message = header_->get();
  const auto field = [&](http::field name) -> std::optional<std::string> {
    if (message.count(name) > 1) request_.repeated_header = true;
    const auto found = message.find(name);
    if (found == message.end()) return std::nullopt;
    return std::string(found->value());
  };
  request_ = {};
  request_.method = std::string(message.method_string());
  request_.host = field(http::field::host).value_or("");
  request_.origin = field(http::field::origin);
  request_.content_type = field(http::field::content_type);
  request_.authorization = field(http::field::authorization);
  request_.accept = std::string(message[http::field::accept]);
  if (const auto site = message.find("Sec-Fetch-Site"); site != message.end()) {
    request_.fetch_site = std::string(site->value());
  }
  for (const auto& each : message) {
    request_.headers.emplace_back(std::string(each.name_string()), std::string(each.value()));
  }
  request_.on_socket = crowd_->on_socket;
  request_.peer = peer_;
  keep_alive_ = message.keep_alive();
  in_chunks_ = message.version() >= 11;
  without_body_ = message.method() == http::verb::head;
  expects_continue_ = beast::iequals(message[http::field::expect], "100-continue");
  const auto target = message.target();
  return ParseTarget({target.data(), target.size()}, &request_);
}

void Connection::OnHeader() {
  if (const Status parsed = ReadFields(); !parsed.ok()) {
    return Refuse(400, "invalid", parsed.message());
  }
  const bool whole = header_->is_done();
  if (std::optional<HttpResponse> refused = handler_->Screen(request_)) {
    if (!whole) return Refuse(std::move(*refused));
    ++number_;
    answering_ = true;
    return Reply(number_, std::move(*refused));
  }
  if (whole) return Handle();
  const auto length = header_->content_length();
  if (length && *length > limits_.max_body_bytes && !handler_->TakesPieces(request_)) {
    return OnReadError(http::error::body_limit);
  }
  expects_continue_ ? Encourage() : ReadBody();
}

// A client with a long body may wait to be asked for it: curl does, for a second.
void Connection::Encourage() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  WaitForPeer(limits_.write);
  net::async_write(stream_, net::buffer(kContinue),
                   [self = shared_from_this()](beast::error_code error, size_t) {
                     error ? self->Drop() : self->ReadBody();
                   });
}

void Connection::ReadBody() {
  if (handler_->TakesPieces(request_)) {
    pieces_.emplace(std::move(*header_));
    pieces_->body_limit(UINT64_MAX);
    return Handle();
  }
  whole_.emplace(std::move(*header_));
  whole_->body_limit(limits_.max_body_bytes);
  WaitForPeer(limits_.body);
  http::async_read(stream_, buffer_, *whole_,
                   [self = shared_from_this()](beast::error_code error, size_t) {
                     if (error) return self->OnReadError(error);
                     self->request_.body = std::move(self->whole_->get().body());
                     self->Handle();
                   });
}

// Of the handler's answer and the clock, the first one counts.
void Connection::Handle() {
  WaitForHandler();
  answering_ = true;
  begun_ = ending_ = false;
  self_ = shared_from_this();
  const uint64_t number = ++number_;
  if (!pieces_) WatchPeer();
  const auto limit = handler_->Handle(std::move(request_),
                                      std::make_shared<Answer>(context_, weak_from_this(), number));
  if (limit.count() <= 0) return;
  late_.expires_after(limit);
  late_.async_wait([self = shared_from_this(), number](beast::error_code error) {
    if (error || !self->MayBegin(number)) return;
    self->Reply(number, self->handler_->Refusal(
                            503, "late",
                            "the server did not answer in time; it is busy or hangs; ask again, "
                            "and look at its log"));
  });
}

// ---- A body in pieces

void Connection::ReadPiece(uint64_t number, OnPiece on_piece) {
  if (!IsOpen(number) || on_piece_) {
    return on_piece(Status(Code::kUnavailable, "the peer is gone, or a piece is being read"));
  }
  if (!pieces_ || pieces_->is_done()) return on_piece(std::string());
  on_piece_ = std::move(on_piece);
  piece_.resize(kPieceBytes);
  WaitForPeer(limits_.body);
  ReadSome();
}

void Connection::ReadSome() {
  pieces_->get().body().data = piece_.data();
  pieces_->get().body().size = piece_.size();
  pieces_->get().body().more = true;
  http::async_read_some(
      stream_, buffer_, *pieces_,
      [self = shared_from_this()](beast::error_code error, size_t) { self->OnSome(error); });
}

void Connection::OnSome(beast::error_code error) {
  if (error == http::error::need_buffer) error = {};
  if (error || over_) return Drop();
  const size_t bytes = piece_.size() - pieces_->get().body().size;
  if (bytes == 0 && !pieces_->is_done()) return ReadSome();
  piece_.resize(bytes);
  if (answering_) WaitForHandler();
  if (pieces_->is_done()) WatchPeer();
  std::exchange(on_piece_, nullptr)(std::move(piece_));
}

// ---- The answer

// The request is wrong before a handler hears of it. Whatever follows it is not understood any
// more.
void Connection::Refuse(HttpResponse response) {
  ++number_;
  answering_ = true;
  begun_ = ending_ = false;
  keep_alive_ = false;
  Reply(number_, std::move(response));
}

void Connection::Drop() {
  if (over_) return;
  const auto held = std::move(self_);
  over_ = true;
  late_.cancel();
  stream_.close();
  if (on_piece_) {
    std::exchange(on_piece_, nullptr)(Status(Code::kUnavailable, "the peer is gone, or too slow"));
  }
  if (answering_ && on_hang_up_) std::exchange(on_hang_up_, nullptr)();
}

void Connection::SetHangUp(uint64_t number, std::function<void()> callback) {
  if (over_ && number == number_) return callback();
  if (IsOpen(number)) on_hang_up_ = std::move(callback);
}

// `length` is a whole line, or nothing.
std::string Connection::HeadOf(const HttpResponse& response, const std::string& length) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nCache-Control: no-store\r\nX-Content-Type-Options: "
      "nosniff\r\n{}{}{}Connection: {}\r\n\r\n",
      response.status,
      std::string(http::obsolete_reason(static_cast<http::status>(response.status))),
      response.content_type,
      response.allow.empty() ? "" : fmt::format("Allow: {}\r\n", response.allow),
      response.ask_for_token ? "WWW-Authenticate: Bearer\r\n" : "", length,
      keep_alive_ ? "keep-alive" : "close");
}

void Connection::Reply(uint64_t number, HttpResponse response) {
  if (!MayBegin(number)) return;
  begun_ = ending_ = true;
  late_.cancel();
  std::string head = HeadOf(response, fmt::format("Content-Length: {}\r\n", response.body.size()));
  const bool body = !without_body_ && !response.body.empty();
  if (body) queue_.push_back(std::move(response.body));
  queue_.push_front(std::move(head));
  if (!writing_) WriteNext();
}

void Connection::Begin(uint64_t number, const HttpResponse& head) {
  if (!MayBegin(number)) return;
  begun_ = true;
  late_.cancel();
  if (!in_chunks_) keep_alive_ = false;
  Push(HeadOf(head, in_chunks_ ? "Transfer-Encoding: chunked\r\n" : ""));
}

void Connection::Send(uint64_t number, const std::string& piece) {
  if (!IsOpen(number) || ending_ || piece.empty() || without_body_) return;
  Push(in_chunks_ ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : piece);
}

void Connection::End(uint64_t number) {
  if (!IsOpen(number) || ending_) return;
  ending_ = true;
  Push(in_chunks_ && !without_body_ ? "0\r\n\r\n" : "");
}

void Connection::Push(std::string bytes) {
  unsent_ += bytes.size();
  queue_.push_back(std::move(bytes));
  if (unsent_ > limits_.max_unsent_bytes && !ending_) return Drop();
  if (!writing_) WriteNext();
}

void Connection::WriteNext() {
  writing_ = true;
  WaitForPeer(limits_.write);
  net::async_write(stream_, net::buffer(queue_.front()),
                   [self = shared_from_this()](beast::error_code error, size_t) {
                     self->writing_ = false;
                     if (error || self->over_) return self->Drop();
                     self->unsent_ -= std::min(self->unsent_, self->queue_.front().size());
                     self->queue_.pop_front();
                     if (!self->queue_.empty()) return self->WriteNext();
                     self->ending_ ? self->FinishAnswer() : self->WaitForHandler();
                   });
}

void Connection::FinishAnswer() {
  const auto held = std::move(self_);
  // A body that nobody has read stands before the next request.
  if (pieces_ && !pieces_->is_done()) keep_alive_ = false;
  answering_ = begun_ = ending_ = false;
  on_hang_up_ = nullptr;
  pieces_.reset();
  if (!keep_alive_) {
    closing_ = true;
    beast::error_code ignored;
    stream_.socket().shutdown(net::socket_base::shutdown_send, ignored);
  }
  AwaitRequest();
}

// Closing while bytes of the peer are unread would take the answer away from it.
void Connection::Discard(size_t most) {
  buffer_.clear();
  stream_.async_read_some(buffer_.prepare(kBufferBytes),
                          [self = shared_from_this(), most](beast::error_code error, size_t bytes) {
                            if (error || bytes > most) return self->Drop();
                            self->Discard(most - bytes);
                          });
}

// ---- The listeners

class BeastServer final : public HttpServer {
 public:
  BeastServer(const HttpServerOptions& options, HttpHandler* handler)
      : options_(options), handler_(handler), tcp_(*context_), local_(*context_) {
    tcp_crowd_->max = options.limits.max_connections;
    local_crowd_->max = options.limits.max_socket_connections;
    local_crowd_->on_socket = true;
  }

  ~BeastServer() override {
    net::post(*context_, [this] {
      beast::error_code ignored;
      tcp_.close(ignored);
      local_.close(ignored);
      for (const auto& crowd : {tcp_crowd_, local_crowd_}) {
        const std::set<Connection*> all = crowd->connections;
        for (Connection* const connection : all) {
          if (crowd->connections.contains(connection)) connection->Drop();
        }
      }
      work_.reset();  // The thread ends when the last of them has.
    });
    if (thread_.joinable()) thread_.join();
    if (!listening_path_.empty()) ::unlink(listening_path_.c_str());
  }

  Status Start() {
    if (options_.address) AQ_RETURN_IF_ERROR(ListenTcp(*options_.address));
    if (!options_.socket.empty()) AQ_RETURN_IF_ERROR(ListenLocal());
    if (tcp_.is_open()) Accept(&tcp_, tcp_crowd_);
    if (local_.is_open()) Accept(&local_, local_crowd_);
    thread_ = std::thread([this] {
      NameThisThread(options_.thread_name);
      Run();
    });
    return Status();
  }

  std::optional<HttpAddress> address() const override { return address_; }

 private:
  // An exception of a library is not the end of the process.
  void Run() {
    while (!context_->stopped()) {
      try {
        context_->run();
      } catch (const std::exception&) {
        continue;
      }
    }
  }

  Status ListenTcp(const HttpAddress& address) {
    beast::error_code error;
    const Tcp::endpoint endpoint(net::ip::make_address(address.host, error), address.port);
    if (!error) tcp_.open(endpoint.protocol(), error);
    if (!error) tcp_.set_option(net::socket_base::reuse_address(true), error);
    if (!error) tcp_.bind(endpoint, error);
    if (!error) tcp_.listen(net::socket_base::max_listen_connections, error);
    if (error) {
      tcp_.close();
      return Status(error == net::error::address_in_use ? Code::kBusy : Code::kUnavailable,
                    fmt::format("cannot serve HTTP on {}: {}", address.Text(), error.message()));
    }
    address_ = address;
    address_->port = tcp_.local_endpoint(error).port();
    return Status();
  }

  Status ListenLocal() {
    AQ_ASSIGN_OR_RETURN(Descriptor listener, ListenOn(options_.socket, true));
    local_.assign(Local(), listener.Take());
    listening_path_ = options_.socket;
    return Status();
  }

  template <class Acceptor>
  void Accept(Acceptor* acceptor, const std::shared_ptr<Crowd>& crowd) {
    acceptor->async_accept([this, acceptor, crowd](beast::error_code error, auto socket) {
      if (!acceptor->is_open()) return;
      if (error) return AcceptLater(acceptor, crowd);  // Out of descriptors, most likely.
      Welcome(std::move(socket), crowd);
      Accept(acceptor, crowd);
    });
  }

  template <class Acceptor>
  void AcceptLater(Acceptor* acceptor, const std::shared_ptr<Crowd>& crowd) {
    auto pause = std::make_shared<net::steady_timer>(*context_, kAcceptPause);
    pause->async_wait([this, acceptor, crowd, pause](beast::error_code) {
      if (acceptor->is_open()) Accept(acceptor, crowd);
    });
  }

  // Empty: the peer may not come in.
  static std::string PeerOf(Tcp::socket& socket) {
    beast::error_code error;
    socket.set_option(Tcp::no_delay(true), error);
    const auto endpoint = socket.remote_endpoint(error);
    return error ? "somebody"
                 : fmt::format("{}:{}", endpoint.address().to_string(), endpoint.port());
  }
  static std::string PeerOf(Local::socket& socket) {
    ucred peer{};
    socklen_t length = sizeof(peer);
    if (::getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
      return "";
    }
    if (peer.uid != 0 && peer.uid != ::geteuid()) return "";
    return fmt::format("process {} of user {}", peer.pid, peer.uid);
  }

  // A peer that has asked is answered. Of the others, idle or in the middle of a request, the one
  // goes that we have waited for longest: nobody can keep a probe out with requests that never end.
  static bool MakeRoom(const Crowd& crowd) {
    size_t live = 0;
    Connection* slowest = nullptr;
    for (Connection* const connection : crowd.connections) {
      if (connection->over()) continue;
      ++live;
      if (!connection->waiting_since()) continue;
      if (slowest == nullptr || connection->waiting_since() < slowest->waiting_since()) {
        slowest = connection;
      }
    }
    if (live < crowd.max) return true;
    if (slowest == nullptr) return false;
    slowest->Drop();
    return true;
  }

  template <class Socket>
  void Welcome(Socket socket, const std::shared_ptr<Crowd>& crowd) {
    std::string peer = PeerOf(socket);
    if (peer.empty() || !MakeRoom(*crowd)) return;  // It is closed.
    std::make_shared<Connection>(AnySocket(std::move(socket)), std::move(peer), options_.limits,
                                 handler_, crowd, context_)
        ->AwaitRequest();
  }

  const HttpServerOptions options_;
  HttpHandler* const handler_;
  const std::shared_ptr<net::io_context> context_ =
      std::make_shared<net::io_context>(1);  // Shared with answers to come.
  std::optional<net::executor_work_guard<net::io_context::executor_type>> work_{
      net::make_work_guard(*context_)};
  Tcp::acceptor tcp_;
  Local::acceptor local_;
  const std::shared_ptr<Crowd> tcp_crowd_ = std::make_shared<Crowd>();
  const std::shared_ptr<Crowd> local_crowd_ = std::make_shared<Crowd>();
  std::optional<HttpAddress> address_;
  std::string listening_path_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> StartHttpServer(const HttpServerOptions& options,
                                                    HttpHandler* handler) {
  auto server = std::make_unique<BeastServer>(options, handler);
  AQ_RETURN_IF_ERROR(server->Start());
  return std::unique_ptr<HttpServer>(std::move(server));
}

bool HttpIsBuilt() { return true; }

}  // namespace aquifer
