// Where wrapped data keys live: a few small named values that all nodes see. A directory here, a
// bucket in key_bucket.h. It never sees a key that is not wrapped.
//
// Calls wait for a disk or a network: make them on a thread that may. Any thread, also several at
// once, and any number of processes on one store.
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

  // Names are 1 to 64 of the characters 0-9 and a-z. All changes are on the medium when a call
  // returns. kUnavailable when the store cannot be reached or failed: nothing is known then.

  // Whether it was made: false says that the name is already there. Of many at once one succeeds.
  virtual Result<bool> Create(const std::string& name, std::span<const std::byte> value) = 0;

  virtual Result<std::vector<std::byte>> Read(const std::string& name) = 0;  // kNotFound.

  // False, and no change, when the value is not `expected`, or no longer there.
  virtual Result<bool> Replace(const std::string& name, std::span<const std::byte> expected,
                               std::span<const std::byte> value) = 0;

  // Leaves no copy of the value behind. What is not there is deleted already.
  virtual Status Delete(const std::string& name) = 0;

  virtual Result<std::vector<std::string>> List() = 0;  // In order.
};

// kInvalid for a name that no store takes.
Status CheckKeyStoreName(std::string_view name);

// In a directory, which is made if its parent is there, for this user only. It may be on a
// filesystem that several nodes share. Finishes what a writer that died has left.
Result<std::unique_ptr<KeyStore>> OpenKeyDirectory(const std::string& path);

}  // namespace aquifer
