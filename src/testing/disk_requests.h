// For tests of disks: aligned memory, requests, and waiting for a group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/executor.h"
#include "io/disk/disk.h"
#include "testing/memory_extents.h"
#include "testing/seeded_random.h"

namespace aquifer {

class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes) : extent_(*MemoryExtents().New(bytes)) {}
  AlignedBytes(size_t bytes, uint64_t seed) : AlignedBytes(bytes) {
    SeededRandom(seed).Fill(span());
  }

  std::span<std::byte> span() const { return extent_->bytes(); }
  bool operator==(const AlignedBytes& other) const {
    return std::equal(span().begin(), span().end(), other.span().begin(), other.span().end());
  }

 private:
  std::unique_ptr<Extent> extent_;
};

inline IoRequest CreateRequest(uint32_t file, uint64_t length) {
  IoRequest request;
  request.kind = IoKind::kCreate;
  request.file = file;
  request.length = length;
  return request;
}

inline IoRequest DataRequest(IoKind kind, uint32_t file, uint64_t offset,
                             std::span<std::byte> data) {
  IoRequest request;
  request.kind = kind;
  request.file = file;
  request.offset = offset;
  request.data = data;
  return request;
}

inline IoRequest FileRequest(IoKind kind, uint32_t file) { return DataRequest(kind, file, 0, {}); }

// Submits and waits; the executor runs on a thread of its own.
inline std::vector<Status> RunGroup(Disk* disk, std::vector<IoRequest> requests) {
  std::promise<void> done;
  IoGroup group;
  group.requests = std::move(requests);
  group.on_done = [&done](IoGroup&) { done.set_value(); };
  disk->Submit(&group);
  done.get_future().wait();
  std::vector<Status> statuses;
  statuses.reserve(group.requests.size());
  for (const IoRequest& request : group.requests) statuses.push_back(request.status);
  return statuses;
}

inline Status RunRequest(Disk* disk, const IoRequest& request) {
  return RunGroup(disk, {request})[0];
}

inline std::unique_ptr<ThreadExecutor> NewTestExecutor() {
  return NewThreadExecutor({.name = "test", .spin_nanos = 0}, SystemClock());
}

}  // namespace aquifer
