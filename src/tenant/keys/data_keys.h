// The keys that tenants' blocks are sealed with: one for each tenant, random, made by the node that
// needs it first and read by all others from the key store, where it lies wrapped
// (docs/formats/keys.md). A key's id is the tenant's generation: it changes with the key, and is in
// the name of each object that is stored outside.
//
// Whoever destroys a tenant's key makes everything that was sealed with it unreadable everywhere.
// Other nodes learn of it by Refresh(), which is for every minute at the latest. A tenant whose key
// was destroyed or found gone has no other one here until Release(): what is dropped and erased
// until then is the old key's, and nothing of the next one's.
//
// Any thread may call; all but Known() wait for the key store. Secrets are wiped when the last user
// lets go, and stand in no message.
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
  // All outlive it.
  DataKeys(KeyStore* store, KeyWrapper* wrapper, Random* random)
      : store_(store), wrapper_(wrapper), random_(random) {}

  // The tenant's key, out of memory or of the store; else it is made. kUnavailable: the store
  // cannot be reached. kInvalid: its master key is not known. kCorrupt: it was changed. kBusy: it
  // waits for Release(), or changes all the time.
  Result<SharedDataKey> GetOrMake(const TenantId& tenant) AQ_EXCLUDES(mutex_);
  // The same, but kNotFound instead of making one.
  Result<SharedDataKey> Get(const TenantId& tenant) AQ_EXCLUDES(mutex_);

  // What is in memory; null when it is not. Waits for nothing.
  SharedDataKey Known(const TenantId& tenant) const AQ_EXCLUDES(mutex_);

  size_t known() const AQ_EXCLUDES(mutex_);  // How many are in memory.

  // The ids of the tenant's keys that were in memory and are gone from the store, the newest last:
  // of as many as are remembered.
  std::vector<DataKeyId> Past(const TenantId& tenant) const AQ_EXCLUDES(mutex_);

  // Whether a key with this id was destroyed, here or, as far as ReadMarks() has read it,
  // elsewhere.
  bool IsDestroyed(const DataKeyId& id) const AQ_EXCLUDES(mutex_);
  std::vector<DataKeyId> Destroyed() const AQ_EXCLUDES(mutex_);
  // Whoever destroys a key leaves a mark in the store, so that nodes that were not there know. One
  // that could not be left then is left now.
  Status ReadMarks() AQ_EXCLUDES(mutex_);

  struct Refreshed {
    // Their keys were forgotten, because the store has none any more or another one: everything of
    // these tenants that was sealed is to be dropped, and then Release() called for each.
    std::vector<TenantId> forgotten;
    // The first trouble with a key that is still there or cannot be asked for; it stays known.
    Status status;
  };
  // Reads every key in memory again.
  Refreshed Refresh() AQ_EXCLUDES(mutex_);

  // For ever, and at once here. Fine when there is none. Its id stays in the store. If ok, it is
  // for the caller to drop what it sealed, and to call Release().
  Status Destroy(const TenantId& tenant) AQ_EXCLUDES(mutex_);

  // What a forgotten key sealed is dropped here: the tenant may have another one. Once for each
  // time that it was forgotten.
  void Release(const TenantId& tenant) AQ_EXCLUDES(mutex_);
  bool held(const TenantId& tenant) const AQ_EXCLUDES(mutex_);  // It waits for that.

  // Wraps all keys in the store that an older master key has wrapped with the current one; nothing
  // that was sealed changes. Returns how many, or the first trouble, after trying all.
  Result<size_t> Rewrap();

 private:
  Result<SharedDataKey> Read(const TenantId& tenant);
  Result<bool> Make(const TenantId& tenant);
  // Whether the store says from now on that this key was destroyed.
  bool Mark(const DataKeyId& id);
  // Its id, as it stands in the store; none where there is no key that can be read.
  std::optional<DataKeyId> IdInStore(const TenantId& tenant);
  void AddPast(const TenantId& tenant, const DataKeyId& id) AQ_REQUIRES(mutex_);
  // What is then in memory; null when a key was destroyed since `destroyed` was counted.
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
  std::set<DataKeyId> unmarked_ AQ_GUARDED_BY(mutex_);  // Of marks_: the store has not taken them.
};

// Of how many tenants `from` has a key that `to` has not, or has another one in place of. A null
// `to` has none.
Result<size_t> CountMissingKeys(KeyStore* from, KeyStore* to);

}  // namespace aquifer
