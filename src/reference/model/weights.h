// The weights of a model in memory, in the kernels' format. They come from a seed, from code
// (constructed.h) or from a file (safetensors.h). Immutable once made; any number of threads may
// read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/key.h"
#include "aquifer/status.h"
#include "reference/model/model_shape.h"

namespace aquifer::reference {

// A matrix to multiply rows with, in panels (kernels.h).
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `rows` is [outputs][inputs], as in checkpoints.
  PackedMatrix(std::span<const float> rows, size_t outputs, size_t inputs);

  size_t inputs() const { return inputs_; }
  size_t outputs() const { return outputs_; }
  // The panels from output `column` on, a multiple of kPanelColumns.
  const float* panels(size_t column) const { return panels_.data() + column * inputs_; }

 private:
  size_t inputs_ = 0;
  size_t outputs_ = 0;
  std::vector<float> panels_;
};

struct LayerWeights {
  std::vector<float> attention_norm;
  PackedMatrix query;
  PackedMatrix key;
  PackedMatrix value;
  PackedMatrix output;
  std::vector<float> feed_forward_norm;
  PackedMatrix gate;
  PackedMatrix up;
  PackedMatrix down;
};

struct Weights {
  ModelShape shape;
  Digest digest{};               // Digest of the configuration and of every weight.
  std::vector<float> embedding;  // [vocabulary][hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  PackedMatrix head;
};

// The place of a checkpoint's matrix. `name` is as in Llama's checkpoints:
// "model.layers.0.self_attn.q_proj.weight".
struct NamedTensor {
  std::string name;
  size_t rows = 0;  // 1: a vector.
  size_t columns = 0;
};
std::vector<NamedTensor> TensorsOf(const ModelShape& shape, bool head_is_embedding);

// Puts one tensor of TensorsOf() in its place. Without a head, FinishWeights() uses the embedding.
void SetTensor(Weights* weights, const NamedTensor& tensor, std::span<const float> values);
void FinishWeights(Weights* weights, bool head_is_embedding);

// Weights of any shape; the same seed gives the same weights on every machine.
Result<std::shared_ptr<const Weights>> RandomWeights(const ModelShape& shape, uint64_t seed);

}  // namespace aquifer::reference
