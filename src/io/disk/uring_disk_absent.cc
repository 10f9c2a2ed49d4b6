#include "io/disk/uring_disk.h"

namespace aquifer {

Status ProbeUring() {
  return Status(Code::kUnavailable, "built without liburing; install liburing-dev and build again");
}

Result<std::unique_ptr<Disk>> NewUringDisk(const DiskOptions& /*options*/,
                                           std::unique_ptr<DiskDirectory> /*directory*/,
                                           Executor* /*executor*/) {
  return ProbeUring();
}

}  // namespace aquifer
