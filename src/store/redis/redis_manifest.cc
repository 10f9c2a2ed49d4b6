#include "store/redis/redis_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "aquifer/checksum.h"
#include "base/bytes.h"

namespace aquifer {
namespace {

constexpr uint32_t kMagic = 0x42525141;  // "AQRB"
constexpr uint32_t kVersion = 1;
constexpr size_t kSummedBytes = 48;
constexpr uint32_t kMostInlineHead = uint32_t{64} << 10;
// If the last bytes are at most this part of a piece, they stay with the manifest.
constexpr uint32_t kRestPart = 128;
// Publishing names all pieces in one command.
constexpr uint64_t kMostPieces = 4096;
constexpr uint32_t kMostPieceBytes = uint32_t{64} << 20;

bool Sound(const RedisManifest& manifest) {
  if (manifest.piece_bytes == 0) return manifest.blob_bytes == manifest.inline_bytes;
  return manifest.piece_bytes <= kMostPieceBytes && manifest.blob_bytes > manifest.inline_bytes &&
         manifest.blob_bytes <= kMostPieces * kMostPieceBytes && manifest.pieces() <= kMostPieces;
}

}  // namespace

uint64_t RedisManifest::PieceBytes(uint64_t piece) const {
  return std::min<uint64_t>(piece_bytes, blob_bytes - PieceOffset(piece));
}

uint64_t InlineBytesOf(uint64_t blob_bytes, uint64_t head_bytes, uint32_t piece_bytes) {
  const uint64_t head = head_bytes <= kMostInlineHead ? head_bytes : 0;
  const uint64_t most_rest = piece_bytes / kRestPart;
  if (blob_bytes <= head + piece_bytes + most_rest) return blob_bytes;
  const uint64_t rest = (blob_bytes - head) % piece_bytes;
  return head + (rest <= most_rest ? rest : 0);
}

Result<RedisManifest> PlanManifest(uint64_t blob_bytes, uint64_t head_bytes, uint32_t piece_bytes,
                                   Random* random) {
  RedisManifest manifest;
  manifest.blob_bytes = blob_bytes;
  random->Fill(manifest.write_id);
  manifest.inline_bytes = static_cast<uint32_t>(InlineBytesOf(blob_bytes, head_bytes, piece_bytes));
  if (manifest.inline_bytes == blob_bytes) return manifest;
  manifest.piece_bytes = piece_bytes;
  if (Sound(manifest)) return manifest;
  return Status(Code::kInvalid,
                fmt::format("{} bytes are too many for pieces of {}", blob_bytes, piece_bytes));
}

RedisManifest::Bytes EncodeManifest(const RedisManifest& manifest) {
  RedisManifest::Bytes bytes{};
  std::byte* at = bytes.data();
  at = PutU32(at, kMagic);
  at = PutU32(at, kVersion);
  at = PutBytes(at, manifest.write_id.data(), manifest.write_id.size());
  at = PutU64(at, manifest.blob_bytes);
  at = PutU32(at, manifest.inline_bytes);
  PutU32(at, manifest.piece_bytes);
  const Checksum sum = ChecksumOf(std::span(bytes).first(kSummedBytes));
  PutU64(PutU64(bytes.data() + kSummedBytes, sum.low), sum.high);
  return bytes;
}

Result<RedisManifest> DecodeManifest(std::span<const std::byte> bytes) {
  if (bytes.size() < RedisManifest::kBytes) return Status(Code::kCorrupt, "a manifest is cut off");
  const Checksum sum = ChecksumOf(bytes.first(kSummedBytes));
  const std::byte* at = bytes.data();
  if (GetU32(at) != kMagic || GetU64(at + kSummedBytes) != sum.low ||
      GetU64(at + kSummedBytes + 8) != sum.high) {
    return Status(Code::kCorrupt, "a value is not a manifest of ours");
  }
  if (GetU32(at + 4) != kVersion) {
    return Status(Code::kCorrupt, "a manifest is of a version that is not known here");
  }
  RedisManifest manifest;
  std::memcpy(manifest.write_id.data(), at + 8, manifest.write_id.size());
  manifest.blob_bytes = GetU64(at + 24);
  manifest.inline_bytes = GetU32(at + 32);
  manifest.piece_bytes = GetU32(at + 36);
  if (!Sound(manifest)) return Status(Code::kCorrupt, "a manifest contradicts itself");
  return manifest;
}

std::string_view IdentityOf(const RedisManifest::Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), RedisManifest::kIdentityBytes};
}

std::string ManifestKey(std::string_view prefix, std::string_view name) {
  return fmt::format("{}{{{}}}", prefix, name);
}

std::string PieceKey(std::string_view manifest_key, const RedisManifest& manifest, uint64_t piece) {
  std::string key(manifest_key);
  key.push_back(':');
  for (const std::byte byte : manifest.write_id) {
    fmt::format_to(std::back_inserter(key), "{:02x}", std::to_integer<unsigned>(byte));
  }
  fmt::format_to(std::back_inserter(key), ":{}", piece);
  return key;
}

std::vector<std::string> PieceKeys(std::string_view manifest_key, const RedisManifest& manifest) {
  std::vector<std::string> keys;
  keys.reserve(manifest.pieces());
  for (uint64_t piece = 0; piece < manifest.pieces(); ++piece) {
    keys.push_back(PieceKey(manifest_key, manifest, piece));
  }
  return keys;
}

std::string ManifestPattern(std::string_view prefix, std::string_view name_prefix) {
  std::string pattern;
  for (const char c : prefix) {
    if (std::string_view("*?[]\\^").find(c) != std::string_view::npos) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return fmt::format("{}{{{}*}}", pattern, name_prefix);
}

}  // namespace aquifer
