#include "block/tensor/block_pages.h"

#include <fmt/format.h>

namespace aquifer {

Result<BlockPages> FindPages(const EngineMap& map, const BlockPlace& place, size_t slot_bytes) {
  if (slot_bytes != map.block_bytes) {
    return Status(Code::kInvalid, fmt::format("the slot has {} bytes, but a block has {}",
                                              slot_bytes, map.block_bytes));
  }
  const uint64_t blocks = place.page_table.size() * uint64_t{map.blocks_per_page};
  const uint64_t whole_blocks = blocks / map.pages_per_block;
  if (place.index >= whole_blocks) {
    return Status(Code::kInvalid,
                  fmt::format("block {} is not one of the {} whole blocks in {} pages", place.index,
                              whole_blocks, place.page_table.size()));
  }
  const uint64_t first = place.index / map.blocks_per_page * map.pages_per_block;
  const BlockPages pages{.numbers = place.page_table.subspan(first, map.pages_per_block),
                         .cut = place.index % map.blocks_per_page};
  for (const uint32_t page : pages.numbers) {
    if (page >= map.pages) {
      return Status(Code::kInvalid,
                    fmt::format("page {} is not one of the engine's {}", page, map.pages));
    }
  }
  return pages;
}

}  // namespace aquifer
