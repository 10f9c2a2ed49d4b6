#include "sim/world/payload.h"

#include <algorithm>
#include <cstring>

namespace aquifer {
namespace {

uint64_t FirstWord(const Payload& payload) {
  return uint64_t{payload.version} << 32 | payload.block;
}

// A weak generator is enough: no two payloads, and no two places of one, have the same words.
uint64_t Next(uint64_t word) {
  word = word * 0x5851F42D4C957F2Du + 0x14057B7EF767814Fu;
  return word ^ word >> 29;
}

}  // namespace

void WritePayload(const Payload& payload, std::span<std::byte> bytes) {
  uint64_t word = FirstWord(payload);
  for (size_t at = 0; at < bytes.size(); at += sizeof(word)) {
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
    word = Next(word);
  }
}

Payload ClaimedPayload(std::span<const std::byte> bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data(), std::min(sizeof(word), bytes.size()));
  return {.block = static_cast<BlockNumber>(word), .version = static_cast<uint32_t>(word >> 32)};
}

bool HoldsPayload(const Payload& payload, std::span<const std::byte> bytes) {
  uint64_t word = FirstWord(payload);
  for (size_t at = 0; at < bytes.size(); at += sizeof(word)) {
    if (std::memcmp(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at)) != 0) {
      return false;
    }
    word = Next(word);
  }
  return true;
}

}  // namespace aquifer
