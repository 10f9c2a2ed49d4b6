// KvPages is the engine's KV memory: bfloat16 in pages of a few tokens, with a plane of K and one
// of V for each layer. It is allocated at start. page_pool.h says which sequence has which page.
//
// One thread at a time writes. The model's threads read while no thread writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "block/tensor/engine_layout.h"
#include "reference/model/model_shape.h"

namespace aquifer::reference {

class KvPages {
 public:
  KvPages(const ModelShape& shape, uint32_t pages, uint32_t page_tokens);

  uint32_t pages() const { return pages_; }
  uint32_t page_tokens() const { return page_tokens_; }

  // The vector of one token: `head_dim` elements.
  uint16_t* Key(uint32_t layer, uint32_t page, uint32_t head, uint32_t token) {
    return planes_[2 * layer].data() + Offset(page, head, token);
  }
  uint16_t* Value(uint32_t layer, uint32_t page, uint32_t head, uint32_t token) {
    return planes_[2 * layer + 1].data() + Offset(page, head, token);
  }

  // How the cache's blocks map to these pages.
  EngineLayout Describe();

 private:
  // [page][head][token][element]
  size_t Offset(uint32_t page, uint32_t head, uint32_t token) const {
    return ((size_t{page} * kv_heads_ + head) * page_tokens_ + token) * head_dim_;
  }

  const uint32_t kv_heads_;
  const uint32_t head_dim_;
  const uint32_t pages_;
  const uint32_t page_tokens_;
  std::vector<std::vector<uint16_t>> planes_;  // Layer 0's K, layer 0's V, layer 1's K, ...
};

}  // namespace aquifer::reference
