// Whether what leaves a node's DRAM is sealed, by which master keys, and where the tenants' data
// keys lie.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "base/secret_key.h"
#include "node/node_config.h"
#include "node/node_plan.h"
#include "node/secret_environment.h"
#include "tenant/key_store.h"

namespace aquifer {

// The current one first; none: nothing is sealed. kInvalid: there must be some, or those there are
// cannot be used, with what to do.
Result<std::vector<SecretKey>> MasterKeysFor(const NodeConfig& config,
                                             const SecretEnvironment& environment, uid_t self);

struct KeyPlace {
  std::string directory{};           // Or:
  const TierConfig* tier = nullptr;  // A tier of the configuration, which lives as long.
  // Of a directory that the configuration names: the file in the node's state that says which have
  // had keys before. Empty: nothing is remembered.
  std::string memory{};

  std::string Describe() const;  // "in /var/lib/aquifer/keys", "in tier far"
};

// Makes the node's state directory where it is needed.
Result<KeyPlace> PlaceOfKeys(const NodeConfig& config, const NodeHost& host);

// A store that cannot be reached yet is no error; a directory that had keys once and is empty now
// is one: its file system is not mounted, and nobody makes new keys in its place.
Result<std::unique_ptr<KeyStore>> OpenKeys(const KeyPlace& place,
                                           const SecretEnvironment& environment);

}  // namespace aquifer
