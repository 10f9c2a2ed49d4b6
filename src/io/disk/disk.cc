#include "io/disk/disk.h"

#include <fmt/format.h>

#include <utility>

#include "io/disk/disk_directory.h"
#include "io/disk/thread_disk.h"
#include "io/disk/uring_disk.h"

namespace aquifer {
namespace {

constexpr uint32_t kMaxQueueDepth = 4096;

Status CheckOptions(const DiskOptions& options) {
  if (options.directory.empty()) return Status(Code::kInvalid, "no directory is given");
  if (options.prefix.find('/') != std::string::npos) {
    return Status(Code::kInvalid, fmt::format("a prefix with a slash: {}", options.prefix));
  }
  if (options.queue_depth == 0 || options.queue_depth > kMaxQueueDepth || options.max_queued == 0) {
    return Status(Code::kInvalid,
                  fmt::format("queue_depth is {} (1 to {}), max_queued is {} (1 or more)",
                              options.queue_depth, kMaxQueueDepth, options.max_queued));
  }
  return Status();
}

}  // namespace

Status CheckRequest(const IoRequest& request) {
  switch (request.kind) {
    case IoKind::kRead:
    case IoKind::kWrite:
      if (request.data.empty() || request.data.size() % kPageBytes != 0 ||
          request.offset % kPageBytes != 0 ||
          reinterpret_cast<uintptr_t>(request.data.data()) % kPageBytes != 0) {
        return Status(
            Code::kInvalid,
            fmt::format("offset {}, {} bytes at {}: all must be multiples of {}", request.offset,
                        request.data.size(), fmt::ptr(request.data.data()), kPageBytes));
      }
      return Status();
    case IoKind::kCreate:
      if (request.length % kPageBytes != 0) {
        return Status(Code::kInvalid, fmt::format("a file of {} bytes: not a multiple of {}",
                                                  request.length, kPageBytes));
      }
      return Status();
    case IoKind::kSync:
    case IoKind::kRemove:
      return Status();
  }
  return Status(Code::kInvalid, "unknown kind of request");
}

Result<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options, Executor* executor) {
  AQ_RETURN_IF_ERROR(CheckOptions(options));
  if (options.engine != DiskEngine::kThreads) {
    AQ_ASSIGN_OR_RETURN(auto directory, DiskDirectory::Open(options));
    auto disk = NewUringDisk(options, std::move(directory), executor);
    if (disk.ok() || options.engine == DiskEngine::kUring) return disk;
  }
  AQ_ASSIGN_OR_RETURN(auto directory, DiskDirectory::Open(options));
  return NewThreadDisk(options, std::move(directory), executor);
}

}  // namespace aquifer
