#include "reference/model/kernels.h"

namespace aquifer::reference {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kTileRows = 3;

#include "reference/model/kernels.inc"

}  // namespace

Kernels Avx2Kernels() { return KernelsNamed("avx2"); }

}  // namespace aquifer::reference
