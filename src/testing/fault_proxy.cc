#include "testing/fault_proxy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/mutex.h"

namespace aquifer {
namespace {

using std::chrono::steady_clock;

constexpr size_t kPieceBytes = size_t{64} << 10;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

Descriptor BoundSocket() {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_in address = Loopback(0);
  AQ_CHECK(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return socket;
}

uint16_t PortOf(const Descriptor& socket) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  AQ_CHECK(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return ntohs(address.sin_port);
}

void SendAtOnce(const Descriptor& socket) {
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// So that closing it resets the connection.
void ForgetOnClose(const Descriptor& socket) {
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
}

// One direction of one connection.
struct Flow {
  const Descriptor* from;
  const Descriptor* to;
  bool answers;
  std::vector<char> piece{};  // Read and not passed on yet: from `sent` on.
  size_t sent = 0;
  uint64_t seen = 0;               // Bytes read since `generation`.
  uint64_t generation = 0;         // Of the faults.
  steady_clock::time_point due{};  // The piece may go then.
  bool at_end = false;             // `from` will send no more.
  bool ended = false;              // And `to` was told so.
  bool cut_after_piece = false;

  bool empty() const { return sent == piece.size(); }
};

struct Connection {
  Connection(Descriptor client_socket, Descriptor server_socket)
      : client(std::move(client_socket)), server(std::move(server_socket)) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Descriptor client;
  Descriptor server;
  Flow requests{.from = &client, .to = &server, .answers = false};
  Flow answers{.from = &server, .to = &client, .answers = true};
  bool over = false;
};

}  // namespace

class FaultProxy::Loop {
 public:
  explicit Loop(uint16_t server_port)
      : server_port_(server_port),
        listener_(BoundSocket()),
        port_(PortOf(listener_)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    AQ_CHECK(wake_.valid() && ::listen(listener_.get(), SOMAXCONN) == 0);
    thread_ = std::thread([this] { Run(); });
  }

  ~Loop() {
    {
      const MutexLock lock(&mutex_);
      ending_ = true;
    }
    Wake();
    thread_.join();
  }

  uint16_t port() const { return port_; }

  void Set(const ProxyFaults& faults) {
    const MutexLock lock(&mutex_);
    faults_ = faults;
    const uint64_t wanted = ++generation_;
    Wake();
    while (applied_ < wanted) applied_changed_.Wait(&mutex_);
  }

  std::atomic<uint64_t> connections{0};
  std::atomic<uint64_t> request_bytes{0};
  std::atomic<uint64_t> answer_bytes{0};
  std::atomic<uint64_t> happened{0};

 private:
  void Wake() {
    const uint64_t one = 1;
    AQ_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  }

  void Run() {
    while (TakeOrders()) {
      if (now_.refuse) open_.clear();
      for (Connection& connection : open_) {
        Advance(&connection, &connection.requests);
        Advance(&connection, &connection.answers);
      }
      open_.remove_if([](const Connection& connection) {
        return connection.over || (connection.requests.ended && connection.answers.ended);
      });
      WaitForEvents();
      Accept();
    }
  }

  // False: it is over.
  bool TakeOrders() {
    uint64_t ignored = 0;
    while (::read(wake_.get(), &ignored, sizeof(ignored)) > 0) {
    }
    const MutexLock lock(&mutex_);
    if (applied_ != generation_) {
      now_ = faults_;
      applied_ = generation_;
      times_left_ = now_.times;
      applied_changed_.NotifyAll();
    }
    now_generation_ = applied_;
    return !ending_;
  }

  void WaitForEvents() {
    std::vector<pollfd> waiting = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                   {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    int timeout_ms = -1;
    for (const Connection& connection : open_) {
      if (now_.stall) break;
      for (const Flow* flow : {&connection.requests, &connection.answers}) {
        if (flow->ended) continue;
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(flow->due - steady_clock::now());
        if (flow->empty()) {
          waiting.push_back({.fd = flow->from->get(), .events = POLLIN, .revents = 0});
        } else if (left.count() > 0) {
          const int wait_ms = static_cast<int>(left.count());
          timeout_ms = timeout_ms < 0 ? wait_ms : std::min(timeout_ms, wait_ms);
        } else {
          waiting.push_back({.fd = flow->to->get(), .events = POLLOUT, .revents = 0});
        }
      }
    }
    ::poll(waiting.data(), waiting.size(), timeout_ms);
  }

  void Accept() {
    while (true) {
      Descriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!client.valid()) return;
      connections.fetch_add(1);
      ForgetOnClose(client);
      SendAtOnce(client);
      Descriptor server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const sockaddr_in address = Loopback(server_port_);
      // On the loopback this waits for nothing.
      if (now_.refuse || ::connect(server.get(), reinterpret_cast<const sockaddr*>(&address),
                                   sizeof(address)) != 0) {
        continue;
      }
      ForgetOnClose(server);
      SendAtOnce(server);
      open_.emplace_back(std::move(client), std::move(server));
    }
  }

  void Advance(Connection* connection, Flow* flow) {
    if (now_.stall || flow->ended || connection->over) return;
    if (flow->generation != now_generation_) {
      flow->generation = now_generation_;
      flow->seen = 0;
    }
    if (flow->empty() && !flow->at_end) Read(connection, flow);
    if (!flow->empty() && flow->due <= steady_clock::now()) Send(connection, flow);
    if (!flow->empty()) return;
    if (flow->cut_after_piece) connection->over = true;
    if (flow->at_end) {
      ::shutdown(flow->to->get(), SHUT_WR);
      flow->ended = true;
    }
  }

  void Read(Connection* connection, Flow* flow) {
    flow->piece.resize(kPieceBytes);
    flow->sent = 0;
    const ssize_t length = ::recv(flow->from->get(), flow->piece.data(), kPieceBytes, MSG_DONTWAIT);
    const int error = errno;
    flow->piece.resize(static_cast<size_t>(std::max<ssize_t>(length, 0)));
    if (length == 0) flow->at_end = true;
    if (length < 0 && error != EAGAIN && error != EINTR) connection->over = true;
    if (length <= 0) return;
    if (flow->answers) flow->due = steady_clock::now() + now_.delay;
    const uint64_t before = flow->seen;
    flow->seen += flow->piece.size();
    ApplyFaults(flow, before);
  }

  // To the piece that was read; `before` bytes came before it.
  void ApplyFaults(Flow* flow, uint64_t before) {
    if (times_left_ == 0) return;
    const auto is_here = [&](uint64_t at) { return at >= before && at < flow->seen; };
    const uint64_t cut = flow->answers ? now_.cut_answers_after : now_.cut_requests_after;
    if (is_here(cut)) {
      flow->piece.resize(cut - before);
      flow->cut_after_piece = true;
      CountFault();
    } else if (flow->answers && is_here(now_.end_answers_after)) {
      flow->piece.resize(now_.end_answers_after - before);
      flow->at_end = true;
      CountFault();
    } else if (flow->answers && is_here(now_.flip_answer_byte)) {
      flow->piece[now_.flip_answer_byte - before] ^= 1;
      CountFault();
    }
  }

  void CountFault() {
    happened.fetch_add(1);
    if (times_left_ != ProxyFaults::kNever) --times_left_;
  }

  void Send(Connection* connection, Flow* flow) {
    const ssize_t length = ::send(flow->to->get(), flow->piece.data() + flow->sent,
                                  flow->piece.size() - flow->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (length < 0 && errno != EAGAIN && errno != EINTR) connection->over = true;
    if (length <= 0) return;
    flow->sent += static_cast<size_t>(length);
    (flow->answers ? answer_bytes : request_bytes).fetch_add(static_cast<uint64_t>(length));
  }

  const uint16_t server_port_;
  const Descriptor listener_;
  const uint16_t port_;
  const Descriptor wake_;

  // Only the thread's.
  std::list<Connection> open_;
  ProxyFaults now_;
  uint64_t now_generation_ = 0;
  uint64_t times_left_ = ProxyFaults::kNever;

  Mutex mutex_;
  Condition applied_changed_;
  ProxyFaults faults_ AQ_GUARDED_BY(mutex_);
  uint64_t generation_ AQ_GUARDED_BY(mutex_) = 0;  // Of faults_.
  uint64_t applied_ AQ_GUARDED_BY(mutex_) = 0;     // The generation that is in force.
  bool ending_ AQ_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

FaultProxy::FaultProxy(uint16_t server_port) : loop_(std::make_unique<Loop>(server_port)) {}

FaultProxy::~FaultProxy() = default;

uint16_t FaultProxy::port() const { return loop_->port(); }

void FaultProxy::Set(const ProxyFaults& faults) { loop_->Set(faults); }

uint64_t FaultProxy::connections() const { return loop_->connections.load(); }
uint64_t FaultProxy::request_bytes() const { return loop_->request_bytes.load(); }
uint64_t FaultProxy::answer_bytes() const { return loop_->answer_bytes.load(); }
uint64_t FaultProxy::faults_happened() const { return loop_->happened.load(); }

uint16_t FreePort() { return PortOf(BoundSocket()); }

}  // namespace aquifer
