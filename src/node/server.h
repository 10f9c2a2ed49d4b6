// Listens on the node's socket and keeps its connections. Runs on the owner, but for New() and the
// destructor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "base/descriptor.h"
#include "cache/running_core.h"
#include "net/epoll_waiter.h"
#include "node/connection.h"

namespace aquifer {

struct ServerOptions {
  std::string socket;
  bool private_to_user = true;  // Other users cannot even connect.
  uint32_t max_connections = 1024;
  ConnectionLimits limits;
  // Who the client is, or why it may not come in. On the owner.
  std::function<Result<Admission>(const Hello&, const PeerCredentials&)> admit;
  // A line for the log; may be empty. On the owner.
  std::function<void(const std::string&)> log;
  Recorder* recorder = nullptr;  // Hears what is asked for. Outlives the server; may be null.
};

struct ServerStats {
  uint64_t accepted = 0;
  uint64_t turned_away = 0;  // There were too many.
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
  ServerStats stats() const;

 private:
  Server(const ServerOptions& options, RunningCore* running, EpollWaiter* waiter,
         Descriptor listener);

  // Connection::Host.
  Core* core() override { return running_->core(); }
  Executor* owner() override { return running_->owner(); }
  EpollWaiter* waiter() override { return waiter_; }
  Clock* clock() override;
  Recorder* recorder() override { return options_.recorder; }
  Result<Admission> Admit(const Hello& hello, const PeerCredentials& peer) override;
  void OnEnded(Connection* connection, const std::string& why) override;
  void OnGone(Connection* connection) override;

  void Start();
  void Accept();

  const ServerOptions options_;
  RunningCore* const running_;
  EpollWaiter* const waiter_;
  Descriptor listener_;
  uint64_t watch_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;
  ServerStats stats_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // Guards tasks; the owner's.
};

}  // namespace aquifer
