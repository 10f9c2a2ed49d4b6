#include "reference/model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <utility>

#include "base/check.h"
#include "reference/model/bfloat16.h"

namespace aquifer::reference {
namespace {

// How many tokens of a chunk one thread attends for: enough to be worth unpacking the keys.
constexpr size_t kPartTokens = 128;
// For fewer multiplications, waking the crew costs more than it saves.
constexpr size_t kWorthSharing = 1 << 20;

// The speed of each rotation, as transformers computes it.
std::vector<float> RotationSpeeds(const ModelShape& shape) {
  std::vector<float> speeds(shape.head_dim / 2);
  for (size_t i = 0; i < speeds.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(shape.head_dim);
    speeds[i] = static_cast<float>(1.0 / std::pow(shape.rope_theta, exponent));
  }
  if (!shape.rope_stretch) return speeds;
  const RopeStretch& stretch = *shape.rope_stretch;
  const double low = stretch.original_positions / stretch.low_frequency_factor;
  const double high = stretch.original_positions / stretch.high_frequency_factor;
  for (float& speed : speeds) {
    const double length = 2 * std::numbers::pi / speed;
    if (length < high) continue;
    const double blend = (stretch.original_positions / length - stretch.low_frequency_factor) /
                         (stretch.high_frequency_factor - stretch.low_frequency_factor);
    const double keep = length > low ? 0 : blend;
    speed = static_cast<float>((1 - keep) * speed / stretch.factor + keep * speed);
  }
  return speeds;
}

std::vector<float> RotationTable(const ModelShape& shape) {
  const std::vector<float> speeds = RotationSpeeds(shape);
  const size_t half = speeds.size();
  std::vector<float> table(size_t{shape.max_positions} * half * 2);
  for (size_t position = 0; position < shape.max_positions; ++position) {
    float* const row = table.data() + position * half * 2;
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * speeds[i];
      row[i] = std::cos(angle);
      row[half + i] = std::sin(angle);
    }
  }
  return table;
}

void AddTo(std::vector<float>* sums, const std::vector<float>& terms) {
  for (size_t i = 0; i < terms.size(); ++i) (*sums)[i] += terms[i];
}

size_t DividedUp(size_t value, size_t by) { return (value + by - 1) / by; }

}  // namespace

// Some tokens of a chunk, for one KV head and the query heads that share it.
struct Model::AttentionPart {
  uint32_t kv_head = 0;
  size_t first = 0;  // Index among the chunk's tokens.
  size_t count = 0;
  size_t row = 0;  // Row of the batch at which `first` is.
};

Model::Model(std::shared_ptr<const Weights> weights, const Kernels& kernels, size_t threads)
    : weights_(std::move(weights)),
      kernels_(kernels),
      crew_(threads),
      rotations_(RotationTable(weights_->shape)) {}

std::span<const float> Model::Forward(std::span<const Chunk> chunks, KvPages* pages) {
  Embed(chunks);
  for (uint32_t layer = 0; layer < shape().layers; ++layer) RunLayer(layer, chunks, pages);
  return Logits(chunks);
}

void Model::Embed(std::span<const Chunk> chunks) {
  const size_t hidden = shape().hidden;
  positions_.clear();
  residual_.clear();
  for (const Chunk& chunk : chunks) {
    for (size_t i = 0; i < chunk.tokens.size(); ++i) {
      AQ_CHECK(chunk.tokens[i] < shape().vocabulary);
      positions_.push_back(chunk.position + static_cast<uint32_t>(i));
      const float* const row = weights_->embedding.data() + chunk.tokens[i] * hidden;
      residual_.insert(residual_.end(), row, row + hidden);
    }
  }
  rows_ = positions_.size();
}

void Model::RunLayer(uint32_t layer, std::span<const Chunk> chunks, KvPages* pages) {
  const LayerWeights& weights = weights_->layers[layer];
  NormalizeRows(residual_, weights.attention_norm);
  Project(normal_, weights.query, &query_);
  Project(normal_, weights.key, &key_);
  Project(normal_, weights.value, &value_);
  StoreKv(layer, chunks, pages);
  Attend(layer, chunks, pages);
  Project(attended_, weights.output, &change_);
  AddTo(&residual_, change_);
  NormalizeRows(residual_, weights.feed_forward_norm);
  FeedForward(weights);
  AddTo(&residual_, change_);
}

void Model::NormalizeRows(const std::vector<float>& from, const std::vector<float>& weight) {
  const size_t hidden = shape().hidden;
  normal_.resize(from.size());
  for (size_t at = 0; at < from.size(); at += hidden) {
    kernels_.normalize(from.data() + at, weight.data(), normal_.data() + at, hidden,
                       shape().norm_epsilon);
  }
}

