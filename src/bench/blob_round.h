// Blobs to or from a store, so many at a time, timed: what the rows of all stores measure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "store/blob_store.h"

namespace aquifer {

struct BlobRound {
  BlobStore* store = nullptr;
  BlobKind kind = BlobKind::kRead;
  bool if_absent = false;  // kWrite: and one that is there is a failure.
  std::vector<std::string> names{};
  // One blob is under way for each of these, or, where each blob has its own, `at_once` are. A blob
  // is as long as its place; its head is the first page.
  std::vector<std::span<std::byte>> places{};
  size_t at_once = 0;
};

// Every blob once; GB/s, or the first failure. A kBusy request is sent again.
Result<double> RunBlobRound(const BlobRound& round);

}  // namespace aquifer
