// The layout of one model's KV. Two engines may share blocks exactly when their layouts are equal.
// The layout's fingerprint is in every key, so a block of another layout can never be found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "aquifer/key.h"
#include "aquifer/status.h"

namespace aquifer {

enum class DType : uint8_t {
  kFloat32 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kFloat8E4M3 = 4,
  kFloat8E5M2 = 5,
  kInt8 = 6,
  kUInt8 = 7
};

size_t DTypeBytes(DType dtype);

enum class KvKind : uint8_t {
  kFull = 1,    // Every token attends to every earlier one.
  kWindow = 2,  // Only the last `window_tokens` are attended to.
  kLatent = 3,  // MLA: one latent vector a token; kv_heads is 1 and value_dim 0.
  kState = 4,   // A state-space group: a snapshot at the block's end, `opaque_bytes` long.
};

// Layers that share one shape. Its blocks hold, for a fixed run of tokens, the bytes in the order
// layer, K then V, head, token.
struct KvGroup {
  KvKind kind = KvKind::kFull;
  DType dtype = DType::kBFloat16;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t key_dim = 0;        // Elements of one head's K for one token.
  uint32_t value_dim = 0;      // The same for V.
  uint32_t window_tokens = 0;  // kWindow only.
  // Pages that an engine packs in its own way (and kState) are stored as they are: this many bytes
  // make one block, and the fields above only describe it. Zero: the bytes follow from the fields.
  uint64_t opaque_bytes = 0;
};

struct Layout {
  Digest model{};  // Digest of the effective config and of the weights.
  uint32_t tokens_per_block = 0;
  std::vector<KvGroup> groups;  // 1 to 16.
  // The connector's own name of the format. It changes when the meaning of the bytes changes, and
  // not otherwise.
  std::string kv_format;  // 1 to 128 bytes.
};

inline constexpr uint64_t kMinBlockBytes = 4096;
inline constexpr uint64_t kMaxBlockBytes = uint64_t{64} << 20;

// Bytes of one block of `group`, before any rounding.
uint64_t BlockBytes(const Layout& layout, size_t group);

// Returns kInvalid with the field's name if the layout cannot be stored: no groups, a zero
// dimension, a block under kMinBlockBytes or over kMaxBlockBytes.
Status ValidateLayout(const Layout& layout);

// The layout's part of every key: docs/formats/key.md.
Digest LayoutFingerprint(const Layout& layout);

// The product's rule for every engine and rank, so that all make the same chains. It depends on the
// model alone: the largest power of two in 16...256 whose largest block is at most 8 MiB, else 16.
// `layout.tokens_per_block` is ignored.
uint32_t TokensPerBlock(const Layout& layout);

// Fits an engine's pages to the model's blocks. Pages that divide `tokens_per_block` are grouped;
// larger multiples are cut when `can_cut`, and otherwise raise the answer to their own size. A page
// that fits neither way is refused by name.
Result<uint32_t> FitPages(uint32_t tokens_per_block, uint32_t page_tokens, bool can_cut);

}  // namespace aquifer
