// A checkpoint's config.json, as transformers writes it.
//
// What it does not know it refuses by name (a bias, another activation, a rotation that is not
// Llama's): such a model would compute something, and it would be wrong.
#pragma once

#include <string_view>

#include "aquifer/status.h"
#include "reference/model/model_shape.h"

namespace aquifer::reference {

struct LlamaConfig {
  ModelShape shape{};  // Valid.
  bool head_is_embedding = false;
};

Result<LlamaConfig> ParseLlamaConfig(std::string_view text);

}  // namespace aquifer::reference
