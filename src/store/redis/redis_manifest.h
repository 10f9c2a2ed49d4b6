// How a blob is laid out in Redis: which keys it has and what the first of them says. The bytes are
// in docs/formats/redis.md.
//
// The manifest is the value under the blob's own key. It begins with 64 bytes that describe the
// blob, and goes on with the blob's first bytes: all of a small one, only the head of a large one,
// whose other bytes are in pieces under keys of their own. The write id, random for every writing,
// is in the manifest and in the pieces' keys: pieces of two writers never mix.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"
#include "base/crypto/random.h"

namespace aquifer {

struct RedisManifest {
  static constexpr size_t kBytes = 64;
  // So many bytes at its beginning are the same only for the same writing.
  static constexpr size_t kIdentityBytes = 24;
  using Bytes = std::array<std::byte, kBytes>;

  std::array<std::byte, 16> write_id{};
  uint64_t blob_bytes = 0;
  uint32_t inline_bytes = 0;  // Of the blob, behind the 64.
  uint32_t piece_bytes = 0;   // Of every piece but the last; 0: there are none.

  uint64_t pieces() const {
    return piece_bytes == 0 ? 0 : (blob_bytes - inline_bytes + piece_bytes - 1) / piece_bytes;
  }
  // Where in the blob a piece begins, and how long it is.
  uint64_t PieceOffset(uint64_t piece) const { return inline_bytes + piece * piece_bytes; }
  uint64_t PieceBytes(uint64_t piece) const;
};

// How many bytes of a blob stay with the manifest: its head, and a rest that is not worth a piece;
// of a small blob all.
uint64_t InlineBytesOf(uint64_t blob_bytes, uint64_t head_bytes, uint32_t piece_bytes);

// How a blob of so many bytes is cut; the first `head_bytes` stay with the manifest.
Result<RedisManifest> PlanManifest(uint64_t blob_bytes, uint64_t head_bytes, uint32_t piece_bytes,
                                   Random* random);

RedisManifest::Bytes EncodeManifest(const RedisManifest& manifest);
// kCorrupt for what no writer of ours made.
Result<RedisManifest> DecodeManifest(std::span<const std::byte> bytes);

// The first bytes of an encoded manifest, as an argument for a script.
std::string_view IdentityOf(const RedisManifest::Bytes& bytes);

// "prefix{name}". What is in the braces decides the slot of a cluster, for pieces too.
std::string ManifestKey(std::string_view prefix, std::string_view name);
// "prefix{name}:write id:piece".
std::string PieceKey(std::string_view manifest_key, const RedisManifest& manifest, uint64_t piece);
std::vector<std::string> PieceKeys(std::string_view manifest_key, const RedisManifest& manifest);
// For SCAN: manifests of the names that begin so, and no pieces.
std::string ManifestPattern(std::string_view prefix, std::string_view name_prefix);

}  // namespace aquifer
