// Reads a checkpoint's config.json, as transformers writes it.
//
// A setting that this engine does not support is refused by name (a bias, another activation, a
// rotation that is not Llama's). The model would run otherwise, with wrong results.
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
