#include "node/local/server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace aquifer {
namespace {

constexpr int64_t kPauseNanos = 100'000'000;
constexpr uint32_t kMaxClosing = 256;

size_t LeftOf(size_t all, size_t taken) { return all - std::min(all, taken); }

}  // namespace

Result<std::unique_ptr<Server>> Server::New(const ServerOptions& options, RunningCore* running,
                                            EpollWaiter* waiter) {
  AQ_ASSIGN_OR_RETURN(Descriptor listener, ListenOn(options.socket, options.private_to_user));
  std::unique_ptr<Server> server(new Server(options, running, waiter, std::move(listener)));
  Status started;
  RunAndWait(running->owner(), [&](const std::function<void()>& done) {
    started = server->Start();
    done();
  });
  if (!started.ok()) return started;
  return server;
}

Server::Server(const ServerOptions& options, RunningCore* running, EpollWaiter* waiter,
               Descriptor listener)
    : options_(options), running_(running), waiter_(waiter), listener_(std::move(listener)) {}

Server::~Server() {
  RunAndWait(running_->owner(), [this](const std::function<void()>& done) {
    Close();
    core()->on_extent_wanted = {};
    connections_.clear();
    *alive_ = false;
    done();
  });
  ::unlink(options_.socket.c_str());
}

Status Server::Start() {
  core()->on_extent_wanted = [this](uint32_t extent) {
    for (const auto& [connection, kept] : connections_) connection->WantBack(extent);
  };
  AQ_ASSIGN_OR_RETURN(watch_,
                      waiter_->Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); }));
  return Status();
}

void Server::Close() {
  waiter_->Unwatch(std::exchange(watch_, 0));
  for (const auto& [connection, kept] : connections_) {
    connection->CutOff("the node is shutting down");
  }
}

void Server::KeepThose(
    const std::function<bool(const Admission&, const PeerCredentials&)>& may_stay) {
  for (const auto& [connection, kept] : connections_) {
    if (connection->state() == Connection::State::kOpen &&
        !may_stay(connection->admission(), connection->peer())) {
      connection->CutOff("it would not be let in any more: the tenants have changed");
    }
  }
}

Status Server::SetPrivateToUser(bool private_to_user) {
  return SetSocketMode(options_.socket, private_to_user);
}

// One in each turn of the owner.
void Server::Accept() {
  if (closing_->load() >= kMaxClosing) return Pause("too many connections are being closed");
  Result<Descriptor> accepted = AcceptOn(listener_);
  if (accepted.status().code() == Code::kBusy) return Pause(accepted.status().message());
  if (!accepted.ok()) return;
  pause_logged_ = false;
  Take(FrameSocket(std::move(*accepted)));
}

// Whoever nothing is known of, or whose end could not be noticed, is not let in.
void Server::Take(FrameSocket socket) {
  const Result<PeerCredentials> peer = socket.Peer();
  Descriptor process = socket.PeerProcess();
  if (!peer.ok() || !process.valid() || !HasRoomFor(peer->uid)) {
    ++stats_.turned_away;
    return FrameSocket::Discard(std::move(socket), closing_);
  }
  socket.KeepFewOnTheirWay();
  Connection::Host* const host = this;
  auto made = std::make_unique<Connection>(std::move(socket), std::move(process), *peer,
                                           options_.limits, host);
  if (const Status begun = made->Begin(); !begun.ok()) {
    ++stats_.turned_away;
    return Pause(begun.message());
  }
  ++stats_.accepted;
  ++counts_.greeting;
  ++users_[peer->uid].counts.greeting;
  Connection* const connection = made.get();
  connections_[connection].connection = std::move(made);
}

bool Server::HasRoomFor(uid_t user) const {
  const auto found = users_.find(user);
  const Counts own = found == users_.end() ? Counts{} : found->second.counts;
  return counts_.greeting < options_.max_greeting &&
         counts_.greeting + counts_.open < options_.max_connections &&
         own.greeting < options_.max_greeting_per_user &&
         own.greeting + own.open < options_.max_connections_per_user &&
         own.lingering < options_.max_lingering_per_user;
}

void Server::CountAs(Connection* connection, uint32_t Counts::* state) {
  uint32_t Counts::*& counted = connections_.at(connection).counted;
  Counts& own = users_.at(connection->peer().uid).counts;
  --(counts_.*counted);
  --(own.*counted);
  counted = state;
  ++(counts_.*counted);
  ++(own.*counted);
}

void Server::Forget(Connection* connection) {
  const auto found = connections_.find(connection);
  const auto user = users_.find(connection->peer().uid);
  --(counts_.*found->second.counted);
  --(user->second.counts.*found->second.counted);
  connections_.erase(found);
  const User& left = user->second;
  if (left.counts.greeting + left.counts.open + left.counts.lingering == 0) users_.erase(user);
  Resume();
}

// The listener is ready all the while: heard of each time, it would be all that the owner does.
void Server::Pause(const std::string& why) {
  if (watch_ == 0 || std::exchange(paused_, true)) return;
  waiter_->Change(watch_, 0);
  if (!std::exchange(pause_logged_, true)) {
    Log(std::nullopt, "no new client can come in for now: " + why);
  }
  owner()->PostAt(clock()->NowNanos() + kPauseNanos, [this, alive = alive_] {
    if (*alive) Resume();
  });
}

void Server::Resume() {
  if (watch_ == 0 || !std::exchange(paused_, false)) return;
  waiter_->Change(watch_, EPOLLIN);
}

void Server::Log(std::optional<uid_t> user, const std::string& line) const {
  if (options_.log) options_.log(user, line);
}

// What is announced may be held for long, and cannot be taken back: so what others need is never
// given away. The parts of all connections together are the half that is not shared.
size_t Server::ItemsLeft(const Connection& connection) {
  const size_t half = options_.max_items / 2;
  const size_t part = LeftOf(half / options_.max_connections, connection.items());
  const size_t shared = LeftOf(LeftOf(half, items_), ItemsOf(connection)) / 2;
  return std::min(LeftOf(options_.max_items, items_), std::max(part, shared));
}

void Server::AddItems(const Connection& connection, size_t count) {
  items_ += count;
  ItemsOf(connection) += count;
}

void Server::RemoveItems(const Connection& connection, size_t count) {
  if (count == 0) return;
  items_ -= count;
  ItemsOf(connection) -= count;
}

size_t& Server::ItemsOf(const Connection& connection) {
  return users_.at(connection.peer().uid).items[connection.admission().client.tenant];
}

Clock* Server::clock() { return SystemClock(); }

Result<Admission> Server::Admit(const Hello& hello, const PeerCredentials& peer) {
  return options_.admit(hello, peer);
}

void Server::OnOpened(Connection* connection) { CountAs(connection, &Counts::open); }

void Server::OnEnded(Connection* connection, const std::string& why) {
  ++(connection->said_goodbye() ? stats_.goodbyes : stats_.cut_off);
  CountAs(connection, &Counts::lingering);
  const PeerCredentials& peer = connection->peer();
  Log(peer.uid, "client of process " + std::to_string(peer.pid) + ": " + why);
}

void Server::OnGone(Connection* connection) {
  owner()->Post([this, connection, alive = alive_] {
    if (*alive) Forget(connection);
  });
}

ServerStats Server::stats() const {
  ServerStats stats = stats_;
  stats.open = counts_.open;
  stats.lingering = counts_.lingering;
  return stats;
}

}  // namespace aquifer
