// A blob store in memory whose every fault is at a test's command. Its blobs outlive it, so that
// several stores, or one after the other, can stand for several processes.
//
// Any thread. Without an executor requests complete inside Submit(); with one they complete as its
// tasks, and the store is destroyed by one of them or while none runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "store/blob_counters.h"
#include "store/blob_store.h"

namespace aquifer {

// The stored blobs, and the means of a thief or a bad disk.
class MemoryBlobs {
 public:
  std::vector<std::string> Names() const AQ_EXCLUDES(mutex_);
  std::vector<std::byte> Get(const std::string& name) const AQ_EXCLUDES(mutex_);  // Empty: none.
  void Put(const std::string& name, std::vector<std::byte> bytes) AQ_EXCLUDES(mutex_);
  void Remove(const std::string& name) AQ_EXCLUDES(mutex_);
  void FlipBit(const std::string& name, size_t bit) AQ_EXCLUDES(mutex_);
  void Truncate(const std::string& name, size_t bytes) AQ_EXCLUDES(mutex_);
  void Swap(const std::string& one, const std::string& other) AQ_EXCLUDES(mutex_);
  uint64_t bytes() const AQ_EXCLUDES(mutex_);

 private:
  friend class MemoryBlobStore;

  mutable Mutex mutex_;
  std::map<std::string, std::vector<std::byte>> blobs_ AQ_GUARDED_BY(mutex_);
};

struct MemoryBlobStoreOptions {
  uint64_t capacity_bytes = 0;  // 0: no cap.
  size_t max_queued = 1024;     // Requests beyond it are kBusy.
};

class MemoryBlobStore : public BlobStore {
 public:
  // All outlive it, but for the blobs, which are shared. `executor` and `clock` may be null; both
  // are needed for deadlines of requests that hang.
  explicit MemoryBlobStore(std::shared_ptr<MemoryBlobs> blobs,
                           const MemoryBlobStoreOptions& options = {}, Executor* executor = nullptr,
                           Clock* clock = nullptr);
  ~MemoryBlobStore() override;

  // ---- Faults ----

  // Requests stay where they are. `holds`: also past their deadline and Cancel(), as a device does
  // that has the buffer. False lets all of them go on.
  void Hang(bool on, bool holds = false) AQ_EXCLUDES(mutex_);
  // All requests fail so, until kOk.
  void Fail(Code code, std::string message = "injected") AQ_EXCLUDES(mutex_);
  // The next `count` requests of the kind fail so.
  void FailNext(BlobKind kind, Code code, int count = 1) AQ_EXCLUDES(mutex_);
  // Called with each request before it is carried out, on whatever thread that is.
  void OnRequest(std::function<void(const BlobRequest&)> hook) AQ_EXCLUDES(mutex_);

  // Against the clock of whoever asks.
  void SetClockAhead(int64_t seconds) { clock_ahead_seconds_ = seconds; }

  uint64_t requests(BlobKind kind) const AQ_EXCLUDES(mutex_);
  size_t held() const AQ_EXCLUDES(mutex_);

  // ---- BlobStore ----

  void Submit(BlobRequest* request) override AQ_EXCLUDES(mutex_);
  void Cancel(BlobRequest* request) override AQ_EXCLUDES(mutex_);
  void List(std::string_view prefix, std::string_view after, size_t max,
            std::function<void(Result<Names>)> on_done) override AQ_EXCLUDES(mutex_);
  BlobUsage Usage() const override AQ_EXCLUDES(mutex_);
  int64_t ClockAheadSeconds() const override { return clock_ahead_seconds_; }
  std::string Describe() const override { return "memory"; }
  std::vector<std::pair<std::string, uint64_t>> Counters() const override;

 private:
  struct Fault {
    Code code = Code::kOk;
    int count = 0;
  };
  // The tasks of a store that is gone do nothing.
  class Life {
   public:
    void Set(MemoryBlobStore* store) AQ_EXCLUDES(mutex_);
    MemoryBlobStore* store() const AQ_EXCLUDES(mutex_);

   private:
    mutable Mutex mutex_;
    MemoryBlobStore* store_ AQ_GUARDED_BY(mutex_) = nullptr;
  };

  // Takes the request out of those under way and ends it, or leaves it where it hangs.
  void Proceed(BlobRequest* request, uint64_t number) AQ_EXCLUDES(mutex_);
  void GiveUp(BlobRequest* request, uint64_t number, const char* why) AQ_EXCLUDES(mutex_);
  void Later(Task task);
  bool FailsNow(BlobRequest* request) AQ_REQUIRES(mutex_);
  void CarryOut(BlobRequest* request) AQ_EXCLUDES(mutex_);
  void End(BlobRequest* request, Status status);
  void Read(BlobRequest* request);
  void Write(BlobRequest* request);

  const std::shared_ptr<MemoryBlobs> blobs_;
  const MemoryBlobStoreOptions options_;
  Executor* const executor_;
  Clock* const clock_;
  const std::shared_ptr<Life> life_;
  BlobCounters counters_;
  std::atomic<int64_t> clock_ahead_seconds_ = 0;

  mutable Mutex mutex_;
  std::map<BlobRequest*, uint64_t> under_way_ AQ_GUARDED_BY(mutex_);  // With their numbers.
  std::map<uint64_t, BlobRequest*> held_ AQ_GUARDED_BY(mutex_);       // The hanging ones.
  uint64_t next_number_ AQ_GUARDED_BY(mutex_) = 1;
  bool hangs_ AQ_GUARDED_BY(mutex_) = false;
  bool holds_ AQ_GUARDED_BY(mutex_) = false;
  Fault all_ AQ_GUARDED_BY(mutex_);
  std::string message_ AQ_GUARDED_BY(mutex_);
  std::map<BlobKind, Fault> next_ AQ_GUARDED_BY(mutex_);
  std::map<BlobKind, uint64_t> requests_ AQ_GUARDED_BY(mutex_);
  std::function<void(const BlobRequest&)> hook_ AQ_GUARDED_BY(mutex_);
};

}  // namespace aquifer
