// The lossless codec's loops for x86-64.
#pragma once

#include "block/codec/lossless_kernel.h"

namespace aquifer {

LosslessKernel Avx512LosslessKernel();  // Needs AVX-512 with VBMI and VBMI2: Ice Lake, Zen 4.
LosslessKernel Avx2LosslessKernel();

}  // namespace aquifer
