#include "base/checksum_kernel.h"

namespace aquifer {

std::span<const ChecksumKernel> VectorChecksumKernels() { return {}; }

}  // namespace aquifer
