#include "aquifer/key.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/crypto/sha256.h"
#include "block/block_id.h"

namespace aquifer {
namespace {

constexpr size_t kMaxTenantBytes = 64;
constexpr size_t kMaxSaltBytes = 256;
constexpr size_t kMaxExtraBytes = 4096;

constexpr std::string_view kRootDomain = "aquifer.root.v1";
constexpr std::string_view kTenantDomain = "aquifer.tenant.v1";
constexpr std::string_view kNextDomain = "aq.key.1";
static_assert(kNextDomain.size() == 8);

// The fields of a root, in this order.
enum RootTag : uint32_t { kDomain = 1, kTenant = 2, kLayout = 3, kAdapter = 4, kSalt = 5 };

std::byte* PutField(std::byte* to, uint32_t tag, const void* value, size_t bytes) {
  to = PutU32(to, tag);
  to = PutU32(to, static_cast<uint32_t>(bytes));
  return PutBytes(to, value, bytes);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Status CheckChain(std::span<const uint32_t> tokens, uint32_t tokens_per_block,
                  std::span<const Extra> extras, std::span<const Key> keys) {
  if (tokens_per_block == 0) return Status(Code::kInvalid, "tokens_per_block is zero");
  const size_t blocks = tokens.size() / tokens_per_block;
  if (keys.size() < blocks) {
    return Status(Code::kInvalid,
                  fmt::format("keys has room for {} of {} blocks", keys.size(), blocks));
  }
  // A last partial block may have extras; it gets no key, so they are of no consequence.
  const size_t begun_blocks = blocks + (tokens.size() % tokens_per_block != 0 ? 1 : 0);
  size_t previous = 0;
  for (size_t i = 0; i < extras.size(); ++i) {
    const Extra& extra = extras[i];
    if (extra.block < previous) {
      return Status(Code::kInvalid, fmt::format("extra {} (block {}) comes after block {}", i,
                                                extra.block, previous));
    }
    if (extra.block >= begun_blocks) {
      return Status(Code::kInvalid, fmt::format("extra {} is for block {}, but there are {} blocks",
                                                i, extra.block, begun_blocks));
    }
    if (extra.tag == 0) return Status(Code::kInvalid, fmt::format("extra {} has tag 0", i));
    if (extra.value.size() > kMaxExtraBytes) {
      return Status(Code::kInvalid, fmt::format("extra {} has {} bytes; at most {} are allowed", i,
                                                extra.value.size(), kMaxExtraBytes));
    }
    previous = extra.block;
  }
  return Status();
}

// Hashes the messages of a chain, one after the other. Most have no extras and differ from the one
// before only in parent and tokens, so those are all that is written anew.
class KeyHasher {
 public:
  Key Next(const Key& parent, std::span<const uint32_t> tokens, std::span<const Extra> extras) {
    if (!extras.empty() || tokens.size() > kMaxPlainTokens) return General(parent, tokens, extras);
    if (tokens.size() != plain_tokens_) PreparePlain(tokens.size());
    PutBytes(plain_ + kParentAt, parent.bytes.data(), parent.bytes.size());
    PutBytes(plain_ + kTokensAt, tokens.data(), tokens.size_bytes());
    return Key{Sha256OfPadded(padded_)};
  }

 private:
  static constexpr size_t kParentAt = kNextDomain.size();
  static constexpr size_t kTokensAt = kParentAt + sizeof(Key::bytes) + sizeof(uint32_t);
  static constexpr size_t kMaxPlainTokens = 256;
  static constexpr size_t kMaxPlainBytes =
      kTokensAt + kMaxPlainTokens * sizeof(uint32_t) + sizeof(uint32_t);

  Key General(const Key& parent, std::span<const uint32_t> tokens, std::span<const Extra> extras) {
    hash_.Update(kNextDomain);
    hash_.Update(parent.bytes);
    UpdateU32(static_cast<uint32_t>(tokens.size()));
    hash_.Update(std::as_bytes(tokens));  // bytes.h: this machine is little-endian.
    UpdateU32(static_cast<uint32_t>(extras.size()));
    for (const Extra& extra : extras) {
      UpdateU32(extra.tag);
      UpdateU32(static_cast<uint32_t>(extra.value.size()));
      hash_.Update(extra.value);
    }
    return Key{hash_.Finish()};
  }

  void UpdateU32(uint32_t value) { hash_.Update(std::as_bytes(std::span(&value, 1))); }

  // The message of `tokens` tokens and no extras, but for parent and tokens.
  void PreparePlain(size_t tokens) {
    PutBytes(plain_, kNextDomain.data(), kNextDomain.size());
    PutU32(plain_ + kTokensAt - sizeof(uint32_t), static_cast<uint32_t>(tokens));
    std::byte* const end = PutU32(plain_ + kTokensAt + tokens * sizeof(uint32_t), 0);
    padded_ = PadForSha256(plain_, static_cast<size_t>(end - plain_));
    plain_tokens_ = tokens;
  }

  Sha256 hash_;
  std::byte plain_[kMaxPlainBytes + kSha256PaddingBytes];
  std::span<const std::byte> padded_;
  size_t plain_tokens_ = 0;
};

}  // namespace

std::string Key::ToHex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) {
    hex.push_back(kDigits[std::to_integer<unsigned>(byte) >> 4]);
    hex.push_back(kDigits[std::to_integer<unsigned>(byte) & 15]);
  }
  return hex;
}

