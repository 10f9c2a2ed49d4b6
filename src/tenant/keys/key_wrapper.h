// Wraps data keys with a master key, so that what a key store holds is worth nothing alone. With
// master keys of our own here; a key service (KMS) is another implementation of the same, and given
// to KeyService::Start() (docs/formats/keys.md).
//
// Several master keys may be known, so that they can be changed: the first one wraps, all unwrap.
// Any thread; implementations may wait for a network.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "aquifer/status.h"
#include "base/crypto/random.h"
#include "base/crypto/secret_key.h"

namespace aquifer {

using MasterKeyId = std::array<std::byte, 16>;  // Tells nothing of the key.

class KeyWrapper {
 public:
  virtual ~KeyWrapper() = default;

  virtual MasterKeyId current() const = 0;

  // With the current master key; at most 4096 bytes. `associated` must be the same to unwrap.
  virtual Result<std::vector<std::byte>> Wrap(const SecretKey& key,
                                              std::span<const std::byte> associated) = 0;

  // kInvalid when the master key is not known; kCorrupt when it is, and did not wrap these bytes.
  virtual Result<SecretKey> Unwrap(const MasterKeyId& master, std::span<const std::byte> wrapped,
                                   std::span<const std::byte> associated) = 0;
};

// The current master key first. kInvalid when there is none, or one is all zeros. `random` outlives
// the wrapper.
Result<std::unique_ptr<KeyWrapper>> NewMasterKeyWrapper(std::span<const SecretKey> masters,
                                                        Random* random);

}  // namespace aquifer
