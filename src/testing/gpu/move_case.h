// A random engine for tests of the code that moves blocks: tensors in some order of axes, with
// pages cut or grouped, vectors of any length, one rank of several, or opaque pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aquifer/layout.h"
#include "block/tensor/engine_layout.h"
#include "testing/seeded_random.h"

namespace aquifer {

struct MoveCase {
  Layout layout;
  EngineLayout engine;           // Bases are offsets in the arena, plus one, so that none is null.
  std::vector<std::byte> arena;  // All of the engine's memory, with random bytes in it.
  std::vector<uint32_t> pages;   // Pages of one sequence.
  uint32_t blocks = 0;           // Blocks in that sequence.

  // The map for an arena that lies at `arena`, in whatever memory.
  EngineMap MapAt(std::byte* arena) const;
  uint64_t block_bytes() const { return BlockBytes(layout, 0); }
};

MoveCase RandomMoveCase(SeededRandom* random);

}  // namespace aquifer
