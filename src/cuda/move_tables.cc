#include "cuda/move_tables.h"

#include <algorithm>
#include <atomic>

namespace aquifer {
namespace {

MovePiece MakePiece(const Piece& piece) {
  return {.base = reinterpret_cast<uint64_t>(piece.base),
          .page_stride = piece.page_stride,
          .head_stride = piece.head_stride,
          .run_stride = piece.run_stride,
          .cut_stride = piece.cut_stride,
          .run_bytes = DivideBy(static_cast<uint32_t>(piece.run_bytes)),
          .runs = DivideBy(piece.runs),
          .block_offset = static_cast<uint32_t>(piece.block_offset),
          .block_bytes = static_cast<uint32_t>(piece.block_bytes)};
}

// `piece` is null for other ranks' bytes, and where units may lie in several pieces.
void AddTiles(uint32_t number, const Piece* piece, uint64_t begin, uint64_t end,
              std::vector<MoveTile>* tiles) {
  const uint64_t end_unit = (end + kMoveUnitBytes - 1) / kMoveUnitBytes;
  for (uint64_t unit = begin / kMoveUnitBytes; unit < end_unit; unit += kTileUnits) {
    const uint64_t units = std::min<uint64_t>(kTileUnits, end_unit - unit);
    bool one_run = false;
    if (piece != nullptr) {
      const uint64_t first = unit * kMoveUnitBytes - piece->block_offset;
      const uint64_t last = first + units * kMoveUnitBytes - 1;
      one_run = first / piece->run_bytes == last / piece->run_bytes;
    }
    tiles->push_back({.piece = number,
                      .first_unit = static_cast<uint32_t>(unit),
                      .units = static_cast<uint32_t>(units),
                      .one_run = one_run ? 1u : 0u});
  }
}

}  // namespace

MoveTables MakeMoveTables(const EngineMap& map) {
  static std::atomic<uint64_t> next_id = 1;
  MoveTables tables{.id = next_id++,
                    .map = map,
                    .pieces = {},
                    .tiles = {},
                    .own_tiles = 0,
                    .alignment = map.alignment,
                    .whole = false};
  std::vector<MoveTile> others;
  uint64_t at = 0;
  uint64_t own_bytes = 0;
  for (const Piece& piece : map.pieces) {
    AddTiles(kNoPiece, nullptr, at, piece.block_offset, &others);
    at = piece.block_offset + piece.block_bytes;
    own_bytes += piece.block_bytes;
    // Ragged pieces share units, but leave no gaps: tiles go over all of them.
    if (!map.ragged) {
      AddTiles(static_cast<uint32_t>(tables.pieces.size()), &piece, piece.block_offset, at,
               &tables.tiles);
    }
    tables.pieces.push_back(MakePiece(piece));
  }
  if (map.ragged) {
    AddTiles(0, nullptr, 0, map.block_bytes, &tables.tiles);
    others.clear();
  } else {
    AddTiles(kNoPiece, nullptr, at, map.block_bytes, &others);
  }
  tables.whole = own_bytes == map.block_bytes;
  tables.own_tiles = static_cast<uint32_t>(tables.tiles.size());
  tables.tiles.insert(tables.tiles.end(), others.begin(), others.end());
  return tables;
}

}  // namespace aquifer
