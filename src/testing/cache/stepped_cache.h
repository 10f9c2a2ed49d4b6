// The real cache, on a disk in memory, without a thread: it moves only inside Wait() and Poll(), on
// the caller's thread, and its time is a test's. So every step of its I/O can be the last one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aquifer/cache.h"
#include "cache/core.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_disk.h"
#include "testing/memory_extents.h"
#include "testing/seeded_random.h"

namespace aquifer {

struct SteppedCacheOptions {
  CacheOptions cache;
  uint64_t extent_bytes = uint64_t{1} << 20;
  uint32_t max_blocks = 4096;
  MemoryDiskOptions disk;
  // The disk stops for ever after so many requests; see MemoryDisk::StopAfter().
  uint64_t stop_disk_after = UINT64_MAX;
  uint64_t seed = 1;
};

class SteppedCache final : public Cache, private ClientSink {
 public:
  // Mounts the media. It need not serve when this returns: a disk that has stopped keeps it from
  // it.
  SteppedCache(std::shared_ptr<MemoryMedia> media, const SteppedCacheOptions& options);
  ~SteppedCache() override;

  // Null until the cache has opened it.
  MemoryDisk* disk() { return disk_; }
  ManualClock* clock() { return &clock_; }
  bool ready() const { return ready_; }
  // Runs what can run now, and timers of the next `nanos`.
  void Advance(int64_t nanos) { executor_.AdvanceAndRun(nanos); }

  Result<std::unique_ptr<Cache>> Join(const ClientOptions&) override {
    return Status(Code::kUnavailable, "a stepped cache has one client");
  }
  void RegisterLayout(RegisterLayoutRequest* request) override;
  void Match(MatchRequest* request) override;
  void Fetch(FetchRequest* request) override;
  void Reserve(ReserveRequest* request) override;
  void Commit(CommitRequest* request) override;
  void Flush(FlushRequest* request) override;
  void Pin(PinRequest* request) override;
  void Prestage(PrestageRequest* request) override;
  void Evict(EvictRequest* request) override;
  void Drain(DrainRequest* request) override;
  void Stats(StatsRequest* request) override;
  void Release(std::span<const ReleaseOp> leases) override;
  void Abort(std::span<const ReservationId> reservations) override;
  void Hint(const SessionForecast& forecast) override;
  void ReportPrefill(const PrefillReport& report) override;
  void Cancel(Request* request) override;
  size_t Poll() override { return executor_.RunAll(); }
  int event_fd() const override { return -1; }
  // In the cache's own time.
  bool Wait(const Request& request, int64_t timeout_nanos) override;

 private:
  void OnProgress(Request* request, size_t completed, bool done) override;
  template <auto kCall, class R>
  void Submit(R* request);

  ManualClock clock_;
  ManualExecutor executor_;
  SeededRandom random_;
  MemoryExtents extents_;
  MemoryDisk* disk_ = nullptr;  // The core's.
  std::unique_ptr<Core> core_;
  ClientNumber client_ = 0;
  bool ready_ = false;
};

}  // namespace aquifer
