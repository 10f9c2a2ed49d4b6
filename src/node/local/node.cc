#include "node/local/node.h"

#include <unistd.h>

#include <string>

namespace aquifer {

Result<std::unique_ptr<Node>> Node::Start(const Options& options) {
  std::unique_ptr<Node> node(new Node());
  AQ_ASSIGN_OR_RETURN(node->waiter_, EpollWaiter::New());
  AQ_ASSIGN_OR_RETURN(node->running_, RunningCore::Start({.cache = options.cache,
                                                          .waiter = node->waiter_.get(),
                                                          .warm_bytes = options.warm_bytes,
                                                          .ready_extents = options.ready_extents,
                                                          .paced_by_cores = options.paced_by_cores,
                                                          .durable_tiers = options.durable_tiers,
                                                          .packer = options.packer}));
  AQ_ASSIGN_OR_RETURN(node->server_,
                      Server::New(options.server, node->running_.get(), node->waiter_.get()));
  return node;
}

Result<Admission> AdmitOwnUser(const Hello& hello, const PeerCredentials& peer) {
  if (peer.uid != ::geteuid()) {
    return Status(Code::kInvalid, "this node serves its own user only");
  }
  return Admission{
      .client = {.tenant = std::string(hello.tenant), .engine = std::string(hello.engine)},
      .may_drain = true};
}

}  // namespace aquifer
