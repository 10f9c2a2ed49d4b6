// DataKeys holds the keys that tenants' blocks are sealed with: one random key for each tenant. The
// node that needs a key first makes it, and all others read it from the key store, where it is
// wrapped (docs/formats/keys.md). A key's id is the tenant's generation: it changes with the key,
// and the name of each object in a store contains it.
//
// Destroying a tenant's key makes every block that was sealed with it unreadable everywhere. Other
// nodes learn of it by Refresh(), which each node calls at least once a minute. When a tenant's key
// was destroyed or is gone from the store, the tenant has no key on this node until Release().
// Blocks that are dropped and erased until then are the old key's, and never the next one's.
//
// Any thread may call; all functions but Known() wait for the key store. A secret is wiped when its
// last user lets go, and no message contains it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "aquifer/status.h"
#include "base/crypto/random.h"
#include "base/mutex.h"
#include "block/block_id.h"
#include "block/seal.h"
#include "tenant/keys/key_store.h"
#include "tenant/keys/key_wrapper.h"

namespace aquifer {

class DataKeys {
 public:
  // The store, the wrapper and the random source outlive this object.
  DataKeys(KeyStore* store, KeyWrapper* wrapper, Random* random)
      : store_(store), wrapper_(wrapper), random_(random) {}

  // The tenant's key, from memory or from the store; makes one if there is none. kUnavailable: the
  // store cannot be reached. kInvalid: its master key is not known. kCorrupt: it was changed.
  // kBusy: the tenant waits for Release(), or the key changes all the time.
  Result<SharedDataKey> GetOrMake(const TenantId& tenant) AQ_EXCLUDES(mutex_);
  // As GetOrMake(), but returns kNotFound instead of making a key.
  Result<SharedDataKey> Get(const TenantId& tenant) AQ_EXCLUDES(mutex_);

  // The key in memory, or null. Waits for nothing.
  SharedDataKey Known(const TenantId& tenant) const AQ_EXCLUDES(mutex_);

  size_t known() const AQ_EXCLUDES(mutex_);  // How many keys are in memory.

  // The ids of the tenant's past keys, the newest last: keys that were in memory and are gone from
  // the store. Only a bounded number is remembered.
  std::vector<DataKeyId> Past(const TenantId& tenant) const AQ_EXCLUDES(mutex_);

  // Returns true if the key with this id was destroyed on this node, or elsewhere as far as
  // ReadMarks() has read.
  bool IsDestroyed(const DataKeyId& id) const AQ_EXCLUDES(mutex_);
  std::vector<DataKeyId> Destroyed() const AQ_EXCLUDES(mutex_);
  // Reads the marks that destroyed keys leave in the store for nodes that were not there. Also
  // writes the marks of this node that the store has not taken yet.
  Status ReadMarks() AQ_EXCLUDES(mutex_);

  struct Refreshed {
    // Tenants whose keys were forgotten, because the store has none any more or another one. The
    // caller drops every sealed block of each tenant, and then calls Release() for it.
    std::vector<TenantId> forgotten;
    // The first error with a key that is still in the store, or that cannot be asked for. That key
    // stays known.
    Status status;
  };
  // Reads every key in memory again from the store.
  Refreshed Refresh() AQ_EXCLUDES(mutex_);

  // Destroys the key for ever, and on this node at once. Succeeds if there is none. Its id stays in
  // the store as a mark. If ok, the caller drops the blocks that the key sealed, and calls
  // Release().
  Status Destroy(const TenantId& tenant) AQ_EXCLUDES(mutex_);

  // Call once for each time that a key was forgotten, when its blocks are dropped here. The tenant
  // may then have another key.
  void Release(const TenantId& tenant) AQ_EXCLUDES(mutex_);
  // Returns true if the tenant waits for Release().
  bool held(const TenantId& tenant) const AQ_EXCLUDES(mutex_);

  // Wraps all keys in the store that an older master key has wrapped with the current one. Sealed
  // blocks do not change. Returns how many keys were wrapped, or the first error, after trying all.
  Result<size_t> Rewrap();

 private:
  Result<SharedDataKey> Read(const TenantId& tenant);
  Result<bool> Make(const TenantId& tenant);
  // Returns true if the store says from now on that this key was destroyed.
  bool Mark(const DataKeyId& id);
  // The key's id in the store; nothing if there is no readable key.
  std::optional<DataKeyId> IdInStore(const TenantId& tenant);
  void AddPast(const TenantId& tenant, const DataKeyId& id) AQ_REQUIRES(mutex_);
  // Keeps a key in memory and returns it. Returns null if a key was destroyed since `destroyed` was
  // counted.
  SharedDataKey Remember(const TenantId& tenant, SharedDataKey key, uint64_t destroyed)
      AQ_EXCLUDES(mutex_);

  KeyStore* const store_;
  KeyWrapper* const wrapper_;
  Random* const random_;

  mutable Mutex mutex_;
  std::map<TenantId, SharedDataKey> keys_ AQ_GUARDED_BY(mutex_);
  uint64_t destroyed_ AQ_GUARDED_BY(mutex_) = 0;  // How often a key was destroyed or forgotten.
  std::map<TenantId, std::vector<DataKeyId>> past_ AQ_GUARDED_BY(mutex_);
  std::multiset<TenantId> held_ AQ_GUARDED_BY(mutex_);
  std::set<DataKeyId> marks_ AQ_GUARDED_BY(mutex_);
  std::set<DataKeyId> unmarked_ AQ_GUARDED_BY(mutex_);  // The marks that the store has not taken.
};

// How many tenants have a key in `from` that is missing or another one in `to`. A null `to` has
// none.
Result<size_t> CountMissingKeys(KeyStore* from, KeyStore* to);

}  // namespace aquifer
