// The extents of SystemExtentSource(), with the kernel's files elsewhere. For tests.
#pragma once

#include <memory>

#include "io/available_memory.h"
#include "io/extent.h"

namespace aquifer {

std::unique_ptr<ExtentSource> NewSystemExtents(const MemoryRoots& roots);

}  // namespace aquifer
