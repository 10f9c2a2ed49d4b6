#include "tenant/token.h"

#include <openssl/crypto.h>

#include <span>

#include "base/text/hex_text.h"

namespace aquifer {

Sha256Digest DigestOfToken(std::string_view token) {
  return Sha256Of(std::as_bytes(std::span(token)));
}

Result<Sha256Digest> ParseTokenDigest(std::string_view text) {
  AQ_ASSIGN_OR_RETURN(const Sha256Digest digest, ParseSha256(text));
  if (!SameDigest(digest, DigestOfToken(""))) return digest;
  return Status(Code::kInvalid, "this is the digest of an empty token; was the variable empty?");
}

bool SameDigest(const Sha256Digest& a, const Sha256Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace aquifer
