#include "reference/kernels.h"

namespace aquifer::reference {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kTileRows = 3;

#include "reference/kernels.inc"

}  // namespace

Kernels Avx2Kernels() { return KernelsNamed("avx2"); }

}  // namespace aquifer::reference
