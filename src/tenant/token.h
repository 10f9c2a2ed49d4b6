// Tokens, which clients show to be let in. A token is never stored, only its SHA-256, and is
// compared in constant time. Any thread may call.
#pragma once

#include <string_view>

#include "aquifer/status.h"
#include "base/crypto/sha256.h"

namespace aquifer {

Sha256Digest DigestOfToken(std::string_view token);

// Parses 64 hexadecimal digits. The digest of an empty token is kInvalid: it would let everybody
// in.
Result<Sha256Digest> ParseTokenDigest(std::string_view text);

// Returns true if the digests are equal. Takes equally long wherever they differ.
bool SameDigest(const Sha256Digest& a, const Sha256Digest& b);

inline bool TokenFits(std::string_view token, const Sha256Digest& digest) {
  return SameDigest(DigestOfToken(token), digest);
}

}  // namespace aquifer
