// Where tiers get the keys that they seal tenants' blocks with. tenant/ implements it over
// DataKeys; tiers know no key store and no master key.
//
// A tier with a source seals all that it writes and reads nothing that is not sealed; one without a
// source does neither. A tenant whose key is not known is refused, never written plain.
#pragma once

#include <optional>
#include <vector>

#include "block/block_id.h"
#include "block/seal.h"

namespace aquifer {

class KeySource {
 public:
  virtual ~KeySource() = default;

  // Any thread; waits for nothing. Null: the key is not in memory, and the source has begun to look
  // for it; or there is none any more. Blocks of the tenant are neither read nor written meanwhile.
  virtual SharedDataKey KeyOf(const TenantId& tenant) = 0;

  // The same for those who only read: where the tenant has no key, none is made.
  virtual SharedDataKey Known(const TenantId& tenant) = 0;

  // The ids of the keys that the tenant's blocks at stores may be sealed with, the newest last: of
  // its key, and of those that were destroyed while this process ran. None: nobody knows yet
  // whether it has a key, and the source has begun to look. Where the answer is there and Known()
  // is null, it has none. Makes no key either.
  virtual std::optional<std::vector<DataKeyId>> Generations(const TenantId& tenant) = 0;

  // Returns true if the source has looked for the tenant's key and could not get it, or is taking
  // too long: nobody should wait for it. Returns false as long as the first answer may come soon,
  // and if the tenant has no key.
  virtual bool Missing(const TenantId& tenant) = 0;

  // Whether somebody is known to have destroyed this key; and all of those.
  virtual bool IsDestroyed(const DataKeyId& id) = 0;
  virtual std::vector<DataKeyId> Destroyed() = 0;
};

}  // namespace aquifer
