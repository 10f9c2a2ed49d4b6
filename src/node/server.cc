#include "node/server.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace aquifer {

Result<std::unique_ptr<Server>> Server::New(const ServerOptions& options, RunningCore* running,
                                            EpollWaiter* waiter) {
  AQ_ASSIGN_OR_RETURN(Descriptor listener, ListenOn(options.socket, options.private_to_user));
  std::unique_ptr<Server> server(new Server(options, running, waiter, std::move(listener)));
  RunAndWait(running->owner(), [&server](const std::function<void()>& done) {
    server->Start();
    done();
  });
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

void Server::Start() {
  core()->on_extent_wanted = [this](uint32_t extent) {
    for (const auto& connection : connections_) connection->WantBack(extent);
  };
  watch_ = waiter_->Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

void Server::Close() {
  waiter_->Unwatch(std::exchange(watch_, 0));
  for (const auto& connection : connections_) connection->CutOff("the node is shutting down");
}

// One in each turn of the owner.
void Server::Accept() {
  Descriptor accepted = AcceptOn(listener_);
  if (!accepted.valid()) return;
  if (connections_.size() >= options_.max_connections) {
    ++stats_.turned_away;
    return;
  }
  ++stats_.accepted;
  Connection::Host* const host = this;
  FrameSocket socket(std::move(accepted));
  Descriptor process = socket.PeerProcess();
  connections_.push_back(
      std::make_unique<Connection>(std::move(socket), std::move(process), options_.limits, host));
}

Clock* Server::clock() { return SystemClock(); }

Result<Admission> Server::Admit(const Hello& hello, const PeerCredentials& peer) {
  return options_.admit(hello, peer);
}

void Server::OnEnded(Connection* connection, const std::string& why) {
  ++stats_.cut_off;
  if (options_.log) {
    options_.log("client of process " + std::to_string(connection->peer().pid) + ": " + why);
  }
}

void Server::OnGone(Connection* connection) {
  owner()->Post([this, connection, alive = alive_] {
    if (!*alive) return;
    std::erase_if(connections_, [connection](const std::unique_ptr<Connection>& each) {
      return each.get() == connection;
    });
  });
}

ServerStats Server::stats() const {
  ServerStats stats = stats_;
  for (const auto& connection : connections_) {
    if (connection->state() == Connection::State::kOpen) ++stats.open;
    if (connection->state() == Connection::State::kLingering) ++stats.lingering;
  }
  return stats;
}

}  // namespace aquifer
