// Chooses the kernels on x86-64. kernels_other.cc does so for other processors.
#include "reference/model/kernels.h"

namespace aquifer::reference {

size_t UsableKernels(const Kernels** sets, size_t room) {
  static const Kernels kAvx512 = Avx512Kernels();
  static const Kernels kAvx2 = Avx2Kernels();
  static const Kernels kPortable = PortableKernels();
  __builtin_cpu_init();
  size_t count = 0;
  const auto add = [&](const Kernels* set) {
    if (count < room) sets[count++] = set;
  };
  const bool fma = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
  if (fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    add(&kAvx512);
  }
  if (fma) add(&kAvx2);
  add(&kPortable);
  return count;
}

const Kernels& ChosenKernels() {
  const Kernels* best = nullptr;
  UsableKernels(&best, 1);
  return *best;
}

}  // namespace aquifer::reference
