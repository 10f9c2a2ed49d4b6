#include "reference/model/llama_config.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>
#include <utility>

#include "reference/model/shallow_json.h"

namespace aquifer::reference {
namespace {

using nlohmann::json;

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

// A field of a type, or a default if it is missing.
template <class T>
Result<T> Field(const json& object, const char* name, const T& otherwise) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return otherwise;
  const bool fits = std::is_same_v<T, std::string> ? found->is_string()
                    : std::is_same_v<T, bool>      ? found->is_boolean()
                    : std::is_same_v<T, uint32_t>
                        ? found->is_number_unsigned() && found->get<uint64_t>() <= UINT32_MAX
                        : found->is_number();
  if (!fits) return Invalid(fmt::format("config.json: {} is {}", name, found->dump()));
  return found->get<T>();
}

Status ReadRotation(const json& config, ModelShape* shape) {
  // One object since transformers 5, two fields before.
  const json rope = config.contains("rope_parameters") ? config["rope_parameters"]
                    : config.contains("rope_scaling")  ? config["rope_scaling"]
                                                       : json();
  AQ_ASSIGN_OR_RETURN(shape->rope_theta, Field<double>(config, "rope_theta", shape->rope_theta));
  if (!rope.is_object()) return Status();
  AQ_ASSIGN_OR_RETURN(shape->rope_theta, Field<double>(rope, "rope_theta", shape->rope_theta));
  AQ_ASSIGN_OR_RETURN(const auto old_name, Field<std::string>(rope, "type", "default"));
  AQ_ASSIGN_OR_RETURN(const auto kind, Field<std::string>(rope, "rope_type", old_name));
  if (kind == "default") return Status();
  if (kind != "llama3") {
    return Invalid(
        fmt::format("config.json: rotary positions of the kind '{}' are not known; "
                    "there are default and llama3",
                    kind));
  }
  RopeStretch stretch;
  AQ_ASSIGN_OR_RETURN(stretch.factor, Field(rope, "factor", stretch.factor));
  AQ_ASSIGN_OR_RETURN(stretch.low_frequency_factor,
                      Field(rope, "low_freq_factor", stretch.low_frequency_factor));
  AQ_ASSIGN_OR_RETURN(stretch.high_frequency_factor,
                      Field(rope, "high_freq_factor", stretch.high_frequency_factor));
  AQ_ASSIGN_OR_RETURN(stretch.original_positions,
                      Field(rope, "original_max_position_embeddings", stretch.original_positions));
  if (!(stretch.factor > 0 && stretch.original_positions > 0 && stretch.low_frequency_factor > 0 &&
        stretch.high_frequency_factor > stretch.low_frequency_factor)) {
    return Invalid("config.json: the factors of the rotary positions make no sense");
  }
  shape->rope_stretch = stretch;
  return Status();
}

Status RefuseStrangers(const json& config) {
  AQ_ASSIGN_OR_RETURN(const auto type, Field<std::string>(config, "model_type", "llama"));
  if (type != "llama") {
    return Invalid(fmt::format("config.json: model_type is '{}'; only llama is known", type));
  }
  AQ_ASSIGN_OR_RETURN(const auto activation, Field<std::string>(config, "hidden_act", "silu"));
  if (activation != "silu") {
    return Invalid(fmt::format("config.json: hidden_act is '{}'; only silu is known", activation));
  }
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    AQ_ASSIGN_OR_RETURN(const bool there, Field(config, bias, false));
    if (there) return Invalid(fmt::format("config.json: {} is not supported", bias));
  }
  if (config.contains("quantization_config")) {
    return Invalid("config.json: quantised weights are not supported");
  }
  return Status();
}

}  // namespace

Result<LlamaConfig> ParseLlamaConfig(std::string_view text) {
  const json config = ParseShallowObject(text);
  if (!config.is_object()) return Invalid("config.json is no JSON object");
  AQ_RETURN_IF_ERROR(RefuseStrangers(config));
  LlamaConfig read;
  ModelShape& shape = read.shape;
  AQ_ASSIGN_OR_RETURN(shape.vocabulary, Field<uint32_t>(config, "vocab_size", 32'000));
  AQ_ASSIGN_OR_RETURN(shape.hidden, Field<uint32_t>(config, "hidden_size", 4096));
  AQ_ASSIGN_OR_RETURN(shape.intermediate, Field<uint32_t>(config, "intermediate_size", 11'008));
  AQ_ASSIGN_OR_RETURN(shape.layers, Field<uint32_t>(config, "num_hidden_layers", 32));
  AQ_ASSIGN_OR_RETURN(shape.heads, Field<uint32_t>(config, "num_attention_heads", 32));
  AQ_ASSIGN_OR_RETURN(shape.kv_heads, Field<uint32_t>(config, "num_key_value_heads", shape.heads));
  if (shape.heads == 0) return Invalid("config.json: num_attention_heads is 0");
  AQ_ASSIGN_OR_RETURN(shape.head_dim,
                      Field<uint32_t>(config, "head_dim", shape.hidden / shape.heads));
  AQ_ASSIGN_OR_RETURN(shape.max_positions,
                      Field<uint32_t>(config, "max_position_embeddings", 2048));
  AQ_ASSIGN_OR_RETURN(const double epsilon, Field<double>(config, "rms_norm_eps", 1e-6));
  if (!(epsilon >= 0 && epsilon <= 1)) return Invalid("config.json: rms_norm_eps makes no sense");
  shape.norm_epsilon = static_cast<float>(epsilon);
  AQ_RETURN_IF_ERROR(ReadRotation(config, &shape));
  AQ_ASSIGN_OR_RETURN(read.head_is_embedding, Field(config, "tie_word_embeddings", false));
  AQ_RETURN_IF_ERROR(ValidateShape(shape));
  return read;
}

}  // namespace aquifer::reference
