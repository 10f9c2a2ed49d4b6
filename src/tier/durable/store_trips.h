// Requests of a tier at its blob store, and the bridge between their threads: a store completes
// where it likes, the tier hears of it on its executor. It outlives the tier for as long as a store
// has a request, and keeps alive what the store reads and writes, callers' buffers excepted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/executor.h"
#include "base/mutex.h"
#include "store/blob_store.h"
#include "tier/packing/packed_block.h"
#include "tier/packing/scratch_pool.h"

namespace aquifer {

struct Trip {
  BlobRequest request;
  ScratchPool::Buffer head;             // A page; `request` points to it.
  std::shared_ptr<PackedBlock> packed;  // What is written, where a worker made it.
  int64_t submitted_nanos = 0;
  uint64_t number = 0;  // Rises; set by Submit().
};

class StoreTrips : public std::enable_shared_from_this<StoreTrips> {
 public:
  using Done = std::function<void(Trip&)>;

  StoreTrips(BlobStore* store, Executor* executor) : store_(store), executor_(executor) {}

  // All on the executor. `on_done` runs there too, later.
  void Submit(std::shared_ptr<Trip> trip, Done on_done) AQ_EXCLUDES(mutex_);
  void Cancel(const Trip& trip) AQ_EXCLUDES(mutex_);
  // Cancels everything; nobody is told any more.
  void Close() AQ_EXCLUDES(mutex_);

 private:
  struct UnderWay {
    std::shared_ptr<Trip> trip;
    Done on_done;
    // While the store is asked to cancel it, it is not taken out: the store still looks at it.
    bool cancelling = false;
    bool done = false;
  };

  void OnDone(uint64_t number) AQ_EXCLUDES(mutex_);
  void Tell(UnderWay ended);

  BlobStore* const store_;
  Executor* const executor_;
  bool closed_ = false;  // On the executor.

  Mutex mutex_;
  std::map<uint64_t, UnderWay> under_way_ AQ_GUARDED_BY(mutex_);
  uint64_t next_number_ AQ_GUARDED_BY(mutex_) = 1;
};

}  // namespace aquifer
