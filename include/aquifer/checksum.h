// The checksum of a block: 128 bits, additive over independent position-keyed units of 16 bytes.
// Pieces of a block can be summed anywhere (on a GPU, by several ranks) and in any order, and then
// added. The length is mixed in once at the end. The checksum finds corruption; it is not a
// signature. docs/formats/checksum.md has the arithmetic and test vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace aquifer {

// A partial sum. Sums of disjoint pieces of one block add up to the block's.
struct LaneSums {
  uint64_t a = 0;
  uint64_t b = 0;

  friend LaneSums operator+(LaneSums x, LaneSums y) { return {x.a + y.a, x.b + y.b}; }
  friend bool operator==(LaneSums, LaneSums) = default;
};

struct Checksum {
  uint64_t low = 0;
  uint64_t high = 0;

  friend bool operator==(Checksum, Checksum) = default;
};

inline constexpr size_t kChecksumUnitBytes = 16;

// `offset` is where the piece begins in its block: a multiple of 16. A piece whose length is not a
// multiple of 16 is padded with zeros, so only a block's last piece may have such a length.
LaneSums SumLanes(std::span<const std::byte> piece, uint64_t offset);

// The same while copying `piece` to `target`, which does not overlap it.
LaneSums CopyAndSumLanes(std::span<const std::byte> piece, uint64_t offset, std::byte* target);

Checksum FinishChecksum(LaneSums sums, uint64_t block_bytes);

inline Checksum ChecksumOf(std::span<const std::byte> block) {
  return FinishChecksum(SumLanes(block, 0), block.size());
}

}  // namespace aquifer
