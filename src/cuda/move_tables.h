// An engine's map as the moving kernel reads it: pieces with their divisions prepared, and tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "block/tensor/engine_layout.h"
#include "cuda/move_work.h"

namespace aquifer {

struct MoveTables {
  uint64_t id = 0;  // No other tables of this process ever had it.
  EngineMap map;
  std::vector<MovePiece> pieces;
  std::vector<MoveTile> tiles;  // This rank's, ...
  uint32_t own_tiles = 0;       // ... so many of them, and then other ranks'.
  uint32_t alignment = 0;       // Of MoveLaunch.
  bool whole = false;           // The map has every byte of the block.
};

MoveTables MakeMoveTables(const EngineMap& map);

}  // namespace aquifer
