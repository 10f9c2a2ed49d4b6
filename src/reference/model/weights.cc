#include "reference/model/weights.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "base/crypto/sha256.h"
#include "base/hash_mix.h"
#include "reference/model/kernels.h"

namespace aquifer::reference {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";

// The layer's number and the rest of the name: {3, "mlp.up_proj.weight"}.
std::pair<size_t, std::string_view> SplitLayerName(std::string_view name) {
  name.remove_prefix(kLayerPrefix.size());
  size_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  AQ_CHECK(error == std::errc());
  return {layer, name.substr(static_cast<size_t>(end - name.data()) + 1)};
}

PackedMatrix* MatrixOf(LayerWeights* layer, std::string_view name) {
  if (name == "self_attn.q_proj.weight") return &layer->query;
  if (name == "self_attn.k_proj.weight") return &layer->key;
  if (name == "self_attn.v_proj.weight") return &layer->value;
  if (name == "self_attn.o_proj.weight") return &layer->output;
  if (name == "mlp.gate_proj.weight") return &layer->gate;
  if (name == "mlp.up_proj.weight") return &layer->up;
  AQ_CHECK(name == "mlp.down_proj.weight");
  return &layer->down;
}

void SetLayerTensor(Weights* weights, const NamedTensor& tensor, std::span<const float> values) {
  const auto [number, name] = SplitLayerName(tensor.name);
  weights->layers.resize(weights->shape.layers);
  LayerWeights* const layer = &weights->layers.at(number);
  if (name == "input_layernorm.weight") {
    layer->attention_norm.assign(values.begin(), values.end());
  } else if (name == "post_attention_layernorm.weight") {
    layer->feed_forward_norm.assign(values.begin(), values.end());
  } else {
    *MatrixOf(layer, name) = PackedMatrix(values, tensor.rows, tensor.columns);
  }
}

// Random numbers between -1 and 1.
class UniformNumbers {
 public:
  explicit UniformNumbers(uint64_t seed) : state_(seed) {}
  float Next() {
    return static_cast<float>(static_cast<int64_t>(SplitMix(&state_)) >> 40) / 8388608.0F;
  }

 private:
  uint64_t state_;
};

// Variance 1 over the inputs: values neither grow nor vanish from layer to layer.
float SpreadOf(const NamedTensor& tensor) {
  constexpr float kEmbedding = 1.7F;
  if (tensor.name == "model.embed_tokens.weight") return kEmbedding;
  return std::sqrt(3.0F / static_cast<float>(tensor.columns));
}

}  // namespace

PackedMatrix::PackedMatrix(std::span<const float> rows, size_t outputs, size_t inputs)
    : inputs_(inputs), outputs_(outputs) {
  AQ_CHECK(rows.size() == outputs * inputs);
  const size_t panels = (outputs + kPanelColumns - 1) / kPanelColumns;
  panels_.resize(panels * kPanelColumns * inputs);
  for (size_t output = 0; output < outputs; ++output) {
    float* const panel = panels_.data() + output / kPanelColumns * kPanelColumns * inputs;
    for (size_t input = 0; input < inputs; ++input) {
      panel[input * kPanelColumns + output % kPanelColumns] = rows[output * inputs + input];
    }
  }
}

std::vector<NamedTensor> TensorsOf(const ModelShape& shape, bool head_is_embedding) {
  const size_t query = size_t{shape.heads} * shape.head_dim;
  const size_t kv = size_t{shape.kv_heads} * shape.head_dim;
  const size_t hidden = shape.hidden;
  const size_t middle = shape.intermediate;
  std::vector<NamedTensor> tensors = {{"model.embed_tokens.weight", shape.vocabulary, hidden},
                                      {"model.norm.weight", 1, hidden}};
  if (!head_is_embedding) tensors.push_back({"lm_head.weight", shape.vocabulary, hidden});
  for (uint32_t i = 0; i < shape.layers; ++i) {
    const std::string layer = fmt::format("{}{}.", kLayerPrefix, i);
    tensors.push_back({layer + "input_layernorm.weight", 1, hidden});
    tensors.push_back({layer + "post_attention_layernorm.weight", 1, hidden});
    tensors.push_back({layer + "self_attn.q_proj.weight", query, hidden});
    tensors.push_back({layer + "self_attn.k_proj.weight", kv, hidden});
    tensors.push_back({layer + "self_attn.v_proj.weight", kv, hidden});
    tensors.push_back({layer + "self_attn.o_proj.weight", hidden, query});
    tensors.push_back({layer + "mlp.gate_proj.weight", middle, hidden});
    tensors.push_back({layer + "mlp.up_proj.weight", middle, hidden});
    tensors.push_back({layer + "mlp.down_proj.weight", hidden, middle});
  }
  return tensors;
}

void SetTensor(Weights* weights, const NamedTensor& tensor, std::span<const float> values) {
  AQ_CHECK(values.size() == tensor.rows * tensor.columns);
  if (tensor.name == "model.embed_tokens.weight") {
    weights->embedding.assign(values.begin(), values.end());
  } else if (tensor.name == "model.norm.weight") {
    weights->final_norm.assign(values.begin(), values.end());
  } else if (tensor.name == "lm_head.weight") {
    weights->head = PackedMatrix(values, tensor.rows, tensor.columns);
  } else {
    SetLayerTensor(weights, tensor, values);
  }
}

void FinishWeights(Weights* weights, bool head_is_embedding) {
  if (!head_is_embedding) return;
  weights->head =
      PackedMatrix(weights->embedding, weights->shape.vocabulary, weights->shape.hidden);
}

Result<std::shared_ptr<const Weights>> RandomWeights(const ModelShape& shape, uint64_t seed) {
  AQ_RETURN_IF_ERROR(ValidateShape(shape));
  auto weights = std::make_shared<Weights>();
  weights->shape = shape;
  UniformNumbers numbers(seed);
  std::vector<float> values;
  for (const NamedTensor& tensor : TensorsOf(shape, false)) {
    values.resize(tensor.rows * tensor.columns);
    const float spread = SpreadOf(tensor);
    for (float& value : values) value = tensor.rows == 1 ? 1.0F : spread * numbers.Next();
    SetTensor(weights.get(), tensor, values);
  }
  FinishWeights(weights.get(), false);
  Sha256 hash;
  hash.Update(fmt::format("random weights 1, seed {}, {}", seed, shape.ToString()));
  weights->digest = hash.Finish();
  return std::shared_ptr<const Weights>(std::move(weights));
}

}  // namespace aquifer::reference
