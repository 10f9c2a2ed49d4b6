#include "base/checksum/checksum_x86.h"

#include <array>
#include <utility>

namespace aquifer {
namespace {

// Which order of a streamed copy is faster depends on the maker, and by much; so does asking for
// the line that is a page further on while summing. 2 MiB blocks in memory, one core, in GB/s:
//
//               copy:  memcpy   in a line   four pages side by side     sum: plain   asking ahead
//   Zen 4                10.0        22.1                      12.3           23.3           18.7
//   Ice Lake              6.3         6.1                      10.3
//   Xeon, 300 MiB L3      5.5         6.4                       8.5            6.4           11.5
bool PreferPages() { return !__builtin_cpu_is("amd"); }

struct Found {
  Found() {
    __builtin_cpu_init();
    const auto add = [this](ChecksumKernel line, ChecksumKernel pages) {
      if (PreferPages()) std::swap(line, pages);
      kernels[count++] = line;
      kernels[count++] = pages;
    };
    if (__builtin_cpu_supports("avx512f")) add(Avx512ChecksumKernel(), Avx512PagesChecksumKernel());
    if (__builtin_cpu_supports("avx2")) add(Avx2ChecksumKernel(), Avx2PagesChecksumKernel());
  }

  std::array<ChecksumKernel, 4> kernels{};
  size_t count = 0;
};

}  // namespace

std::span<const ChecksumKernel> VectorChecksumKernels() {
  static const Found found;
  return std::span(found.kernels).first(found.count);
}

}  // namespace aquifer
