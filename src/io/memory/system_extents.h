// The extents of SystemExtentSource(), with the kernel's files elsewhere. For tests.
#pragma once

#include <memory>

#include "io/memory/available_memory.h"
#include "io/memory/extent.h"

namespace aquifer {

std::unique_ptr<ExtentSource> NewSystemExtents(const MemoryRoots& roots);

}  // namespace aquifer
