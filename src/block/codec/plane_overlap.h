// Do strided tensors that share one allocation lie over each other? Used once per description, by
// CompileEngineLayout(): a scatter through planes that overlap would destroy what it has just put
// there, and no checksum would notice.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace aquifer {

// Runs of bytes at base + i * stride + j * stride + k * stride, for each axis below its count.
struct StridedSet {
  struct Axis {
    uint64_t count = 1;
    uint64_t stride = 0;
    friend bool operator==(Axis, Axis) = default;
  };

  uint64_t base = 0;
  uint64_t run_bytes = 0;
  std::array<Axis, 3> axes{};

  // From the base to the end of the last run; UINT64_MAX when that is no number.
  uint64_t Extent() const;

  // Each axis steps over all that the axes of smaller strides hold, so no two runs overlap. True of
  // every tensor that is a permuted view of a contiguous one, padded or not.
  bool Nested() const;
};

// Two sets that share a byte, or of which that cannot be told: they interleave with different
// strides. All sets are nested and end below UINT64_MAX.
std::optional<std::pair<size_t, size_t>> FindOverlap(std::span<const StridedSet> sets);

}  // namespace aquifer
