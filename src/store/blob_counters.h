// What every store counts of the requests that it ends, by the same names in all of them. Any
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "aquifer/status.h"
#include "store/blob_store.h"

namespace aquifer {

class BlobCounters {
 public:
  // Of a request that ends with this status, before Complete().
  void Count(const BlobRequest& request, const Status& status);

  // reads, read_bytes, looks, writes, written_bytes, existed, removes: what succeeded; misses, late
  // and failures: what did not.
  std::vector<std::pair<std::string, uint64_t>> ByName() const;

 private:
  std::atomic<uint64_t> reads_ = 0;
  std::atomic<uint64_t> read_bytes_ = 0;
  std::atomic<uint64_t> looks_ = 0;
  std::atomic<uint64_t> writes_ = 0;
  std::atomic<uint64_t> written_bytes_ = 0;
  std::atomic<uint64_t> existed_ = 0;
  std::atomic<uint64_t> removes_ = 0;
  std::atomic<uint64_t> misses_ = 0;
  std::atomic<uint64_t> late_ = 0;
  std::atomic<uint64_t> failures_ = 0;  // Neither a miss nor late.
};

}  // namespace aquifer
