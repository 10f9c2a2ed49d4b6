// The checksum's kernels for x86-64. "Pages" ones copy four pages side by
// side and ask for lines ahead.
#pragma once

#include "base/checksum/checksum_kernel.h"

namespace aquifer {

ChecksumKernel Avx512ChecksumKernel();
ChecksumKernel Avx512PagesChecksumKernel();
ChecksumKernel Avx2ChecksumKernel();
ChecksumKernel Avx2PagesChecksumKernel();

}  // namespace aquifer
