#include "testing/chain.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

// splitmix64 by index, so that a piece in the middle of a block needs nothing of what precedes it.
uint64_t WordAt(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t PayloadSeed(const Key& key, uint16_t group) {
  return key.Prefix64() + group * 0xD6E8FEB86659FD93u;
}

}  // namespace

Layout LayoutOfBytes(uint64_t block_bytes, size_t groups) {
  Layout layout;
  layout.model[0] = std::byte{0x11};
  layout.tokens_per_block = 16;
  layout.kv_format = "test.packed.1";
  for (size_t i = 0; i < groups; ++i) {
    layout.groups.push_back({.kind = KvKind::kFull,
                             .dtype = DType::kBFloat16,
                             .layers = 4,
                             .kv_heads = 2,
                             .key_dim = 64,
                             .value_dim = 64,
                             .window_tokens = 0,
                             .opaque_bytes = block_bytes});
  }
  return layout;
}

Layout LayoutOfHeads() {
  Layout layout;
  layout.model[0] = std::byte{0x22};
  layout.tokens_per_block = 16;
  layout.kv_format = "test.heads.1";
  layout.groups.push_back({.kind = KvKind::kFull,
                           .dtype = DType::kBFloat16,
                           .layers = 2,
                           .kv_heads = kHeadsOfLayout,
                           .key_dim = 64,
                           .value_dim = 64,
                           .window_tokens = 0,
                           .opaque_bytes = 0});
  return layout;
}

std::vector<BlockPiece> PiecesOfHeads(const Layout& layout, uint32_t begin, uint32_t end) {
  const KvGroup& group = layout.groups[0];
  const uint64_t token_bytes = layout.tokens_per_block * DTypeBytes(group.dtype);
  std::vector<BlockPiece> pieces;
  uint64_t offset = 0;
  for (uint32_t layer = 0; layer < group.layers; ++layer) {
    for (const uint32_t dim : {group.key_dim, group.value_dim}) {
      const uint64_t head_bytes = dim * token_bytes;
      pieces.push_back(
          {.offset = offset + begin * head_bytes, .bytes = (end - begin) * head_bytes});
      offset += group.kv_heads * head_bytes;
    }
  }
  AQ_CHECK(offset == BlockBytes(layout, 0));
  return pieces;
}

Chain::Chain(const Layout& layout, const ChainOptions& options)
    : tokens_per_block_(layout.tokens_per_block) {
  auto root = DeriveRoot({.tenant = options.tenant,
                          .layout_fingerprint = LayoutFingerprint(layout),
                          .adapter_digest = {},
                          .cache_salt = options.cache_salt});
  AQ_CHECK(root.ok());
  root_ = *root;
  Append(options.seed, options.blocks);
}

Chain Chain::Fork(size_t shared, uint64_t seed, size_t blocks) const {
  AQ_CHECK(shared <= size());
  Chain fork;
  fork.tokens_per_block_ = tokens_per_block_;
  fork.root_ = root_;
  fork.keys_.assign(keys_.begin(), keys_.begin() + static_cast<ptrdiff_t>(shared));
  fork.Append(seed, blocks);
  return fork;
}

void Chain::Append(uint64_t seed, size_t blocks) {
  SeededRandom random(seed);
  std::vector<uint32_t> tokens(blocks * tokens_per_block_);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random.Below(128'000));
  const size_t first = keys_.size();
  const Key last = parent(first);
  keys_.resize(first + blocks);
  auto made = DeriveChain(last, tokens, tokens_per_block_, {}, std::span(keys_).subspan(first));
  AQ_CHECK(made.ok() && *made == blocks);
}

void FillPayload(const Key& key, uint16_t group, std::span<std::byte> bytes, uint64_t offset) {
  AQ_CHECK(offset % sizeof(uint64_t) == 0);
  const uint64_t seed = PayloadSeed(key, group);
  uint64_t index = offset / sizeof(uint64_t);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = WordAt(seed, index++);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
  }
}

bool IsPayload(const Key& key, uint16_t group, std::span<const std::byte> bytes) {
  const uint64_t seed = PayloadSeed(key, group);
  uint64_t index = 0;
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = WordAt(seed, index++);
    if (std::memcmp(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace aquifer
