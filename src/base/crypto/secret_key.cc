#include "base/crypto/secret_key.h"

#include <openssl/crypto.h>

#include <algorithm>

namespace aquifer {

SecretKey::SecretKey(std::span<const std::byte, kBytes> bytes) {
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

SecretKey::~SecretKey() { WipeSecret(bytes_); }

bool operator==(const SecretKey& a, const SecretKey& b) {
  return CRYPTO_memcmp(a.bytes_.data(), b.bytes_.data(), SecretKey::kBytes) == 0;
}

void WipeSecret(std::span<std::byte> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

}  // namespace aquifer
