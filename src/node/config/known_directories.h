// The directories of posix tiers that a host's nodes have used: one of these that is empty at a
// start is a mount point, and what was written there would be lost below it. A file in the node's
// state directory, with a line for each (docs/formats/posix.md). Any thread.
#pragma once

#include <string>

#include "base/mutex.h"

namespace aquifer {

class KnownDirectories {
 public:
  // An empty `state`: nothing is remembered. Nor is anything new if it may not be added.
  explicit KnownDirectories(const std::string& state, bool may_add = true);

  bool Has(const std::string& directory) const AQ_EXCLUDES(mutex_);
  // What cannot be written is not remembered.
  void Add(const std::string& directory) AQ_EXCLUDES(mutex_);

 private:
  const std::string file_;
  const bool may_add_;
  mutable Mutex mutex_;
};

}  // namespace aquifer
