// Whether what leaves a node's DRAM is sealed, by which master keys, and where the tenants' data
// keys lie, and stay.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/crypto/secret_key.h"
#include "node/config/key_memory.h"
#include "node/config/node_config.h"
#include "node/config/node_plan.h"
#include "node/config/secret_environment.h"
#include "tenant/keys/key_store.h"

namespace aquifer {

// The current one first; none: nothing is sealed. kInvalid: there must be some, or those there are
// cannot be used, with what to do.
Result<std::vector<SecretKey>> MasterKeysFor(const NodeConfig& config,
                                             const SecretEnvironment& environment, uid_t self);

struct KeyPlace {
  std::string directory{};           // Or:
  const TierConfig* tier = nullptr;  // A tier of the configuration, which lives as long.

  std::string Describe() const;  // "in /var/lib/aquifer/keys", "in tier far"
  KeyAddress Address() const;
};

// Makes the node's state directory where it is needed.
Result<KeyPlace> PlaceOfKeys(const NodeConfig& config, const NodeHost& host);

// What the node with this socket remembers, in its state directory.
KeyMemory MemoryOfKeys(const NodeHost& host, const std::string& socket);

// Opens them where the node's keys have been so far, or remembers where they are from the first one
// on. kInvalid: they would be elsewhere, by default, or where key_store names a place that has not
// all of the old one's; with both places and what to write. Where these cannot be compared nothing
// is changed either. A store that cannot be reached yet is no error; and where there were keys
// before and is nothing now, a file system is not mounted, and nobody makes new ones in its place.
Result<std::unique_ptr<KeyStore>> OpenKeys(const NodeConfig& config, const KeyPlace& place,
                                           const KeyMemory& memory,
                                           const SecretEnvironment& environment,
                                           const std::function<void(const std::string&)>& log);

}  // namespace aquifer
