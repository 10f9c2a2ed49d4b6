#include "base/checksum/checksum_kernel.h"

namespace aquifer {

std::span<const ChecksumKernel> VectorChecksumKernels() { return {}; }

}  // namespace aquifer
