#include "reference/model/kv_pages.h"

namespace aquifer::reference {

KvPages::KvPages(const ModelShape& shape, uint32_t pages, uint32_t page_tokens)
    : kv_heads_(shape.kv_heads),
      head_dim_(shape.head_dim),
      pages_(pages),
      page_tokens_(page_tokens),
      planes_(size_t{2} * shape.layers) {
  for (auto& plane : planes_) plane.resize(Offset(pages, 0, 0));
}

EngineLayout KvPages::Describe() {
  EngineLayout layout;
  layout.heads = {.begin = 0, .end = kv_heads_};
  layout.pages = pages_;
  layout.page_tokens = page_tokens_;
  for (auto& plane : planes_) {
    layout.planes.push_back({.base = reinterpret_cast<std::byte*>(plane.data()),
                             .bytes = plane.size() * sizeof(uint16_t),
                             .page_stride = Offset(1, 0, 0) * sizeof(uint16_t),
                             .head_stride = Offset(0, 1, 0) * sizeof(uint16_t),
                             .token_stride = Offset(0, 0, 1) * sizeof(uint16_t)});
  }
  return layout;
}

}  // namespace aquifer::reference
