// move_kernel.cu, compiled: a fat binary that the driver loads. Its .cc is made by the build.
#pragma once

#include <span>

namespace aquifer {

extern const std::span<const unsigned char> kMoveKernelImage;

}  // namespace aquifer
