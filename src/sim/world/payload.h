// What simulated engines write: bytes that follow from which block it is and which storing of it.
// So whoever reads them can tell both, and whether every byte is right, and nobody keeps them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace aquifer {

// The simulator's own number for a block: one for each tenant, key, group and part.
using BlockNumber = uint32_t;

struct Payload {
  BlockNumber block = 0;
  uint32_t version = 0;  // Counts the storings of the block, from 1.

  friend bool operator==(const Payload&, const Payload&) = default;
};

void WritePayload(const Payload& payload, std::span<std::byte> bytes);
// What the bytes claim to be.
Payload ClaimedPayload(std::span<const std::byte> bytes);
// Every byte is what it should be.
bool HoldsPayload(const Payload& payload, std::span<const std::byte> bytes);

}  // namespace aquifer
