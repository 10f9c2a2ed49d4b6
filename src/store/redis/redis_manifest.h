// The layout of a blob in Redis: which keys it has, and what the first of them contains.
// docs/formats/redis.md has the bytes.
//
// The manifest is the value under the blob's own key. It begins with 64 bytes that describe the
// blob. Its first bytes follow: all bytes of a small blob, or only the head of a large one. The
// other bytes of a large blob are in pieces under keys of their own. Every write has a random write
// id, which is in the manifest and in the pieces' keys: pieces of two writers never mix.
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
  // The first bytes of a manifest, which identify one write.
  static constexpr size_t kIdentityBytes = 24;
  using Bytes = std::array<std::byte, kBytes>;

  std::array<std::byte, 16> write_id{};
  uint64_t blob_bytes = 0;
  uint32_t inline_bytes = 0;  // Bytes of the blob behind these 64.
  uint32_t piece_bytes = 0;   // Length of every piece but the last; 0: there are no pieces.

  uint64_t pieces() const {
    return piece_bytes == 0 ? 0 : (blob_bytes - inline_bytes + piece_bytes - 1) / piece_bytes;
  }
  // Where in the blob a piece begins, and how long it is.
  uint64_t PieceOffset(uint64_t piece) const { return inline_bytes + piece * piece_bytes; }
  uint64_t PieceBytes(uint64_t piece) const;
};

// How many bytes of a blob stay with the manifest: all of a small blob; of a large one its head,
// and a rest that is not worth a piece.
uint64_t InlineBytesOf(uint64_t blob_bytes, uint64_t head_bytes, uint32_t piece_bytes);

// Plans how a blob is cut into pieces; the first `head_bytes` stay with the manifest.
Result<RedisManifest> PlanManifest(uint64_t blob_bytes, uint64_t head_bytes, uint32_t piece_bytes,
                                   Random* random);

RedisManifest::Bytes EncodeManifest(const RedisManifest& manifest);
// Returns kCorrupt for a value that none of our writers made.
Result<RedisManifest> DecodeManifest(std::span<const std::byte> bytes);

// The first bytes of an encoded manifest, as an argument for a script.
std::string_view IdentityOf(const RedisManifest::Bytes& bytes);

// "prefix{name}". The text in the braces decides the slot in a cluster, for pieces too.
std::string ManifestKey(std::string_view prefix, std::string_view name);
// "prefix{name}:write id:piece".
std::string PieceKey(std::string_view manifest_key, const RedisManifest& manifest, uint64_t piece);
std::vector<std::string> PieceKeys(std::string_view manifest_key, const RedisManifest& manifest);
// A SCAN pattern for the manifests of names that begin so, without pieces.
std::string ManifestPattern(std::string_view prefix, std::string_view name_prefix);

}  // namespace aquifer
