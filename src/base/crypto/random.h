// The only source of randomness, injected like the clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace aquifer {

class Random {
 public:
  virtual ~Random() = default;

  virtual void Fill(std::span<std::byte> bytes) = 0;

  uint64_t Next64();
};

// The kernel's generator. Lives for ever; any thread may call it.
Random* SystemRandom();

}  // namespace aquifer
