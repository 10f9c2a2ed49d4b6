// The arguments of one launch of the moving kernel, and how it finds its way: data and arithmetic
// that the kernel, and the fake device of the tests, compile alike.
//
// A block's bytes are cut into units of 16, the checksum's, and those into tiles. A tile lies in
// one piece of the engine's map or in none (other ranks' heads, which are only summed). Each unit's
// place in the engine follows from its number by three divisions, for which a multiplication stands
// in.
#pragma once

#include <cstdint>

#include "base/checksum/checksum_kernel.h"

#ifdef __CUDACC__
#define AQ_HOST_DEVICE __host__ __device__
#else
#define AQ_HOST_DEVICE
#endif

namespace aquifer {

inline constexpr uint32_t kMoveUnitBytes = 16;
inline constexpr uint32_t kWarpThreads = 32;
inline constexpr uint32_t kTileUnits = 256;  // At most: eight for each thread of a warp.
inline constexpr uint32_t kNoPiece = UINT32_MAX;

// n / divisor for n below 2^31, as (n * factor) >> shift; for powers of two, as most are, as n >>
// shift.
struct Divider {
  uint64_t factor = 0;  // 0: a power of two.
  uint32_t divisor = 1;
  uint32_t shift = 0;
};

inline Divider DivideBy(uint32_t divisor) {
  uint32_t log = 0;
  while (divisor >> (log + 1) != 0) ++log;
  if (divisor == uint32_t{1} << log) return {.factor = 0, .divisor = divisor, .shift = log};
  const uint32_t shift = 32 + log;
  return {.factor = ((uint64_t{1} << shift) + divisor - 1) / divisor,
          .divisor = divisor,
          .shift = shift};
}

AQ_HOST_DEVICE inline uint32_t Quotient(uint32_t n, const Divider& by) {
  if (by.factor == 0) return n >> by.shift;
  return static_cast<uint32_t>((n * by.factor) >> by.shift);
}

// A Piece of the engine's map (block/tensor/engine_layout.h), with addresses as numbers.
struct MovePiece {
  uint64_t base;
  uint64_t page_stride;
  uint64_t head_stride;
  uint64_t run_stride;
  uint64_t cut_stride;
  Divider run_bytes;
  Divider runs;
  uint32_t block_offset;
  uint32_t block_bytes;
};

struct MoveTile {
  uint32_t piece;  // kNoPiece: not this rank's; summed, not copied.
  uint32_t first_unit;
  uint32_t units;
  uint32_t one_run;  // 1: in the engine, too, its units lie one after the other.
};

struct MoveBlock {
  uint64_t slot;        // Where the block's bytes are, as the device sees them.
  uint32_t first_page;  // In MoveLaunch::pages.
  uint32_t cut;         // Which block of its page it is, where pages are cut.
  Checksum checksum;    // Expected; for kIfGood.
};

enum class MoveKind : uint8_t {
  kGather,         // Pages to slots, with sums.
  kScatter,        // Slots to pages, with sums.
  kSum,            // Slots, only summed.
  kScatterIfGood,  // Slots to pages, those blocks whose sums are already there and right.
  kGatherUnsummed,
  kScatterUnsummed,  // To measure what the sums cost.
};

// Pieces, tiles and sums are in the device's memory. Blocks and pages differ from launch to launch
// and are in the host's, pinned: each thread block reads them once.
struct MoveLaunch {
  const MovePiece* pieces;
  const MoveTile* tiles;
  const MoveBlock* blocks;
  const uint32_t* pages;
  LaneSums* sums;       // One for each block, added to: zeros before and after.
  LaneSums* host_sums;  // Where they go in the end. Pinned. kSum leaves them for the next launch.
  uint32_t* arrived;    // Warps that are done; zero before and after.
  Divider tiles_per_block;
  Divider pages_per_block;
  uint32_t piece_count;
  uint32_t block_count;
  uint32_t page_count;
  uint32_t block_bytes;
  // A power of two: how wide loads and stores in the engine are. Below 16 units may lie in several
  // runs, and in several pieces.
  uint32_t alignment;
};

struct MoveUnit {
  uint32_t words[4];
};

AQ_HOST_DEVICE inline uint64_t MoveProduct(uint32_t x, uint32_t y) {
  const uint64_t product = uint64_t{x} * y;
  return product ^ (product >> 32);
}

// A unit's keys.
struct MoveKeys {
  uint32_t at[8];
};

// As constants, since the tables themselves are in the host's memory.
template <int j>
AQ_HOST_DEVICE inline uint32_t KeyStep() {
  constexpr uint32_t kB = kChecksumB[j];
  return kB;
}
template <int j>
AQ_HOST_DEVICE inline uint32_t KeyOf(uint32_t unit) {
  constexpr uint32_t kA = kChecksumA[j];
  return kA + unit * KeyStep<j>();
}

AQ_HOST_DEVICE inline MoveKeys KeysOf(uint32_t unit) {
  return {{KeyOf<0>(unit), KeyOf<1>(unit), KeyOf<2>(unit), KeyOf<3>(unit), KeyOf<4>(unit),
           KeyOf<5>(unit), KeyOf<6>(unit), KeyOf<7>(unit)}};
}

// Those of the unit that comes `units` later. Where that is a constant, so is what is added.
AQ_HOST_DEVICE inline MoveKeys KeysLater(const MoveKeys& keys, uint32_t units) {
  const uint32_t* const k = keys.at;
  return {{k[0] + units * KeyStep<0>(), k[1] + units * KeyStep<1>(), k[2] + units * KeyStep<2>(),
           k[3] + units * KeyStep<3>(), k[4] + units * KeyStep<4>(), k[5] + units * KeyStep<5>(),
           k[6] + units * KeyStep<6>(), k[7] + units * KeyStep<7>()}};
}

// docs/formats/checksum.md; the arithmetic of base/checksum/checksum_kernel.h over words in
// registers.
AQ_HOST_DEVICE inline void AddMoveUnit(const MoveUnit& unit, const MoveKeys& keys, LaneSums* sums) {
  const uint32_t* const w = unit.words;
  const uint32_t* const k = keys.at;
  sums->a += MoveProduct(w[0] + k[0], w[1] + k[1]);
  sums->a += MoveProduct(w[2] + k[2], w[3] + k[3]);
  sums->b += MoveProduct(w[0] + k[4], w[2] + k[5]);
  sums->b += MoveProduct(w[1] + k[6], w[3] + k[7]);
}

// Where the byte at `offset` of the block is in the engine. It lies in `piece`.
AQ_HOST_DEVICE inline uint64_t EngineAddress(const MovePiece& piece, const MoveLaunch& launch,
                                             const MoveBlock& block, uint32_t offset) {
  const uint32_t inside = offset - piece.block_offset;
  const uint32_t run = Quotient(inside, piece.run_bytes);
  const uint32_t in_run = inside - run * piece.run_bytes.divisor;
  const uint32_t page_run = Quotient(run, piece.runs);
  const uint32_t in_page = run - page_run * piece.runs.divisor;
  const uint32_t head = Quotient(page_run, launch.pages_per_block);
  const uint32_t page = page_run - head * launch.pages_per_block.divisor;
  return piece.base + block.cut * piece.cut_stride +
         launch.pages[block.first_page + page] * piece.page_stride + head * piece.head_stride +
         in_page * piece.run_stride + in_run;
}

// The piece with the byte at `offset`; there is one.
AQ_HOST_DEVICE inline const MovePiece& PieceAt(const MoveLaunch& launch, uint32_t offset) {
  uint32_t first = 0;
  uint32_t end = launch.piece_count;
  while (end - first > 1) {
    const uint32_t middle = (first + end) / 2;
    if (launch.pieces[middle].block_offset <= offset) {
      first = middle;
    } else {
      end = middle;
    }
  }
  return launch.pieces[first];
}

AQ_HOST_DEVICE inline uint64_t MoveMix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// FinishChecksum(), compared.
AQ_HOST_DEVICE inline bool SumsAreGood(const LaneSums& sums, uint64_t bytes,
                                       const Checksum& expected) {
  const uint64_t x = MoveMix(sums.a + (bytes + 1) * 0x9e3779b97f4a7c15);
  const uint64_t high = MoveMix((sums.b ^ x) + bytes);
  return high == expected.high && MoveMix(x + high) == expected.low;
}

}  // namespace aquifer
