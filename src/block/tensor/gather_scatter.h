// Copies blocks between an engine's pages and slots, and sums them in the same pass. On the CPU;
// the GPU's kernels walk the same EngineMap.
//
// Work comes in batches. A call runs on the caller's thread, allocates nothing unless it fails, and
// never blocks; any number of threads may use one map, on different blocks. Only whole blocks move:
// the tokens after the last whole block of a sequence have no block yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aquifer/checksum.h"
#include "aquifer/status.h"
#include "block/tensor/engine_layout.h"

namespace aquifer {

// Which tokens of the engine a block is: those of block `index` in a sequence whose pages are
// `page_table`. The engine's own block table serves as it is, whether its pages are cut or grouped;
// a sequence that lies in one piece (transformers) is a table of one page.
struct BlockPlace {
  std::span<const uint32_t> page_table;
  uint64_t index = 0;
};

struct GatherOp {
  BlockPlace place;
  // The whole block's bytes; only this rank's heads are written. At 64-byte boundaries it is
  // fastest.
  std::span<std::byte> slot;

  // Answers. The sums of what was written, for CommitOp; those of all ranks add up to the block's.
  LaneSums sums;
  Status
      status;  // kInvalid: the table is too short, a page does not exist, or the slot is no block.
};

// One block's failure is its own: the others of the batch are still copied.
void Gather(const EngineMap& map, std::span<GatherOp> ops);

// How a scatter treats the block's checksum. The checksum is the whole block's, so a rank that
// holds some of the heads can only compare it when it also reads the other heads.
enum class Verify : uint8_t {
  // Not here: the caller adds up the ranks' sums, or the slot was verified when it was filled.
  kNever,
  // In the pass that copies. On kCorrupt the pages already hold bytes that must not be used: the
  // engine has to treat these tokens as not loaded and compute them. Other ranks' heads are read
  // too.
  kWhileCopying,
  // Before anything is copied, at the price of reading the block twice. On kCorrupt the pages are
  // untouched. For engines that cannot take back a page once it is written.
  kFirst,
};

struct ScatterOp {
  BlockPlace place;
  std::span<const std::byte> slot;  // The whole block's bytes, leased until the call returns.
  Checksum checksum;                // Of the whole block; not used with kNever.

  // Answers. The sums of what was copied: of the bytes as they arrived in the pages, even if
  // another process changed the slot in the meantime.
  LaneSums sums;
  Status status;  // kCorrupt: see Verify. kInvalid as for GatherOp; the pages are then untouched.
};

void Scatter(const EngineMap& map, Verify verify, std::span<ScatterOp> ops);

}  // namespace aquifer
