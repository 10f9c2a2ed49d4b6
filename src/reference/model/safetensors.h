// Reads a Llama-architecture checkpoint: config.json beside model.safetensors, or several files
// with model.safetensors.index.json. Tensors are bfloat16, float16 or float32.
//
// A checkpoint is not trusted: its headers are checked before memory is taken for it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "reference/model/weights.h"

namespace aquifer::reference {

// The digest covers the meaning of config.json and every byte of every used tensor.
Result<std::shared_ptr<const Weights>> LoadCheckpoint(const std::string& directory);

// The same from memory: a configuration, and one file of tensors.
Result<std::shared_ptr<const Weights>> ParseCheckpoint(std::string_view config,
                                                       std::span<const std::byte> file);

}  // namespace aquifer::reference
