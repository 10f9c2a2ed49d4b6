// A KeyStore holds wrapped data keys: a few small named values that all nodes see. This file has
// the one in a directory; key_bucket.h has the one in a bucket. A store never sees a key that is
// not wrapped.
//
// Calls wait for a disk or a network, so make them on a thread that may wait. Any number of threads
// and of processes may use one store at once.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

class KeyStore {
 public:
  virtual ~KeyStore() = default;

  // A name has 1 to 64 of the characters 0-9 and a-z. When a call returns, its change is on the
  // medium. kUnavailable: the store cannot be reached or failed, and the outcome is not known.

  // Returns true if the value was made, false if the name is already there. Of many writers at
  // once, one succeeds.
  virtual Result<bool> Create(const std::string& name, std::span<const std::byte> value) = 0;

  // Returns kNotFound if there is no such value.
  virtual Result<std::vector<std::byte>> Read(const std::string& name) = 0;

  // Returns false, and changes nothing, if the value is not `expected` or no longer there.
  virtual Result<bool> Replace(const std::string& name, std::span<const std::byte> expected,
                               std::span<const std::byte> value) = 0;

  // Deletes the value and leaves no copy of it. Succeeds if there is none.
  virtual Status Delete(const std::string& name) = 0;

  virtual Result<std::vector<std::string>> List() = 0;  // Sorted.
};

// Returns kInvalid for a name that no store takes.
Status CheckKeyStoreName(std::string_view name);

// Opens a store in a directory. The directory is made if its parent exists, for this user only.
// Several nodes may share the filesystem. Leftovers of writers that died are cleaned up.
Result<std::unique_ptr<KeyStore>> OpenKeyDirectory(const std::string& path);

}  // namespace aquifer
