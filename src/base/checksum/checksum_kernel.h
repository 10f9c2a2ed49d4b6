// Shared by the checksum's implementations: the constants, the arithmetic of one unit, and the
// table of loops that this processor can run. Only base/checksum*.cc, their tests and benchmarks,
// and cuda/move_work.h include this; everyone else wants aquifer/checksum.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aquifer/checksum.h"
#include "base/bytes.h"

namespace aquifer {

// The words of SHA-256("aquifer.checksum.v1" || counter); a unit's keys are A + unit * B.
inline constexpr uint32_t kChecksumA[8] = {0xf51960d2, 0x4ebe68df, 0xde3956db, 0x502a66a2,
                                           0x966282f0, 0xf27c7d7d, 0x8e0221ee, 0x81af3edf};
inline constexpr uint32_t kChecksumB[8] = {0x044a55f3, 0xde376e2d, 0x374fe81f, 0x2909598f,
                                           0x42d6a67d, 0x199b8c43, 0x387817f1, 0xdbc5955b};

// The product of two keyed words, folded. Without the fold a sum would depend on positions only
// through sums of position times word, and two pages of the same words in another order could be
// swapped unseen.
inline uint64_t ChecksumProduct(uint32_t x, uint32_t y) {
  const uint64_t product = uint64_t{x} * y;
  return product ^ (product >> 32);
}

// One unit, with its keys already computed.
inline void AddChecksumUnit(const std::byte* bytes, const uint32_t* keys, LaneSums* sums) {
  const uint32_t w0 = GetU32(bytes);
  const uint32_t w1 = GetU32(bytes + 4);
  const uint32_t w2 = GetU32(bytes + 8);
  const uint32_t w3 = GetU32(bytes + 12);
  sums->a += ChecksumProduct(w0 + keys[0], w1 + keys[1]);
  sums->a += ChecksumProduct(w2 + keys[2], w3 + keys[3]);
  sums->b += ChecksumProduct(w0 + keys[4], w2 + keys[5]);
  sums->b += ChecksumProduct(w1 + keys[6], w3 + keys[7]);
}

LaneSums SumUnitsPortable(const std::byte* from, size_t units, uint32_t first_unit);
LaneSums CopyUnitsPortable(const std::byte* from, size_t units, uint32_t first_unit, std::byte* to);

struct ChecksumKernel {
  const char* name;
  LaneSums (*sum)(const std::byte* from, size_t units, uint32_t first_unit);
  LaneSums (*copy)(const std::byte* from, size_t units, uint32_t first_unit, std::byte* to);
};

// From this length on, copies write around the caches. The source and the target of such a copy
// are rarely both cached, and a cached write would first read the line that it is going to replace.
inline constexpr size_t kChecksumStreamBytes = 16 << 10;

// Those that this processor can run, the preferred one first and the portable one last.
std::span<const ChecksumKernel> ChecksumKernels();

// Every later sum in this process uses `kernel`; nullptr goes back to the preferred one. For tests.
void ForceChecksumKernel(const ChecksumKernel* kernel);

// Supplied by the one file that CMake picks for the processor: the vector kernels it can run.
std::span<const ChecksumKernel> VectorChecksumKernels();

}  // namespace aquifer
