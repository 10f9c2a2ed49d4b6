#include "base/crypto/hmac_sha256.h"

#include <algorithm>
#include <array>

#include "base/crypto/secret_key.h"

namespace aquifer {

Sha256Digest HmacSha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  std::array<std::byte, 64> block{};  // SHA-256 takes 64 bytes at a time.
  if (key.size() > block.size()) {
    const Sha256Digest digest = Sha256Of(key);
    std::copy(digest.begin(), digest.end(), block.begin());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  Sha256 hash;
  for (std::byte& byte : block) byte ^= std::byte{0x36};
  hash.Update(block);
  hash.Update(message);
  const Sha256Digest inner = hash.Finish();
  for (std::byte& byte : block) byte ^= std::byte{0x36} ^ std::byte{0x5c};
  hash.Update(block);
  hash.Update(inner);
  WipeSecret(block);
  return hash.Finish();
}

}  // namespace aquifer
