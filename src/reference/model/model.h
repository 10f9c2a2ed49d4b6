// A Llama-style decoder over KV in pages: RMSNorm, rotary positions, grouped-query attention,
// SwiGLU.
//
// The same tokens give the same logits, bit by bit. It does not matter how the sequence was cut
// into chunks, which others were in the batch, how many threads computed it, or if the KV before it
// was computed or recalled. There are three reasons. A row's sums have an order of their own
// (kernels.h). Attention walks a sequence in tiles that begin at multiples of kTileTokens. K and V
// are rounded to bfloat16 before they are read, even if they were just computed.
//
// Forward() is called from one thread at a time and returns when its crew is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "reference/model/crew.h"
#include "reference/model/kernels.h"
#include "reference/model/kv_pages.h"
#include "reference/model/weights.h"

namespace aquifer::reference {

enum class LogitRows : uint8_t { kNone, kLast, kAll };

// The next tokens of a sequence. The KV of all tokens before them is in its pages.
struct Chunk {
  std::span<const uint32_t> tokens{};
  uint32_t position = 0;                   // Position of the first of them.
  std::span<const uint32_t> page_table{};  // The pages of all tokens up to the last of these.
  LogitRows logits = LogitRows::kLast;
};

class Model {
 public:
  Model(std::shared_ptr<const Weights> weights, const Kernels& kernels, size_t threads);

  const ModelShape& shape() const { return weights_->shape; }
  const Weights& weights() const { return *weights_; }
  const Kernels& kernels() const { return kernels_; }

  // Writes the tokens' KV into their pages. Returns the logits that were asked for, [vocabulary]
  // each, in the order of the chunks and their tokens. They are valid until the next call.
  std::span<const float> Forward(std::span<const Chunk> chunks, KvPages* pages);

 private:
  struct AttentionPart;

  void Embed(std::span<const Chunk> chunks);
  void RunLayer(uint32_t layer, std::span<const Chunk> chunks, KvPages* pages);
  void NormalizeRows(const std::vector<float>& from, const std::vector<float>& weight);
  void StoreKv(uint32_t layer, std::span<const Chunk> chunks, KvPages* pages);
  void RotateRow(float* row, uint32_t heads, uint32_t position) const;
  void Attend(uint32_t layer, std::span<const Chunk> chunks, KvPages* pages);
  void AttendPart(uint32_t layer, const Chunk& chunk, const AttentionPart& part, KvPages* pages);
  void FeedForward(const LayerWeights& layer);
  void Project(const std::vector<float>& from, const PackedMatrix& matrix, std::vector<float>* to);
  void ProjectRows(const float* from, size_t rows, const PackedMatrix& matrix, float* to);
  std::span<const float> Logits(std::span<const Chunk> chunks);

  const std::shared_ptr<const Weights> weights_;  // Shared with other models of the same weights.
  const Kernels kernels_;
  Crew crew_;
  std::vector<float> rotations_;  // [position][head_dim / 2] cosines, then as many sines.

  // For the batch; each row is a token.
  size_t rows_ = 0;
  std::vector<uint32_t> positions_;
  std::vector<float> residual_;
  std::vector<float> normal_;
  std::vector<float> query_;
  std::vector<float> key_;
  std::vector<float> value_;
  std::vector<float> attended_;
  std::vector<float> gate_;
  std::vector<float> up_;
  std::vector<float> change_;
  std::vector<float> last_;
  std::vector<float> logits_;
};

}  // namespace aquifer::reference
