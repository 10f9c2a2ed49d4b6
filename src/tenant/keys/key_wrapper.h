// A KeyWrapper encrypts data keys with a master key, so that a key store's bytes are worth nothing
// alone. This file has the one with master keys of our own. A key management service (KMS) is
// another implementation, and is given to KeyService::Start() (docs/formats/keys.md).
//
// Several master keys may be known, so that they can be changed: the first one wraps, all unwrap.
// Any thread may call; an implementation may wait for a network.
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

using MasterKeyId = std::array<std::byte, 16>;  // The id says nothing about the key.

class KeyWrapper {
 public:
  virtual ~KeyWrapper() = default;

  virtual MasterKeyId current() const = 0;

  // Wraps with the current master key; returns at most 4096 bytes. Unwrap() needs the same
  // `associated`.
  virtual Result<std::vector<std::byte>> Wrap(const SecretKey& key,
                                              std::span<const std::byte> associated) = 0;

  // Returns kInvalid if the master key is not known, kCorrupt if it is known and did not wrap these
  // bytes.
  virtual Result<SecretKey> Unwrap(const MasterKeyId& master, std::span<const std::byte> wrapped,
                                   std::span<const std::byte> associated) = 0;
};

// `masters`: the current one first. Returns kInvalid if there is none, or one is all zeros.
// `random` outlives the wrapper.
Result<std::unique_ptr<KeyWrapper>> NewMasterKeyWrapper(std::span<const SecretKey> masters,
                                                        Random* random);

}  // namespace aquifer
