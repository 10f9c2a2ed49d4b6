// A node in this process with its own socket, for tests of its clients.
#pragma once

#include <memory>
#include <string>

#include "aquifer/cache.h"
#include "aquifer/status.h"
#include "node/local/node.h"
#include "testing/scratch_directory.h"

namespace aquifer {

class OwnNode {
 public:
  // Every process of this user may connect, unless `server` says otherwise.
  static Result<std::shared_ptr<OwnNode>> Start(const CacheOptions& options,
                                                ServerOptions server = {});

  Node& node() { return *node_; }
  std::string socket() const { return scratch_.path() + "/node.sock"; }

 private:
  ScratchDirectory scratch_;
  std::unique_ptr<Node> node_;
};

// A client of a node that ends with its last client, like the cache of Open().
Result<std::unique_ptr<Cache>> ConnectToOwnNode(const CacheOptions& options,
                                                const ClientOptions& client);

}  // namespace aquifer
