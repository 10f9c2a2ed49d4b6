// What a node remembers from one life to the next: where its data keys were. By default that
// follows from the tiers that it has; were it decided anew at each start, a tier that is added or
// moved would take the keys to another place, and what they sealed with it. A small file in the
// node's state directory (docs/formats/keys.md).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "tenant/keys/key_store.h"

namespace aquifer {

// Where a key store is, whatever the tier that it belongs to is called.
struct KeyAddress {
  std::string directory{};  // Or:
  std::string bucket{};
  std::string prefix{};
  std::vector<std::string> endpoints{};

  // Servers of one bucket may be named in full or in part: one in common is enough.
  bool IsSame(const KeyAddress& other) const;
  std::string Describe() const;  // "in /var/lib/aquifer/keys", "in bucket kv of https://s3.local"
};

class KeyMemory {
 public:
  // Of the node with this socket: nodes of one host may share a state directory. An empty `state`:
  // there is none, and nothing is remembered.
  KeyMemory(const std::string& state, std::string socket);

  const std::string& file() const { return file_; }

  // Nothing: it has had no keys yet. kInvalid: it cannot be told, and what to do.
  Result<std::optional<KeyAddress>> Recall() const;
  // On the medium when it returns.
  Status Remember(const KeyAddress& address) const;

 private:
  const std::string socket_;
  const std::string file_;
};

// The same store; that it is there is remembered before it gets its first key from here, and as
// soon as one has been read in it. `on_failure`, where that fails, once at most, on the thread of a
// call.
std::unique_ptr<KeyStore> NewRememberedKeys(std::unique_ptr<KeyStore> store, KeyMemory memory,
                                            KeyAddress address,
                                            std::function<void(const Status&)> on_failure);

}  // namespace aquifer
