// Whether a store works, and how fast: writes a few blobs of its own, looks for them, reads them
// back, compares every byte, and removes them again. For a person who wonders, and for tests of
// what they are told.
//
// Waits; on a thread that may. A store that holds on to a request for too long is given up: what it
// was lent stays until it lets go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/blob_store.h"

namespace aquifer {

struct StoreCheckOptions {
  size_t small_blobs = 8;  // Of 4 KiB, one at a time.
  size_t large_blobs = 16;
  size_t large_bytes = size_t{2} << 20;  // Whole pages.
  size_t at_once = 8;                    // Of the large ones.
  // How long a store may be unavailable at first: one that was just made is still connecting.
  int64_t patience_nanos = 3'000'000'000;
  int64_t request_nanos = 10'000'000'000;
  int64_t grace_nanos = 2'000'000'000;  // Beyond that, for a store that ends requests late.
};

// One kind of request for blobs of one size.
struct StoreMeasure {
  BlobKind kind = BlobKind::kRead;
  uint64_t blob_bytes = 0;
  size_t count = 0;
  size_t at_once = 0;
  int64_t median_nanos = 0;
  int64_t worst_nanos = 0;
  double bytes_per_second = 0;
};

struct StoreReport {
  Status status;       // Ok: it works. Else what it said, or what is wrong with what it gave back.
  std::string step{};  // What failed: "writing 4 KiB"; empty when it works.
  std::vector<StoreMeasure> measures{};  // Of what worked.
};

// The clock is the one that the store was made with.
StoreReport CheckStore(BlobStore* store, const StoreCheckOptions& options, Clock* clock,
                       Random* random);

std::string_view BlobKindName(BlobKind kind);  // "read", "look", "write", "remove"

}  // namespace aquifer
