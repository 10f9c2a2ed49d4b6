// The steps of hashing for tables whose keys a client may choose: with seeds that it does not know,
// it cannot make them fall together.
#pragma once

#include <cstdint>

namespace aquifer {

// Where both sides hold a seed, neither can be made zero on purpose.
inline uint64_t Mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// One seed after the other from a single one.
inline uint64_t SplitMix(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace aquifer