void Model::Project(const std::vector<float>& from, const PackedMatrix& matrix,
                    std::vector<float>* to) {
  to->resize(rows_ * matrix.outputs());
  ProjectRows(from.data(), rows_, matrix, to->data());
}

void Model::ProjectRows(const float* from, size_t rows, const PackedMatrix& matrix, float* to) {
  const size_t work = rows * matrix.inputs() * matrix.outputs();
  const size_t panels = DividedUp(matrix.outputs(), kPanelColumns);
  const size_t parts = work < kWorthSharing ? 1 : std::min(panels, 4 * crew_.threads());
  const size_t columns = DividedUp(panels, parts) * kPanelColumns;
  crew_.Share(parts, [&](size_t part) {
    const size_t begin = part * columns;
    if (begin >= matrix.outputs()) return;
    kernels_.multiply({.a = from,
                       .a_stride = matrix.inputs(),
                       .panels = matrix.panels(begin),
                       .c = to + begin,
                       .c_stride = matrix.outputs(),
                       .rows = rows,
                       .inner = matrix.inputs(),
                       .columns = std::min(columns, matrix.outputs() - begin),
                       .accumulate = false});
  });
}

// The two halves of a head's vector are rotated against each other, as in Llama's checkpoints.
void Model::RotateRow(float* row, uint32_t heads, uint32_t position) const {
  const size_t half = shape().head_dim / 2;
  const float* const cosines = rotations_.data() + position * half * 2;
  const float* const sines = cosines + half;
  for (uint32_t head = 0; head < heads; ++head, row += 2 * half) {
    for (size_t i = 0; i < half; ++i) {
      const float x = row[i];
      const float y = row[half + i];
      row[i] = x * cosines[i] - y * sines[i];
      row[half + i] = y * cosines[i] + x * sines[i];
    }
  }
}

void Model::StoreKv(uint32_t layer, std::span<const Chunk> chunks, KvPages* pages) {
  const ModelShape& shape = this->shape();
  size_t row = 0;
  for (const Chunk& chunk : chunks) {
    for (size_t i = 0; i < chunk.tokens.size(); ++i, ++row) {
      const uint32_t position = positions_[row];
      AQ_CHECK(position < shape.max_positions);
      const uint32_t page = chunk.page_table[position / pages->page_tokens()];
      const uint32_t token = position % pages->page_tokens();
      RotateRow(query_.data() + row * shape.heads * shape.head_dim, shape.heads, position);
      float* const key = key_.data() + row * shape.kv_heads * shape.head_dim;
      const float* const value = value_.data() + row * shape.kv_heads * shape.head_dim;
      RotateRow(key, shape.kv_heads, position);
      for (uint32_t head = 0; head < shape.kv_heads; ++head) {
        const size_t at = size_t{head} * shape.head_dim;
        std::transform(key + at, key + at + shape.head_dim, pages->Key(layer, page, head, token),
                       ToBFloat16);
        std::transform(value + at, value + at + shape.head_dim,
                       pages->Value(layer, page, head, token), ToBFloat16);
      }
    }
  }
}

void Model::Attend(uint32_t layer, std::span<const Chunk> chunks, KvPages* pages) {
  attended_.resize(query_.size());
  std::vector<std::pair<const Chunk*, AttentionPart>> parts;
  size_t row = 0;
  for (const Chunk& chunk : chunks) {
    // The last parts attend to most keys. They go first, so that no thread still has one at the
    // end.
    const size_t count = DividedUp(chunk.tokens.size(), kPartTokens);
    for (size_t i = count; i-- > 0;) {
      const size_t first = i * kPartTokens;
      for (uint32_t head = 0; head < shape().kv_heads; ++head) {
        parts.push_back({&chunk,
                         {.kv_head = head,
                          .first = first,
                          .count = std::min(kPartTokens, chunk.tokens.size() - first),
                          .row = row + first}});
      }
    }
    row += chunk.tokens.size();
  }
  crew_.Share(parts.size(), [&](size_t part) {
    AttendPart(layer, *parts[part].first, parts[part].second, pages);
  });
}

