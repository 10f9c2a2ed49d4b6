// SHA-256 by OpenSSL, for many short digests. It calls the function of that name, not the EVP
// interface: that takes and frees a state for each digest and costs a key of 16 tokens as much
// again as its two rounds of hashing. One thread at a time; copies nothing, allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace aquifer {

using Sha256Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256() { Begin(); }  // Ready for Update().

  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text) { Update(std::as_bytes(std::span(text))); }

  // The digest of all bytes since the last Finish(). Ready for Update() again.
  Sha256Digest Finish();

 private:
  void Begin();

  alignas(8) std::array<std::byte, 112> state_;  // OpenSSL's SHA256_CTX.
};

// One digest of bytes that lie together.
Sha256Digest Sha256Of(std::span<const std::byte> bytes);

// The same in two steps, for short messages that are alike and are hashed where they lie. The first
// pads the first `bytes` of a buffer that has room for kSha256PaddingBytes more, and returns the
// padded message; the padding stays good while only the message changes.
inline constexpr size_t kSha256PaddingBytes = 72;
std::span<std::byte> PadForSha256(std::span<std::byte> buffer, size_t bytes);
Sha256Digest Sha256OfPadded(std::span<const std::byte> padded);

}  // namespace aquifer
