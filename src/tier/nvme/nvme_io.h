// One drive as the NVMe tier sees it: submits requests, knows how old the oldest is, and forgets
// about completions once the tier is gone. The drive outlives the tier, so requests that are still
// at the drive when the tier is destroyed keep their own memory and complete into nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "io/disk/disk.h"

namespace aquifer {

// Page-aligned memory of our own: for metadata, and for blocks that reclaim moves.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(size_t bytes);  // A multiple of 4 KiB; zero.

  std::span<std::byte> span() { return {bytes_.get(), size_}; }
  std::span<std::byte, kPageBytes> page(size_t index) {
    AQ_CHECK((index + 1) * kPageBytes <= size_);
    return std::span<std::byte, kPageBytes>(bytes_.get() + index * kPageBytes, kPageBytes);
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };

  std::unique_ptr<std::byte[], Free> bytes_;
  size_t size_ = 0;
};

class NvmeIo {
 public:
  using Done = std::function<void(std::vector<IoRequest>&)>;

  NvmeIo(Disk* disk, const Clock* clock) : disk_(disk), clock_(clock) {}
  ~NvmeIo();
  NvmeIo(const NvmeIo&) = delete;
  NvmeIo& operator=(const NvmeIo&) = delete;

  // `done` runs once, on the executor, unless this object is gone by then. `keep` is freed after.
  void Submit(std::vector<IoRequest> requests, Done done, std::vector<PageBuffer> keep = {});
  // The same for payload, which need not be there before all else is.
  void SubmitBulk(std::vector<IoRequest> requests, Done done);

  // Since when the drive has had nothing older to do than what is the oldest now, of what is not
  // known to hang; INT64_MAX when there is none. A drive that is slow ends one after the other.
  int64_t oldest_nanos() const { return oldest_ == nullptr ? INT64_MAX : oldest_nanos_; }
  uint64_t oldest_bytes() const { return oldest_ == nullptr ? 0 : oldest_->bytes; }

  // What is at the drive now no longer counts for oldest_nanos().
  void MarkAllHung();
  size_t hung() const { return hung_; }
  size_t in_flight() const { return in_flight_; }

  Disk* disk() const { return disk_; }

  // Called when another request is the oldest.
  std::function<void()> on_oldest;

 private:
  struct Io {
    NvmeIo* owner = nullptr;  // Null once the owner is gone.
    IoGroup group;
    Done done;
    std::vector<PageBuffer> keep;
    uint64_t bytes = 0;
    bool hung = false;
    Io* older = nullptr;
    Io* newer = nullptr;
  };

  struct Orphans;

  void Start(IoGroup group, Done done, std::vector<PageBuffer> keep);
  static void Finish(Io* io);
  void Unlink(Io* io);

  Disk* const disk_;
  const Clock* const clock_;
  Io* oldest_ = nullptr;  // Requests that do not hang, in the order of submission.
  Io* newest_ = nullptr;
  int64_t oldest_nanos_ = 0;
  Io* hung_head_ = nullptr;
  size_t hung_ = 0;
  size_t in_flight_ = 0;
};

// The first error of a group of requests, or ok.
Status FirstError(const std::vector<IoRequest>& requests);

}  // namespace aquifer
