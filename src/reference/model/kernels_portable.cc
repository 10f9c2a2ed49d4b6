#include "reference/model/kernels.h"

namespace aquifer::reference {
namespace {

constexpr size_t kLanes = 4;
constexpr size_t kTileRows = 2;

#include "reference/model/kernels.inc"

}  // namespace

Kernels PortableKernels() { return KernelsNamed("plain"); }

}  // namespace aquifer::reference
