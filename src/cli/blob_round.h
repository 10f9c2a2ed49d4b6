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
  std::vector<std::string> names;
  // One blob is under way for each of these. A blob is as long as they are, its head is their first
  // page.
  std::vector<std::span<std::byte>> places;
};

// Every blob once; GB/s, or the first failure. What is kBusy is sent again.
Result<double> RunBlobRound(const BlobRound& round);

}  // namespace aquifer
