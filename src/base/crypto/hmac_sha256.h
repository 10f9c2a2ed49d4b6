// HMAC with SHA-256 (RFC 2104), over our own SHA-256 and therefore without a heap.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/crypto/sha256.h"

namespace aquifer {

Sha256Digest HmacSha256(std::span<const std::byte> key, std::span<const std::byte> message);

inline Sha256Digest HmacSha256(std::span<const std::byte> key, std::string_view message) {
  return HmacSha256(key, std::as_bytes(std::span(message)));
}

}  // namespace aquifer
