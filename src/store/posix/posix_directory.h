// The directory of a posix store as a whole: whether it is there, is one of ours, and what those
// who made it decided. For one thread, the keeper's. Everything here may block.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "aquifer/status.h"
#include "base/crypto/random.h"
#include "store/posix/posix_paths.h"

namespace aquifer {

class PosixDirectory {
 public:
  // `known`: it was there in an earlier life.
  PosixDirectory(std::string root, bool known, uint64_t grant_bytes, Random* random)
      : paths_(std::move(root)), known_(known), wanted_grant_bytes_(grant_bytes), random_(random) {}

  // Makes what is missing. kUnavailable: it cannot be used, not even for reading; it may be tried
  // again at any time. A directory that was there once is not made again, nor is anything made in
  // the empty folder that an unmounted file system leaves.
  Status Open();

  // As the directory says.
  uint64_t grant_bytes() const { return grant_bytes_; }

  // Whether blobs can be read and written past the page cache.
  bool TakesDirect() const;

 private:
  Status CheckDevice();
  Status ReadMarker();
  Status MakeMarker();

  const PosixPaths paths_;
  const bool known_;
  const uint64_t wanted_grant_bytes_;
  Random* const random_;
  uint64_t grant_bytes_ = 0;
  std::optional<dev_t> device_;  // Where we have seen it.
};

}  // namespace aquifer
