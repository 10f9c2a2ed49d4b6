// Travels with a block's bytes to every tier below DRAM and comes back with them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "aquifer/checksum.h"
#include "aquifer/key.h"
#include "block/block_id.h"

namespace aquifer {

enum class Codec : uint16_t {
  kNone = 0,
  kLossless = 1,  // block/codec/lossless_codec.h. Always fewer bytes than the raw ones.
};

struct BlockMeta {
  BlockId id;
  Key parent;             // The key before it in its chain; the root for position 0.
  uint32_t position = 0;  // Which block of the chain it is.
  Digest layout_fingerprint{};
  uint64_t raw_bytes = 0;     // As the engine stored it.
  uint64_t stored_bytes = 0;  // As the codec left it; equal for kNone.
  Codec codec = Codec::kNone;
  std::array<std::byte, 16> data_key_id{};  // All zero: not encrypted.
  std::array<std::byte, 24> nonce{};
  std::array<std::byte, 16> tag{};
  Checksum checksum;                // Of the raw bytes.
  int64_t expiry_unix_seconds = 0;  // 0: never.
  uint64_t engine_hash = 0;         // The engine's own 64-bit name for the block; 0: none.
};

}  // namespace aquifer
