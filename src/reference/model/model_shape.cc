#include "reference/model/model_shape.h"

#include <fmt/format.h>

namespace aquifer::reference {
namespace {

// A mistake in a configuration is refused before memory is taken for it.
constexpr uint32_t kMost = 1 << 20;
constexpr uint32_t kMostLayers = 4096;
constexpr double kMostWeights = double{1 << 30} * 16;  // All weights together: 64 GiB.

double CountWeights(const ModelShape& shape) {
  const double width = shape.hidden;
  const double heads = 2.0 * (shape.heads + shape.kv_heads) * shape.head_dim;
  return width * (2.0 * shape.vocabulary + shape.layers * (heads + 3.0 * shape.intermediate));
}

Status Require(bool holds, std::string_view what) {
  return holds ? Status() : Status(Code::kInvalid, std::string(what));
}

}  // namespace

std::string ModelShape::ToString() const {
  std::string text = fmt::format(
      "vocabulary {} hidden {} intermediate {} layers {} heads {}/{} dim {} positions {} theta {} "
      "epsilon {}",
      vocabulary, hidden, intermediate, layers, heads, kv_heads, head_dim, max_positions,
      rope_theta, norm_epsilon);
  if (rope_stretch) {
    text += fmt::format(" stretch {} {} {} {}", rope_stretch->factor,
                        rope_stretch->low_frequency_factor, rope_stretch->high_frequency_factor,
                        rope_stretch->original_positions);
  }
  return text;
}

Status ValidateShape(const ModelShape& shape) {
  for (const auto& [value, name] :
       {std::pair{shape.vocabulary, "vocabulary"}, std::pair{shape.hidden, "hidden"},
        std::pair{shape.intermediate, "intermediate"}, std::pair{shape.layers, "layers"},
        std::pair{shape.heads, "heads"}, std::pair{shape.kv_heads, "kv_heads"},
        std::pair{shape.head_dim, "head_dim"}, std::pair{shape.max_positions, "max_positions"}}) {
    AQ_RETURN_IF_ERROR(Require(value > 0 && value <= kMost,
                               fmt::format("{} is {}; it may be 1 to {}", name, value, kMost)));
  }
  AQ_RETURN_IF_ERROR(
      Require(shape.layers <= kMostLayers, fmt::format("layers is above {}", kMostLayers)));
  AQ_RETURN_IF_ERROR(Require(shape.heads % shape.kv_heads == 0, "kv_heads must divide heads"));
  AQ_RETURN_IF_ERROR(Require(shape.head_dim % 2 == 0, "head_dim must be even"));
  AQ_RETURN_IF_ERROR(Require(shape.head_dim <= 1024, "head_dim is above 1024"));
  AQ_RETURN_IF_ERROR(Require(CountWeights(shape) <= kMostWeights,
                             "the model is too large: it would have more than 64 GiB of weights"));
  return Require(shape.rope_theta > 1, "rope_theta must be above 1");
}

Layout KvLayout(const ModelShape& shape, const Digest& model, const std::string& kernels) {
  Layout layout{.model = model,
                .tokens_per_block = 0,
                .groups = {{.kind = KvKind::kFull,
                            .dtype = DType::kBFloat16,
                            .layers = shape.layers,
                            .kv_heads = shape.kv_heads,
                            .key_dim = shape.head_dim,
                            .value_dim = shape.head_dim}},
                .kv_format = "aquifer reference 1 " + kernels};
  layout.tokens_per_block = TokensPerBlock(layout);
  return layout;
}

}  // namespace aquifer::reference
