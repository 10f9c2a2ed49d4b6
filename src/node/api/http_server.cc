#include "node/api/http_server.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
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
constexpr size_t kFirstBytes = 4096;
constexpr size_t kMaxDiscardedBytes = 1 << 20;
constexpr auto kDiscard = std::chrono::seconds(2);
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

class Session;

// The connections of one listener.
struct Crowd {
  size_t max = 0;
  bool on_socket = false;
  std::set<Session*> sessions;
};

// One connection. It lives for as long as something is under way on it, or a reply is to come. Runs
// on the server's thread.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(AnySocket socket, std::string peer, const HttpLimits& limits, HttpHandler* handler,
          std::shared_ptr<Crowd> crowd, const std::shared_ptr<net::io_context>& context)
      : limits_(limits),
        handler_(handler),
        crowd_(std::move(crowd)),
        context_(context),
        peer_(std::move(peer)),
        stream_(std::move(socket)),
        late_(stream_.get_executor()),
        buffer_(kBufferBytes) {
    crowd_->sessions.insert(this);
  }
  ~Session() { crowd_->sessions.erase(this); }

  void Start() { AwaitRequest(); }
  bool over() const { return over_; }
  // None: the peer waits for us.
  std::optional<Clock::time_point> waiting_since() const { return waiting_since_; }
  void Drop() {
    over_ = true;
    late_.cancel();
    stream_.close();
  }

 private:
  // From here on the peer has so long, for what comes next.
  void WaitForPeer(Clock::duration limit) {
    waiting_since_ = Clock::now();
    stream_.expires_after(limit);
  }

  // Waits for the first byte, so that an idle connection is told from a slow one.
  void AwaitRequest() {
    parser_.emplace();
    parser_->header_limit(limits_.max_header_bytes);
    parser_->body_limit(limits_.max_body_bytes);
    if (buffer_.size() > 0) return ReadHeader();  // The next one was sent behind the last.
    WaitForPeer(limits_.idle);
    stream_.async_read_some(buffer_.prepare(kFirstBytes),
                            [self = shared_from_this()](beast::error_code error, size_t bytes) {
                              if (error) return self->Drop();
                              self->buffer_.commit(bytes);
                              self->ReadHeader();
                            });
  }

  void ReadHeader() {
    WaitForPeer(limits_.header);
    http::async_read_header(stream_, buffer_, *parser_,
                            [self = shared_from_this()](beast::error_code error, size_t) {
                              error ? self->OnReadError(error) : self->OnHeader();
                            });
  }

  void OnReadError(beast::error_code error) {
    if (error == http::error::header_limit) {
      return RefuseAndClose(HttpError(431, "too_large", "the header is too long; send less"));
    }
    if (error == http::error::body_limit) {
      return RefuseAndClose(
          HttpError(413, "too_large",
                    fmt::format("the body has more than {} bytes; send several requests",
                                limits_.max_body_bytes)));
    }
    const beast::error_code parse_error = http::error::bad_method;
    if (error.category() == parse_error.category() && error != http::error::end_of_stream &&
        error != http::error::partial_message) {
      return RefuseAndClose(HttpError(400, "invalid", "this is not HTTP: " + error.message()));
    }
    Drop();
  }

  std::optional<std::string> Header(http::field field) {
    const auto& message = parser_->get();
    if (message.count(field) > 1) request_.repeated_header = true;
    const auto found = message.find(field);
    if (found == message.end()) return std::nullopt;
    return std::string(found->value());
  }

  void OnHeader() {
    const auto& message = parser_->get();
    request_ = {};
    request_.method = std::string(message.method_string());
    request_.host = Header(http::field::host).value_or("");
    request_.origin = Header(http::field::origin);
    request_.content_type = Header(http::field::content_type);
    request_.authorization = Header(http::field::authorization);
    if (const auto site = message.find("Sec-Fetch-Site"); site != message.end()) {
      request_.fetch_site = std::string(site->value());
    }
    request_.on_socket = crowd_->on_socket;
    request_.peer = peer_;
    const auto target = message.target();
    const Status parsed = ParseTarget({target.data(), target.size()}, &request_);
    if (!parsed.ok()) return RefuseAndClose(HttpError(400, "invalid", parsed.message()));
    if (std::optional<HttpResponse> refused = handler_->Screen(request_)) {
      return parser_->is_done() ? Write(std::move(*refused), message.keep_alive())
                                : RefuseAndClose(std::move(*refused));
    }
    if (parser_->is_done()) return Handle();
    if (beast::iequals(message[http::field::expect], "100-continue")) return Encourage();
    ReadBody();
  }

  void Encourage() {
    static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
    WaitForPeer(limits_.write);
    net::async_write(stream_, net::buffer(kContinue, sizeof(kContinue) - 1),
                     [self = shared_from_this()](beast::error_code error, size_t) {
                       error ? self->Drop() : self->ReadBody();
                     });
  }

  void ReadBody() {
    WaitForPeer(limits_.body);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](beast::error_code error, size_t) {
                       error ? self->OnReadError(error) : self->Handle();
                     });
  }

  void Handle() {
    waiting_since_.reset();
    stream_.expires_never();
    request_.body = std::move(parser_->get().body());
    const uint64_t number = ++number_;
    // Whoever replies may do so when the server is gone. The session is only touched, and only
    // ends, on this thread: until then the timer below holds on to it.
    auto reply = [context = context_.lock(), session = weak_from_this(),
                  number](HttpResponse response) {
      net::post(*context, [session, number, response = std::move(response)]() mutable {
        if (const auto self = session.lock()) self->OnReply(number, std::move(response));
      });
    };
    const auto limit = handler_->Handle(std::move(request_), std::move(reply));
    late_.expires_after(limit);
    late_.async_wait([self = shared_from_this(), number](beast::error_code error) {
      if (error) return;
      self->OnReply(number, HttpError(503, "late",
                                      "the node did not answer in time; it is busy or hangs; ask "
                                      "again, and look at its log"));
    });
  }

  // Of the reply and the clock, the first one counts.
  void OnReply(uint64_t number, HttpResponse response) {
    if (over_ || number != number_ || number == answered_) return;
    answered_ = number;
    late_.cancel();
    Write(std::move(response), parser_->get().keep_alive());
  }

  void RefuseAndClose(HttpResponse response) { Write(std::move(response), false); }

  void Write(HttpResponse response, bool keep_alive) {
    const bool head = parser_->get().method() == http::verb::head;
    response_.emplace(static_cast<http::status>(response.status), 11);
    response_->set(http::field::content_type, response.content_type);
    response_->set(http::field::cache_control, "no-store");
    response_->set("X-Content-Type-Options", "nosniff");
    if (!response.allow.empty()) response_->set(http::field::allow, response.allow);
    if (response.ask_for_token) response_->set(http::field::www_authenticate, "Bearer");
    response_->keep_alive(keep_alive);
    if (!head) response_->body() = std::move(response.body);
    response_->prepare_payload();
    WaitForPeer(limits_.write);
    http::async_write(stream_, *response_,
                      [self = shared_from_this(), keep_alive](beast::error_code error, size_t) {
                        if (error) return self->Drop();
                        keep_alive ? self->AwaitRequest() : self->EndSending();
                      });
  }

  // What the peer still sends is read, for a while: closing at once would take our answer with it.
  void EndSending() {
    beast::error_code ignored;
    stream_.socket().shutdown(net::socket_base::shutdown_send, ignored);
    WaitForPeer(kDiscard);
    Discard(0);
  }

  void Discard(size_t bytes) {
    if (bytes > kMaxDiscardedBytes) return Drop();
    buffer_.clear();
    stream_.async_read_some(
        buffer_.prepare(kFirstBytes),
        [self = shared_from_this(), bytes](beast::error_code error, size_t more) {
          error ? self->Drop() : self->Discard(bytes + more);
        });
  }

  const HttpLimits limits_;
  HttpHandler* const handler_;
  const std::shared_ptr<Crowd> crowd_;  // Shared with the listener; it may end before we do.
  const std::weak_ptr<net::io_context> context_;  // It runs us, so it is there.
  const std::string peer_;
  Stream stream_;
  net::steady_timer late_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
  HttpRequest request_;
  uint64_t number_ = 0;    // Of the request.
  uint64_t answered_ = 0;  // The last that was.
  bool over_ = false;
  std::optional<Clock::time_point> waiting_since_;  // For the peer.
};

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
        for (Session* const session : crowd->sessions) session->Drop();
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
      NameThisThread("aq-http");
      Run();
    });
    return Status();
  }

  std::optional<HttpAddress> address() const override { return address_; }

 private:
  // What a library throws is not the end of the node.
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
                    fmt::format("cannot serve HTTP on {}: {}; choose another address with --http, "
                                "or --http off",
                                address.Text(), error.message()));
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

  // Who has asked is answered. Of the others, idle or in the middle of a request, goes whom we have
  // waited for longest: nobody can keep a probe out with requests that never end.
  static bool MakeRoom(const Crowd& crowd) {
    size_t live = 0;
    Session* slowest = nullptr;
    for (Session* const session : crowd.sessions) {
      if (session->over()) continue;
      ++live;
      if (!session->waiting_since()) continue;
      if (slowest == nullptr || session->waiting_since() < slowest->waiting_since()) {
        slowest = session;
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
    std::make_shared<Session>(AnySocket(std::move(socket)), std::move(peer), options_.limits,
                              handler_, crowd, context_)
        ->Start();
  }

  const HttpServerOptions options_;
  HttpHandler* const handler_;
  const std::shared_ptr<net::io_context> context_ =
      std::make_shared<net::io_context>(1);  // Shared with replies to come.
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
