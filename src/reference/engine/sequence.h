// A Sequence is one request as the engine's thread knows it: its tokens, how many of them have
// their KV, its pages and keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "aquifer/key.h"
#include "reference/engine/engine.h"
#include "reference/engine/offload.h"
#include "reference/model/page_pool.h"

namespace aquifer::reference {

struct Sequence {
  RequestId id = 0;
  GenerateRequest request;
  RequestFigures figures;
  int64_t submitted_nanos = 0;
  uint64_t random = 0;

  std::vector<uint32_t> tokens;  // The prompt and the generated tokens.
  Key root;
  std::vector<Key> keys;  // Of all whole blocks of `tokens`.

  bool prepared = false;  // While it waits: the cache was asked to stage its blocks.

  // While it runs:
  PageTable table;
  size_t ready = 0;           // How many tokens, from the first on, have their KV.
  std::vector<bool> present;  // Which blocks have their KV, also behind a gap.
  size_t handed_on = 0;       // Blocks that were published and stored, or were recalled.
  std::unique_ptr<Recall> recall;
  int64_t waiting_since_nanos = 0;  // Since when it waits for the recall's next block.
  bool ended = false;

  size_t generated() const { return tokens.size() - request.prompt.size(); }
};

}  // namespace aquifer::reference
