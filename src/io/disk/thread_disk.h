// The engine for hosts without io_uring: blocking calls on a pool of threads.
#pragma once

#include <memory>

#include "io/disk/disk.h"
#include "io/disk/disk_directory.h"

namespace aquifer {

std::unique_ptr<Disk> NewThreadDisk(const DiskOptions& options,
                                    std::unique_ptr<DiskDirectory> directory, Executor* executor);

}  // namespace aquifer
