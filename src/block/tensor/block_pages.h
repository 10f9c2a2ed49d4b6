// Which of an engine's pages one block lies in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aquifer/status.h"
#include "block/tensor/engine_layout.h"
#include "block/tensor/gather_scatter.h"

namespace aquifer {

struct BlockPages {
  std::span<const uint32_t> numbers;
  uint64_t cut = 0;  // Which block of the page it is, where pages are cut.
};

// kInvalid: the table is too short, a page does not exist, or the slot is no block.
Result<BlockPages> FindPages(const EngineMap& map, const BlockPlace& place, size_t slot_bytes);

}  // namespace aquifer
