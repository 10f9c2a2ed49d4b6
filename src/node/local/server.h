// Listens on the node's socket and keeps its connections. No user of the host can take so many of
// them, in whatever state, that another finds none. Runs on the owner, but for New() and the
// destructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/descriptor.h"
#include "cache/running_core.h"
#include "net/local/epoll_waiter.h"
#include "node/local/connection.h"

namespace aquifer {

struct ServerOptions {
  std::string socket;
  bool private_to_user = true;  // Other users cannot even connect.
  // Those that have ended but may still touch what they were lent count apart, for each user: they
  // keep that user's new ones out, and nobody else's.
  uint32_t max_connections = 1024;
  uint32_t max_connections_per_user = 512;
  uint32_t max_lingering_per_user = 512;
  uint32_t max_greeting = 256;  // Of those that have not said who they are yet.
  uint32_t max_greeting_per_user = 64;
  // Announced by all clients; a request that would exceed it is kBusy. One half has an equal part
  // for each connection, which nobody else can take; of the other, a tenant of a user takes no more
  // than it leaves.
  size_t max_items = size_t{8} << 20;
  ConnectionLimits limits;
  // Who the client is, or why it may not come in. On the owner.
  std::function<Result<Admission>(const Hello&, const PeerCredentials&)> admit;
  // A line for the log, and which user has caused it, none where it is the node's own; may be
  // empty. On the owner.
  std::function<void(std::optional<uid_t> user, const std::string&)> log;
  Recorder* recorder = nullptr;  // Hears what is asked for. Outlives the server; may be null.
};

struct ServerStats {
  uint64_t accepted = 0;
  uint64_t turned_away = 0;  // There were too many, or nothing is known of the process.
  uint64_t goodbyes = 0;     // Ended by the client with a goodbye.
  uint64_t cut_off = 0;      // Ended by us, or by the client without a goodbye.
  uint64_t open = 0;
  uint64_t lingering = 0;
};

class Server final : private Connection::Host {
 public:
  // The core and the waiter outlive it, and the owner still runs when it is destroyed.
  static Result<std::unique_ptr<Server>> New(const ServerOptions& options, RunningCore* running,
                                             EpollWaiter* waiter);
  ~Server();

  // Takes no more connections and ends those there are; what they hold stays lent.
  void Close();
  // Ends the connections of those for whom it is false; what they hold stays lent.
  void KeepThose(const std::function<bool(const Admission&, const PeerCredentials&)>& may_stay);
  // Other users can, or cannot, connect from now on.
  Status SetPrivateToUser(bool private_to_user);
  ServerStats stats() const;

 private:
  Server(const ServerOptions& options, RunningCore* running, EpollWaiter* waiter,
         Descriptor listener);

  // Connection::Host.
  Core* core() override { return running_->core(); }
  Executor* owner() override { return running_->owner(); }
  EpollWaiter* waiter() override { return waiter_; }
  Clock* clock() override;
  WorkerPool* workers() override { return running_->workers(); }
  TaskMeter* meter() override { return running_->meter(); }
  const std::shared_ptr<std::atomic<uint32_t>>& closing() override { return closing_; }
  size_t ItemsLeft(const Connection& connection) override;
  void AddItems(const Connection& connection, size_t count) override;
  void RemoveItems(const Connection& connection, size_t count) override;
  Recorder* recorder() override { return options_.recorder; }
  Result<Admission> Admit(const Hello& hello, const PeerCredentials& peer) override;
  void OnOpened(Connection* connection) override;
  void OnEnded(Connection* connection, const std::string& why) override;
  void OnGone(Connection* connection) override;

  // How many connections are in each state.
  struct Counts {
    uint32_t greeting = 0;
    uint32_t open = 0;
    uint32_t lingering = 0;
  };
  struct User {
    Counts counts;
    std::map<std::string, size_t> items;  // By tenant.
  };
  struct Kept {
    std::unique_ptr<Connection> connection;
    uint32_t Counts::* counted = &Counts::greeting;
  };

  Status Start();
  void Accept();
  void Take(FrameSocket socket);
  bool HasRoomFor(uid_t user) const;
  void CountAs(Connection* connection, uint32_t Counts::* state);
  void Forget(Connection* connection);
  // Announced by its tenant's connections of the same user.
  size_t& ItemsOf(const Connection& connection);
  // Takes no connection for a while.
  void Pause(const std::string& why);
  void Resume();
  void Log(std::optional<uid_t> user, const std::string& line) const;

  const ServerOptions options_;
  RunningCore* const running_;
  EpollWaiter* const waiter_;
  Descriptor listener_;
  uint64_t watch_ = 0;
  bool paused_ = false;
  bool pause_logged_ = false;
  std::map<Connection*, Kept> connections_;
  Counts counts_;
  std::map<uid_t, User> users_;  // Those that have connections.
  size_t items_ = 0;
  ServerStats stats_;
  // Shared with the threads that close, which may outlast the node.
  std::shared_ptr<std::atomic<uint32_t>> closing_ = std::make_shared<std::atomic<uint32_t>>(0);
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // Guards tasks; the owner's.
};

}  // namespace aquifer
