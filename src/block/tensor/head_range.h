// Which kv heads a tensor-parallel rank holds, and which rank writes them.
#pragma once

#include <cstdint>

#include "aquifer/status.h"

namespace aquifer {

// Heads `begin` up to, and without, `end`.
struct HeadRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  uint32_t count() const { return end - begin; }
  friend bool operator==(HeadRange, HeadRange) = default;
};

struct RankHeads {
  HeadRange heads;
  // Of the ranks that hold the same heads only the lowest writes them: a block is published when
  // every head was committed exactly once. All of them read.
  bool writes = true;
};

// As vLLM, SGLang and TensorRT-LLM deal heads out: in order and evenly, and where there are more
// ranks than heads (always with MLA, whose kv_heads is 1) each head to as many ranks in a row.
// kInvalid where either division has a rest, since no engine runs that way.
Result<RankHeads> HeadsOfRank(uint32_t kv_heads, uint32_t ranks, uint32_t rank);

}  // namespace aquifer
