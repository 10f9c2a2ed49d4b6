// Chains for tests, and bytes that follow from their keys: whoever recalls a block can tell from
// its key alone whether every byte of it is right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aquifer/key.h"
#include "aquifer/layout.h"

namespace aquifer {

// A layout whose blocks have this many bytes in each of `groups` kv groups, packed in an engine's
// own way.
Layout LayoutOfBytes(uint64_t block_bytes, size_t groups = 1);

// A layout of one full-attention group with eight kv heads; its blocks have 64 KiB.
Layout LayoutOfHeads();
inline constexpr uint32_t kHeadsOfLayout = 8;

// The pieces that heads [begin, end) occupy in a block of the layout's first group.
struct BlockPiece {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
std::vector<BlockPiece> PiecesOfHeads(const Layout& layout, uint32_t begin, uint32_t end);

struct ChainOptions {
  uint64_t seed = 1;  // Decides the tokens.
  size_t blocks = 0;
  std::string tenant = "local";
  std::string cache_salt = {};
};

class Chain {
 public:
  Chain(const Layout& layout, const ChainOptions& options);

  // Another end: shares the first `shared` blocks with this one.
  Chain Fork(size_t shared, uint64_t seed, size_t blocks) const;

  std::span<const Key> keys() const { return keys_; }
  std::span<const Key> keys(size_t first, size_t count) const {
    return keys().subspan(first, count);
  }
  const Key& operator[](size_t i) const { return keys_[i]; }
  size_t size() const { return keys_.size(); }

  // The key before block `i`: the root for the first.
  const Key& parent(size_t i) const { return i == 0 ? root_ : keys_[i - 1]; }

 private:
  Chain() = default;
  void Append(uint64_t seed, size_t blocks);

  uint32_t tokens_per_block_ = 0;
  Key root_;
  std::vector<Key> keys_;
};

// The bytes of the block that `key` names in `group`. `offset` (a multiple of 8) is where `bytes`
// begin in the block, for who writes it in pieces.
void FillPayload(const Key& key, uint16_t group, std::span<std::byte> bytes, uint64_t offset = 0);
bool IsPayload(const Key& key, uint16_t group, std::span<const std::byte> bytes);

}  // namespace aquifer
