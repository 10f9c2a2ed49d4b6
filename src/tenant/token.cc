#include "tenant/token.h"

#include <openssl/crypto.h>

#include <span>

namespace aquifer {

Sha256Digest DigestOfToken(std::string_view token) {
  return Sha256Of(std::as_bytes(std::span(token)));
}

bool SameDigest(const Sha256Digest& a, const Sha256Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace aquifer
