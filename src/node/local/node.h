// A node: the running core, and the server that lets engines of this host in. `aquifer serve` is
// this with a configuration, logs and signals around it.
#pragma once

#include <memory>
#include <vector>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "cache/running_core.h"
#include "net/local/epoll_waiter.h"
#include "node/local/server.h"

namespace aquifer {

class Node {
 public:
  struct Options {
    CacheOptions cache;
    ServerOptions server;
    uint64_t warm_bytes = RunningCore::Options{}.warm_bytes;
    uint32_t ready_extents = RunningCore::Options{}.ready_extents;
    uint32_t paced_by_cores = 0;  // As in DramPoolOptions.
    std::vector<DurableTierSource> durable_tiers{};
    Packer* packer = nullptr;  // See RunningCore::Options.
  };

  // Returns when it serves.
  static Result<std::unique_ptr<Node>> Start(const Options& options);

  RunningCore* running() { return running_.get(); }
  Server* server() { return server_.get(); }             // On the owner.
  const EpollWaiter* waiter() { return waiter_.get(); }  // On the owner.

 private:
  Node() = default;

  std::unique_ptr<EpollWaiter> waiter_;
  std::unique_ptr<RunningCore> running_;
  std::unique_ptr<Server> server_;
};

// Everyone of this process's user is the tenant that it says.
Result<Admission> AdmitOwnUser(const Hello& hello, const PeerCredentials& peer);

}  // namespace aquifer
