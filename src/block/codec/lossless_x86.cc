#include "block/codec/lossless_x86.h"

#include <array>

namespace aquifer {
namespace {

struct Found {
  Found() {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("bmi2")) {
      kernels[count++] = Avx512LosslessKernel();
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi")) {
      kernels[count++] = Avx2LosslessKernel();
    }
  }

  std::array<LosslessKernel, 2> kernels{};
  size_t count = 0;
};

}  // namespace

std::span<const LosslessKernel> VectorLosslessKernels() {
  static const Found found;
  return std::span(found.kernels).first(found.count);
}

}  // namespace aquifer
