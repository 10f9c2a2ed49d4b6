#include "base/crypto/sha256.h"

// OpenSSL calls these functions deprecated in favour of EVP; see the header for why they are used.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <cstdint>
#include <cstring>
#include <iterator>

#include "base/check.h"

namespace aquifer {
namespace {

SHA256_CTX* Context(std::byte* state) { return reinterpret_cast<SHA256_CTX*>(state); }

}  // namespace

void Sha256::Begin() {
  static_assert(sizeof(state_) == sizeof(SHA256_CTX) && alignof(SHA256_CTX) <= 8);
  AQ_CHECK(SHA256_Init(Context(state_.data())) == 1);
}

void Sha256::Update(std::span<const std::byte> bytes) {
  AQ_CHECK(SHA256_Update(Context(state_.data()), bytes.data(), bytes.size()) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  AQ_CHECK(SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), Context(state_.data())) ==
           1);
  Begin();
  return digest;
}

Sha256Digest Sha256Of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

// The padding of FIPS 180-4: a one bit, zeros up to a whole block, the length in bits.
std::span<std::byte> PadForSha256(std::span<std::byte> buffer, size_t bytes) {
  const size_t padded = (bytes + 8) / SHA256_CBLOCK * SHA256_CBLOCK + SHA256_CBLOCK;
  AQ_CHECK(padded <= buffer.size());
  std::byte* const end = buffer.data() + bytes;
  std::memset(end, 0, padded - bytes);
  *end = std::byte{0x80};
  const uint64_t bits = __builtin_bswap64(uint64_t{bytes} * 8);
  std::memcpy(buffer.data() + padded - sizeof(bits), &bits, sizeof(bits));
  return buffer.first(padded);
}

// OpenSSL hashes whole blocks without copying them, and its state is then the digest.
Sha256Digest Sha256OfPadded(std::span<const std::byte> padded) {
  SHA256_CTX context;
  AQ_CHECK(SHA256_Init(&context) == 1);
  AQ_CHECK(SHA256_Update(&context, padded.data(), padded.size()) == 1 && context.num == 0);
  Sha256Digest digest;
  for (size_t i = 0; i < std::size(context.h); ++i) {
    const uint32_t word = __builtin_bswap32(context.h[i]);
    std::memcpy(digest.data() + i * sizeof(word), &word, sizeof(word));
  }
  return digest;
}

}  // namespace aquifer
