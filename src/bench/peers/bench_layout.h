// The layout behind a row's block size: 16 tokens of a model with 8 KV heads of 128 elements in
// bf16, with as many layers as make the size. 2 MiB is Llama-3-8B.
#pragma once

#include <cstdint>

#include "aquifer/layout.h"
#include "base/check.h"

namespace aquifer {

inline Layout BenchLayout(uint64_t block_bytes) {
  constexpr uint64_t kLayerBytes = uint64_t{64} << 10;
  AQ_CHECK(block_bytes % kLayerBytes == 0);
  return {.tokens_per_block = 16,
          .groups = {{.layers = static_cast<uint32_t>(block_bytes / kLayerBytes),
                      .kv_heads = 8,
                      .key_dim = 128,
                      .value_dim = 128}},
          .kv_format = "bench"};
}

}  // namespace aquifer
