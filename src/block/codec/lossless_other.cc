#include "block/codec/lossless_kernel.h"

namespace aquifer {

std::span<const LosslessKernel> VectorLosslessKernels() { return {}; }

}  // namespace aquifer
