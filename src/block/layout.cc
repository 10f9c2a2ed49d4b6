#include "aquifer/layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crypto/sha256.h"

namespace aquifer {
namespace {

constexpr size_t kMaxGroups = 16;
constexpr size_t kMaxFormatBytes = 128;
constexpr uint64_t kPreferredBlockBytes = uint64_t{8} << 20;
constexpr uint32_t kMinTokensPerBlock = 16;
constexpr uint32_t kMaxPreferredTokensPerBlock = 256;
constexpr std::string_view kLayoutDomain = "aquifer.layout.v1";

// Saturates, so that a layout of absurd size is seen as too large and not as a small remainder.
uint64_t Multiply(uint64_t x, uint64_t y) {
  uint64_t product = 0;
  return __builtin_mul_overflow(x, y, &product) ? UINT64_MAX : product;
}

// The bytes that the fields describe; zero when one of the fields is.
uint64_t BytesPerToken(const KvGroup& group) {
  const uint64_t elements =
      Multiply(Multiply(group.layers, group.kv_heads), uint64_t{group.key_dim} + group.value_dim);
  return Multiply(elements, DTypeBytes(group.dtype));
}

Status Bad(size_t group, std::string_view what) {
  return Status(Code::kInvalid, fmt::format("groups[{}].{}", group, what));
}

Status ValidateShape(const KvGroup& group, size_t index) {
  if (group.layers == 0) return Bad(index, "layers is zero");
  if (group.kv_heads == 0) return Bad(index, "kv_heads is zero");
  if (group.key_dim == 0) return Bad(index, "key_dim is zero");
  if (group.kind == KvKind::kLatent) {
    if (group.kv_heads != 1) return Bad(index, "kv_heads is not 1, as a latent group needs");
    if (group.value_dim != 0) return Bad(index, "value_dim is not 0, as a latent group needs");
  } else if (group.value_dim == 0) {
    return Bad(index, "value_dim is zero");
  }
  return Status();
}

Status ValidateGroup(const Layout& layout, size_t index) {
  const KvGroup& group = layout.groups[index];
  if (group.kind < KvKind::kFull || group.kind > KvKind::kState) {
    return Bad(index, fmt::format("kind is unknown: {}", static_cast<int>(group.kind)));
  }
  if (DTypeBytes(group.dtype) == 0) {
    return Bad(index, fmt::format("dtype is unknown: {}", static_cast<int>(group.dtype)));
  }
  if (group.kind == KvKind::kWindow && group.window_tokens == 0) {
    return Bad(index, "window_tokens is zero");
  }
  if (group.kind != KvKind::kWindow && group.window_tokens != 0) {
    return Bad(index, "window_tokens is set, but only a window group has one");
  }
  if (group.kind == KvKind::kState && group.opaque_bytes == 0) {
    return Bad(index, "opaque_bytes is zero, but a state group needs it");
  }
  if (group.opaque_bytes == 0) AQ_RETURN_IF_ERROR(ValidateShape(group, index));

  const uint64_t bytes = BlockBytes(layout, index);
  const std::string_view cause = group.opaque_bytes != 0 ? "opaque_bytes" : "block";
  if (bytes < kMinBlockBytes) {
    return Bad(index, fmt::format("{}: a block has {} bytes; at least {} are needed", cause, bytes,
                                  kMinBlockBytes));
  }
  if (bytes > kMaxBlockBytes) {
    return Bad(index, fmt::format("{}: a block has {} bytes; at most {} are allowed", cause, bytes,
                                  kMaxBlockBytes));
  }
  return Status();
}

}  // namespace

size_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2:
    case DType::kInt8:
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

uint64_t BlockBytes(const Layout& layout, size_t group) {
  AQ_CHECK(group < layout.groups.size());
  const KvGroup& shape = layout.groups[group];
  if (shape.opaque_bytes != 0) return shape.opaque_bytes;
  return Multiply(BytesPerToken(shape), layout.tokens_per_block);
}

Status ValidateLayout(const Layout& layout) {
  if (layout.tokens_per_block == 0) return Status(Code::kInvalid, "tokens_per_block is zero");
  if (layout.kv_format.empty() || layout.kv_format.size() > kMaxFormatBytes) {
    return Status(Code::kInvalid, fmt::format("kv_format has {} bytes; 1 to {} are allowed",
                                              layout.kv_format.size(), kMaxFormatBytes));
  }
  if (layout.groups.empty() || layout.groups.size() > kMaxGroups) {
    return Status(Code::kInvalid, fmt::format("groups has {} entries; 1 to {} are allowed",
                                              layout.groups.size(), kMaxGroups));
  }
  for (size_t i = 0; i < layout.groups.size(); ++i) AQ_RETURN_IF_ERROR(ValidateGroup(layout, i));
  return Status();
}

Digest LayoutFingerprint(const Layout& layout) {
  std::byte buffer[64];
  Sha256 hash;
  const auto add = [&](std::byte* end) { hash.Update(std::span<const std::byte>(buffer, end)); };
  add(PutU32(buffer, static_cast<uint32_t>(kLayoutDomain.size())));
  hash.Update(kLayoutDomain);
  hash.Update(layout.model);
  add(PutU32(buffer, layout.tokens_per_block));
  add(PutU32(buffer, static_cast<uint32_t>(layout.kv_format.size())));
  hash.Update(std::string_view(layout.kv_format));
  add(PutU32(buffer, static_cast<uint32_t>(layout.groups.size())));
  for (const KvGroup& group : layout.groups) {
    std::byte* end = PutLe(buffer, static_cast<uint8_t>(group.kind));
    end = PutLe(end, static_cast<uint8_t>(group.dtype));
    end = PutU16(end, 0);
    end = PutU32(end, group.layers);
    end = PutU32(end, group.kv_heads);
    end = PutU32(end, group.key_dim);
    end = PutU32(end, group.value_dim);
    end = PutU32(end, group.window_tokens);
    end = PutU64(end, group.opaque_bytes);
    add(end);
  }
  return hash.Finish();
}

uint32_t TokensPerBlock(const Layout& layout) {
  // State groups are snapshots: their size does not grow with the tokens. Opaque bytes depend on
  // the engine, so only what the fields describe counts.
  uint64_t largest = 0;
  for (const KvGroup& group : layout.groups) {
    if (group.kind != KvKind::kState) largest = std::max(largest, BytesPerToken(group));
  }
  uint32_t tokens = kMaxPreferredTokensPerBlock;
  while (tokens > kMinTokensPerBlock && Multiply(largest, tokens) > kPreferredBlockBytes) {
    tokens /= 2;
  }
  return tokens;
}

Result<uint32_t> FitPages(uint32_t tokens_per_block, uint32_t page_tokens, bool can_cut) {
  if (tokens_per_block == 0) return Status(Code::kInvalid, "tokens_per_block is zero");
  if (page_tokens == 0) return Status(Code::kInvalid, "page_tokens is zero");
  if (tokens_per_block % page_tokens == 0) return tokens_per_block;
  if (page_tokens % tokens_per_block == 0) return can_cut ? tokens_per_block : page_tokens;
  return Status(
      Code::kInvalid,
      fmt::format("a page of {} tokens neither divides nor is a multiple of a block of {} "
                  "tokens; set the engine's page size to {}",
                  page_tokens, tokens_per_block, tokens_per_block));
}

}  // namespace aquifer
