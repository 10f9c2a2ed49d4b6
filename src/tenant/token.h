// Tokens: what somebody shows to be let in. A token is never kept, only its SHA-256, and is
// compared in constant time. Any thread.
#pragma once

#include <string_view>

#include "aquifer/status.h"
#include "base/crypto/sha256.h"

namespace aquifer {

Sha256Digest DigestOfToken(std::string_view token);

// From 64 hexadecimal digits. kInvalid, too, for the digest of no token at all: it lets everybody
// in.
Result<Sha256Digest> ParseTokenDigest(std::string_view text);

// Takes as long for the first byte that differs as for the last.
bool SameDigest(const Sha256Digest& a, const Sha256Digest& b);

inline bool TokenFits(std::string_view token, const Sha256Digest& digest) {
  return SameDigest(DigestOfToken(token), digest);
}

}  // namespace aquifer
