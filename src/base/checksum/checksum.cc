#include "aquifer/checksum.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/check.h"
#include "base/checksum/checksum_kernel.h"

namespace aquifer {
namespace {

constexpr size_t kMaxKernels = 8;

struct KernelTable {
  KernelTable() {
    for (const ChecksumKernel& kernel : VectorChecksumKernels()) kernels[count++] = kernel;
    kernels[count++] = {"portable", SumUnitsPortable, CopyUnitsPortable};
  }

  std::array<ChecksumKernel, kMaxKernels> kernels{};
  size_t count = 0;
};

std::atomic<const ChecksumKernel*> chosen_kernel{nullptr};

const ChecksumKernel& Kernel() {
  const ChecksumKernel* kernel = chosen_kernel.load(std::memory_order_acquire);
  if (kernel == nullptr) [[unlikely]] {
    kernel = &ChecksumKernels().front();
    chosen_kernel.store(kernel, std::memory_order_release);
  }
  return *kernel;
}

uint32_t UnitAt(uint64_t offset) {
  AQ_CHECK(offset % kChecksumUnitBytes == 0);
  return static_cast<uint32_t>(offset / kChecksumUnitBytes);
}

// The bytes after the last whole unit, as if zeros followed. Copies them unless `target` is null.
LaneSums SumPartialUnit(std::span<const std::byte> bytes, uint32_t unit, std::byte* target) {
  if (bytes.empty()) return {};
  std::byte padded[kChecksumUnitBytes] = {};
  std::memcpy(padded, bytes.data(), bytes.size());
  if (target != nullptr) std::memcpy(target, padded, bytes.size());
  return SumUnitsPortable(padded, 1, unit);
}

// The finaliser of splitmix64: a bijection in which every input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

LaneSums SumUnitsPortable(const std::byte* from, size_t units, uint32_t first_unit) {
  LaneSums sums;
  uint32_t keys[8];
  for (int j = 0; j < 8; ++j) keys[j] = kChecksumA[j] + first_unit * kChecksumB[j];
  for (size_t i = 0; i < units; ++i) {
    AddChecksumUnit(from + i * kChecksumUnitBytes, keys, &sums);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) keys[j] += kChecksumB[j];
  }
  return sums;
}

// In pieces that stay in the first-level cache between the copy and the sum.
LaneSums CopyUnitsPortable(const std::byte* from, size_t units, uint32_t first_unit,
                           std::byte* to) {
  constexpr size_t kPieceUnits = 8192 / kChecksumUnitBytes;
  LaneSums sums;
  for (size_t done = 0; done < units; done += kPieceUnits) {
    const size_t piece = std::min(kPieceUnits, units - done);
    const size_t at = done * kChecksumUnitBytes;
    std::memcpy(to + at, from + at, piece * kChecksumUnitBytes);
    sums = sums + SumUnitsPortable(to + at, piece, first_unit + static_cast<uint32_t>(done));
  }
  return sums;
}

std::span<const ChecksumKernel> ChecksumKernels() {
  static const KernelTable table;
  return std::span(table.kernels).first(table.count);
}

void ForceChecksumKernel(const ChecksumKernel* kernel) {
  chosen_kernel.store(kernel, std::memory_order_release);
}

LaneSums SumLanes(std::span<const std::byte> piece, uint64_t offset) {
  const uint32_t first_unit = UnitAt(offset);
  const size_t units = piece.size() / kChecksumUnitBytes;
  const LaneSums whole = Kernel().sum(piece.data(), units, first_unit);
  return whole + SumPartialUnit(piece.subspan(units * kChecksumUnitBytes),
                                first_unit + static_cast<uint32_t>(units), nullptr);
}

// Every kernel sums what it has copied, never a second reading of the source: another process may
// be writing to it, and the sum must then still be that of the target.
LaneSums CopyAndSumLanes(std::span<const std::byte> piece, uint64_t offset, std::byte* target) {
  const uint32_t first_unit = UnitAt(offset);
  const size_t units = piece.size() / kChecksumUnitBytes;
  const size_t whole_bytes = units * kChecksumUnitBytes;
  const LaneSums whole = Kernel().copy(piece.data(), units, first_unit, target);
  return whole + SumPartialUnit(piece.subspan(whole_bytes),
                                first_unit + static_cast<uint32_t>(units), target + whole_bytes);
}

Checksum FinishChecksum(LaneSums sums, uint64_t block_bytes) {
  const uint64_t x = Mix(sums.a + (block_bytes + 1) * 0x9e3779b97f4a7c15u);
  const uint64_t high = Mix((sums.b ^ x) + block_bytes);
  return {.low = Mix(x + high), .high = high};
}

}  // namespace aquifer
