// The durable tiers of a node, as its configuration names them: their stores, and what the core
// makes its tiers of. It owns the stores and the packer that seals for all of them, and outlives
// the core. A store that cannot be reached is no error: its tier is out of service until it can.
//
// Made and destroyed by the thread that runs the node; any thread may ask for a store.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "block/key_source.h"
#include "cache/core_snapshot.h"
#include "cache/environment.h"
#include "node/config/known_directories.h"
#include "node/config/secret_environment.h"
#include "node/config/tier_config.h"
#include "store/blob_store.h"
#include "store/s3/bucket.h"
#include "tier/packing/packer.h"

namespace aquifer {

// kInvalid: what in the configuration is wrong, or which file cannot be read. kUnavailable: this
// build lacks what it needs, with the package's name.
// `known`, which outlives it: where posix tiers have been.
Result<std::unique_ptr<BlobStore>> NewStore(const TierConfig& tier,
                                            const SecretEnvironment& environment,
                                            KnownDirectories* known);

// Where an object tier's servers are: as named, or Amazon's.
std::vector<std::string> EndpointsOf(const TierConfig& tier);

// The bucket of an object tier.
Result<BucketOptions> BucketOf(const TierConfig& tier, const SecretEnvironment& environment);

class NodeStores {
 public:
  // `keys`, which outlives it, is null where nothing is sealed. `state`: the node's directory.
  static Result<std::unique_ptr<NodeStores>> New(const std::vector<TierConfig>& tiers,
                                                 const SecretEnvironment& environment,
                                                 KeySource* keys, const std::string& state);
  ~NodeStores();

  // For the core, in the order of the configuration.
  std::vector<DurableTierSource> Sources();

  // What seals blocks on NVMe as well; null where nothing is sealed.
  Packer* packer() { return packer_.seals() ? &packer_ : nullptr; }

  // Null: there is none of that name.
  BlobStore* Find(std::string_view name) const;
  std::vector<std::string> names() const;

  // Adds what the stores count to what their tiers do, as "store_" and the store's name for it.
  void AddCounters(std::vector<DurableStats>* tiers) const;

 private:
  struct One {
    TierConfig config;
    std::unique_ptr<BlobStore> store;
  };

  NodeStores(KeySource* keys, const std::string& state);

  Packer packer_;
  KnownDirectories known_;
  std::vector<One> tiers_;
};

}  // namespace aquifer
