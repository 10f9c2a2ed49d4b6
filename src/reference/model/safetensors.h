// Reads a Llama-architecture checkpoint: config.json beside model.safetensors, or several files
// with model.safetensors.index.json. Tensors are bfloat16, float16 or float32.
//
// A checkpoint is anybody's: what it says is checked before memory is taken for it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "reference/model/weights.h"

namespace aquifer::reference {

// The digest is of config.json's meaning and of every byte of every tensor that is used.
Result<std::shared_ptr<const Weights>> LoadCheckpoint(const std::string& directory);

// The same from memory: a configuration, and one file of tensors.
Result<std::shared_ptr<const Weights>> ParseCheckpoint(std::string_view config,
                                                       std::span<const std::byte> file);

}  // namespace aquifer::reference
