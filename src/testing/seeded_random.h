// Random numbers that are the same on every run, machine and compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/crypto/random.h"

namespace aquifer {

class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}

  void Fill(std::span<std::byte> bytes) override {
    uint64_t word = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (i % 8 == 0) word = Next();
      bytes[i] = static_cast<std::byte>(word >> (i % 8 * 8));
    }
  }

  // splitmix64.
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // 0 <= value < bound.
  uint64_t Below(uint64_t bound) { return Next() % bound; }

 private:
  uint64_t state_;
};

}  // namespace aquifer
