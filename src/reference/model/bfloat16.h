// bfloat16 is the upper half of a float. Rounded to the nearest, ties to even; numbers only.
#pragma once

#include <bit>
#include <cstdint>

namespace aquifer::reference {

inline uint16_t ToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float FromBFloat16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

}  // namespace aquifer::reference
