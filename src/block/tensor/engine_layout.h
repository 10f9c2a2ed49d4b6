// Where an engine keeps the KV of one group, and how that maps to the bytes of our blocks.
//
// A block holds layer, K then V, head, token (docs/formats/block.md). An engine
// holds the same vectors in pages, in one of a dozen orders. Both are the same few numbers: for K
// and for V of each layer, where page 0 begins and how far it is to the next page, head and token.
// That is an EngineLayout: plain data, made by a connector (engine_families.h does it from shapes
// and strides). CompileEngineLayout() checks it once and turns it into an EngineMap, a short list
// of pieces that gather_scatter.h walks on the CPU and that a GPU kernel can walk the same way.
//
// Nothing here owns memory or touches it: the engine's tensors must outlive the copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aquifer/layout.h"
#include "aquifer/status.h"
#include "block/tensor/head_range.h"

namespace aquifer {

// K or V of one layer, or an MLA layer's latents, or a layer's opaque pages. All strides in bytes;
// the elements of one vector lie together.
struct EnginePlane {
  std::byte* base = nullptr;  // Page 0, this rank's first head, token 0.
  uint64_t bytes = 0;         // From `base` on; nothing outside of it is ever touched.
  uint64_t page_stride = 0;
  uint64_t head_stride = 0;   // Ignored where there is one head.
  uint64_t token_stride = 0;  // Ignored where a page has one token.
};

struct EngineLayout {
  // Layer 0's K, layer 0's V, layer 1's K, and so on; without V (MLA) one plane a layer.
  std::vector<EnginePlane> planes;
  HeadRange heads;           // Those in the planes: this rank's.
  uint64_t pages = 0;        // Page numbers are below it.
  uint32_t page_tokens = 0;  // In each page.

  // The engine orders the bytes of a page's tokens within one head in its own way (vLLM on CPUs, by
  // instruction set), so a page is never cut. Heads stay apart, so any TP size reads any other's.
  // That order and the page's size must be in the layout's kv_format.
  bool tokens_packed = false;

  // Pages whose inside is the engine's own affair, heads included: this many bytes of a plane's
  // page are copied as they are. For groups with opaque_bytes, which then are planes x pages of a
  // block x this. Such a page cannot be split by heads, so the rank must hold all of them.
  uint64_t opaque_page_bytes = 0;
};

// Bytes that follow each other in the block, and the pattern they have in the engine:
//
//   for head in heads, for page in the block's pages, for run in runs:
//     engine: base + number of the page * page_stride + head * head_stride + run * run_stride
//             (and, where pages are cut, + the block's place in the page * cut_stride)
//     block:  the next run_bytes, beginning at block_offset
struct Piece {
  std::byte* base = nullptr;
  uint64_t page_stride = 0;
  uint64_t head_stride = 0;
  uint64_t run_stride = 0;
  uint64_t cut_stride = 0;
  uint64_t run_bytes = 0;
  uint32_t heads = 1;
  uint32_t runs = 1;
  uint64_t block_offset = 0;
  uint64_t block_bytes = 0;
};

// Made by CompileEngineLayout() alone. `pieces` go up in the block and do not overlap.
struct EngineMap {
  std::vector<Piece> pieces;
  HeadRange heads;
  uint64_t pages = 0;
  uint64_t block_bytes = 0;  // Of the whole block, not only of this rank's heads.
  uint32_t tokens_per_block = 0;
  uint32_t pages_per_block = 1;  // More than one where pages are grouped, ...
  uint32_t blocks_per_page = 1;  // ... or this, where they are cut.
  // A power of two up to 16 that divides every address, stride and length in `pieces`: how wide the
  // loads and stores of a GPU kernel may be.
  uint32_t alignment = 1;
  // Opaque pages whose size is no multiple of 16 bytes: pieces begin and end inside of checksum
  // units, but leave no gaps. All other pieces begin and end at multiples of 16 in the block.
  bool ragged = false;
};

// kInvalid, naming the plane and what is wrong with it, when the description does not fit the group
// or could touch bytes outside of its planes or the same bytes twice.
Result<EngineMap> CompileEngineLayout(const Layout& layout, size_t group,
                                      const EngineLayout& engine);

}  // namespace aquifer