Result<Key> KeyFromHex(std::string_view hex) {
  Key key;
  if (hex.size() != key.bytes.size() * 2) {
    return Status(
        Code::kInvalid,
        fmt::format("a key has 64 hexadecimal digits; here are {} characters", hex.size()));
  }
  for (size_t i = 0; i < hex.size(); ++i) {
    const int digit = HexDigit(hex[i]);
    if (digit < 0) {
      return Status(Code::kInvalid,
                    fmt::format("character {} of the key is no hexadecimal digit", i));
    }
    key.bytes[i / 2] = key.bytes[i / 2] << 4 | static_cast<std::byte>(digit);
  }
  return key;
}

Result<Key> DeriveRoot(const ChainRoot& root) {
  if (root.tenant.empty() || root.tenant.size() > kMaxTenantBytes) {
    return Status(Code::kInvalid, fmt::format("tenant has {} bytes; 1 to {} are allowed",
                                              root.tenant.size(), kMaxTenantBytes));
  }
  if (root.cache_salt.size() > kMaxSaltBytes) {
    return Status(Code::kInvalid, fmt::format("cache_salt has {} bytes; at most {} are allowed",
                                              root.cache_salt.size(), kMaxSaltBytes));
  }
  std::byte message[5 * 8 + kRootDomain.size() + kMaxTenantBytes + 32 + 32 + kMaxSaltBytes];
  std::byte* end = message;
  end = PutField(end, kDomain, kRootDomain.data(), kRootDomain.size());
  end = PutField(end, kTenant, root.tenant.data(), root.tenant.size());
  end = PutField(end, kLayout, root.layout_fingerprint.data(), root.layout_fingerprint.size());
  end = PutField(end, kAdapter, root.adapter_digest.data(), root.adapter_digest.size());
  end = PutField(end, kSalt, root.cache_salt.data(), root.cache_salt.size());
  return Key{Sha256Of(std::span<const std::byte>(message, end))};
}

Result<size_t> DeriveChain(const Key& parent, std::span<const uint32_t> tokens,
                           uint32_t tokens_per_block, std::span<const Extra> extras,
                           std::span<Key> keys) {
  AQ_RETURN_IF_ERROR(CheckChain(tokens, tokens_per_block, extras, keys));
  KeyHasher hasher;
  const size_t blocks = tokens.size() / tokens_per_block;
  const Key* previous = &parent;
  for (size_t block = 0; block < blocks; ++block) {
    size_t own_extras = 0;
    while (own_extras < extras.size() && extras[own_extras].block == block) ++own_extras;
    keys[block] = hasher.Next(*previous, tokens.first(tokens_per_block), extras.first(own_extras));
    previous = &keys[block];
    tokens = tokens.subspan(tokens_per_block);
    extras = extras.subspan(own_extras);
  }
  return blocks;
}

TenantId TenantIdOf(std::string_view name) {
  thread_local Sha256 hash;
  hash.Update(kTenantDomain);
  hash.Update(name);
  const Sha256Digest digest = hash.Finish();
  TenantId id;
  std::memcpy(id.bytes.data(), digest.data(), id.bytes.size());
  return id;
}

}  // namespace aquifer
