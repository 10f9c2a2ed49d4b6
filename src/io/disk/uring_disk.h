// The engine for Linux with io_uring: one thread, one ring, no other thread at the device. CMake
// takes uring_disk.cc where liburing is installed and uring_disk_absent.cc elsewhere.
#pragma once

#include <memory>

#include "io/disk/disk.h"
#include "io/disk/disk_directory.h"

namespace aquifer {

// kUnavailable where the ring cannot be made; ProbeUring() says why.
Result<std::unique_ptr<Disk>> NewUringDisk(const DiskOptions& options,
                                           std::unique_ptr<DiskDirectory> directory,
                                           Executor* executor);

}  // namespace aquifer
