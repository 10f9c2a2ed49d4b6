// For processors that have only the portable set. The compiler vectorises it for them as well.
#include "reference/model/kernels.h"

namespace aquifer::reference {

const Kernels& ChosenKernels() {
  static const Kernels kPortable = PortableKernels();
  return kPortable;
}

size_t UsableKernels(const Kernels** sets, size_t room) {
  if (room == 0) return 0;
  *sets = &ChosenKernels();
  return 1;
}

}  // namespace aquifer::reference