void Model::AttendPart(uint32_t layer, const Chunk& chunk, const AttentionPart& part,
                       KvPages* pages) {
  const ModelShape& shape = this->shape();
  const size_t dim = shape.head_dim;
  const size_t sharing = shape.heads / shape.kv_heads;  // Query heads of this KV head.
  const size_t rows = part.count * sharing;
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  const size_t row_floats = size_t{shape.heads} * dim;
  const size_t head_offset = part.kv_head * sharing * dim;

  // A row for each token and query head.
  std::vector<float> query(rows * dim);
  std::vector<float> output(rows * dim);
  std::vector<float> largest(rows, -std::numeric_limits<float>::infinity());
  std::vector<float> sum(rows);
  std::vector<float> scores(rows * kTileTokens);
  std::vector<float> key_panels(kTileTokens * dim);
  std::vector<float> value_panels(kTileTokens * DividedUp(dim, kPanelColumns) * kPanelColumns);
  for (size_t i = 0; i < part.count; ++i) {
    std::memcpy(query.data() + i * sharing * dim,
                query_.data() + (part.row + i) * row_floats + head_offset,
                sharing * dim * sizeof(float));
  }

  const size_t first_position = chunk.position + part.first;
  const size_t end_position = first_position + part.count;
  const uint16_t* keys[kTileTokens];
  const uint16_t* values[kTileTokens];
  for (size_t tile = 0; tile < end_position; tile += kTileTokens) {
    const size_t there = std::min(kTileTokens, end_position - tile);
    for (size_t i = 0; i < there; ++i) {
      const auto position = static_cast<uint32_t>(tile + i);
      const uint32_t page = chunk.page_table[position / pages->page_tokens()];
      const uint32_t token = position % pages->page_tokens();
      keys[i] = pages->Key(layer, page, part.kv_head, token);
      values[i] = pages->Value(layer, page, part.kv_head, token);
    }
    kernels_.unpack_keys(keys, there, dim, key_panels.data());
    kernels_.unpack_values(values, there, dim, value_panels.data());
    // Rows of tokens before the tile see none of its keys.
    const size_t skipped = tile > first_position ? (tile - first_position) * sharing : 0;
    kernels_.multiply({.a = query.data() + skipped * dim,
                       .a_stride = dim,
                       .panels = key_panels.data(),
                       .c = scores.data() + skipped * kTileTokens,
                       .c_stride = kTileTokens,
                       .rows = rows - skipped,
                       .inner = dim,
                       .columns = kTileTokens,
                       .accumulate = false});
    for (size_t row = skipped; row < rows; ++row) {
      const size_t position = first_position + row / sharing;
      const float factor = kernels_.softmax_tile(scores.data() + row * kTileTokens,
                                                 std::min(kTileTokens, position + 1 - tile), scale,
                                                 &largest[row], &sum[row]);
      if (factor != 1) kernels_.scale(output.data() + row * dim, dim, factor);
    }
    kernels_.multiply({.a = scores.data() + skipped * kTileTokens,
                       .a_stride = kTileTokens,
                       .panels = value_panels.data(),
                       .c = output.data() + skipped * dim,
                       .c_stride = dim,
                       .rows = rows - skipped,
                       .inner = kTileTokens,
                       .columns = dim,
                       .accumulate = true});
  }
  for (size_t row = 0; row < rows; ++row) {
    kernels_.scale(output.data() + row * dim, dim, 1 / sum[row]);
  }
  for (size_t i = 0; i < part.count; ++i) {
    std::memcpy(attended_.data() + (part.row + i) * row_floats + head_offset,
                output.data() + i * sharing * dim, sharing * dim * sizeof(float));
  }
}

void Model::FeedForward(const LayerWeights& layer) {
  Project(normal_, layer.gate, &gate_);
  Project(normal_, layer.up, &up_);
  const size_t width = shape().intermediate;
  for (size_t row = 0; row < rows_; ++row) {
    kernels_.gate_row(gate_.data() + row * width, up_.data() + row * width, width);
  }
  Project(gate_, layer.down, &change_);
}

std::span<const float> Model::Logits(std::span<const Chunk> chunks) {
  const size_t hidden = shape().hidden;
  last_.clear();
  size_t row = 0;
  for (const Chunk& chunk : chunks) {
    const size_t end = row + chunk.tokens.size();
    const size_t wanted = chunk.logits == LogitRows::kAll    ? chunk.tokens.size()
                          : chunk.logits == LogitRows::kLast ? 1
                                                             : 0;
    const auto begin = residual_.begin() + static_cast<ptrdiff_t>((end - wanted) * hidden);
    last_.insert(last_.end(), begin, begin + static_cast<ptrdiff_t>(wanted * hidden));
    row = end;
  }
  NormalizeRows(last_, weights_->final_norm);
  const size_t rows = last_.size() / hidden;
  logits_.resize(rows * shape().vocabulary);
  ProjectRows(normal_.data(), rows, weights_->head, logits_.data());
  return logits_;
}

}  // namespace aquifer::reference
