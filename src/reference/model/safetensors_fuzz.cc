// Takes any bytes as a checkpoint: config.json up to the first zero, then a safetensors file. The
// checkpoint is refused with a reason, or it is whole. It takes no more memory than its bytes call
// for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/check.h"
#include "reference/model/safetensors.h"

using namespace aquifer;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view config = all.substr(0, all.find('\0'));
  const auto file = std::as_bytes(std::span(all)).subspan(std::min(config.size() + 1, all.size()));
  const auto weights = reference::ParseCheckpoint(config, file);
  if (!weights.ok()) {
    AQ_CHECK(weights.status().code() == Code::kInvalid && !weights.status().message().empty());
    return 0;
  }
  const reference::ModelShape& shape = (*weights)->shape;
  AQ_CHECK(reference::ValidateShape(shape).ok());
  AQ_CHECK((*weights)->embedding.size() == size_t{shape.vocabulary} * shape.hidden);
  AQ_CHECK((*weights)->embedding.size() <= size);
  AQ_CHECK((*weights)->layers.size() == shape.layers);
  AQ_CHECK((*weights)->head.outputs() == shape.vocabulary);
  for (const reference::LayerWeights& layer : (*weights)->layers) {
    AQ_CHECK(layer.query.outputs() == size_t{shape.heads} * shape.head_dim);
    AQ_CHECK(layer.down.inputs() == shape.intermediate);
    AQ_CHECK(layer.feed_forward_norm.size() == shape.hidden);
  }
  return 0;
}
