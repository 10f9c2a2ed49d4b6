#include "reference/model/kernels.h"

namespace aquifer::reference {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kTileRows = 8;

#include "reference/model/kernels.inc"

}  // namespace

Kernels Avx512Kernels() { return KernelsNamed("avx512"); }

}  // namespace aquifer::reference
