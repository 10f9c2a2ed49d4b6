// The size of a Llama-style decoder, and the layout of its KV for the cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aquifer/layout.h"
#include "aquifer/status.h"

namespace aquifer::reference {

// Llama 3's stretching of the slow rotations.
struct RopeStretch {
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  double original_positions = 8192;
};

struct ModelShape {
  uint32_t vocabulary = 512;
  uint32_t hidden = 128;
  uint32_t intermediate = 256;
  uint32_t layers = 2;
  uint32_t heads = 4;
  uint32_t kv_heads = 2;  // Divides `heads`.
  uint32_t head_dim = 32;
  uint32_t max_positions = 4096;
  double rope_theta = 10'000;
  std::optional<RopeStretch> rope_stretch{};
  float norm_epsilon = 1e-5F;

  std::string ToString() const;  // Every field; it is a part of a model's identity.
};

// Returns kInvalid, naming the wrong field.
Status ValidateShape(const ModelShape& shape);

// `kernels` names the set that rounded the numbers: KV of two sets differs in its last bits.
Layout KvLayout(const ModelShape& shape, const Digest& model, const std::string& kernels);

}  // namespace aquifer::reference
