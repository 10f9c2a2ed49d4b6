// The name of a block. A key is 32 bytes and names a whole prefix: the tenant, the layout, the
// adapter, the cache salt and every token up to the block's end are hashed into it. Deriving keys
// is stateless, so every process and every language computes the same ones;
// docs/formats/key.md describes each byte and has test vectors.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

struct Key {
  std::array<std::byte, 32> bytes{};

  friend bool operator==(const Key&, const Key&) = default;
  friend auto operator<=>(const Key&, const Key&) = default;

  // Keys are hashes already, so their first eight bytes serve hash tables.
  uint64_t Prefix64() const {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  std::string ToHex() const;
};

// 64 lower- or upper-case hexadecimal digits.
Result<Key> KeyFromHex(std::string_view hex);

using Digest = std::array<std::byte, 32>;

// Everything besides tokens that the first key of a chain depends on.
struct ChainRoot {
  std::string_view tenant;        // 1 to 64 bytes.
  Digest layout_fingerprint{};    // LayoutFingerprint().
  Digest adapter_digest{};        // All zero: no adapter.
  std::string_view cache_salt{};  // Keeps users of one tenant apart; at most 256 bytes.
};

// Something besides tokens that a block's content depends on, such as the hash of an image whose
// placeholder tokens lie in the block.
struct Extra {
  size_t block = 0;          // The index of its block in the prompt.
  uint32_t tag = 0;          // The kind of thing; docs/formats/key.md lists the tags.
  std::string_view value{};  // At most 4096 bytes.
};

Result<Key> DeriveRoot(const ChainRoot& root);

// Derives the keys of every whole block of `tokens`. `parent` is the root, or the last key of a
// chain that goes on. Tokens of a last partial block get no key. `extras` are sorted by block.
// `keys` holds at least tokens.size() / tokens_per_block keys. Returns how many were written.
Result<size_t> DeriveChain(const Key& parent, std::span<const uint32_t> tokens,
                           uint32_t tokens_per_block, std::span<const Extra> extras,
                           std::span<Key> keys);

}  // namespace aquifer
