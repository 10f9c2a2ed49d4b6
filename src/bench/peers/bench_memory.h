// Shared by the rows: memory that is really there, bytes that nothing can compress, and time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "aquifer/status.h"

namespace aquifer {

// Page-aligned memory, every page faulted in, in huge pages where the kernel gives them.
class BenchMemory {
 public:
  // kNoSpace when there is not so much.
  static Result<BenchMemory> New(uint64_t bytes);

  BenchMemory() = default;
  BenchMemory(BenchMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  BenchMemory& operator=(BenchMemory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BenchMemory();

  std::byte* data() const { return bytes_.data(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit BenchMemory(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::span<std::byte> bytes_;
};

// Bytes that look random, the same for the same seed. About 10 GB/s. `bytes` is a multiple of 8
// long and so aligned.
void FillFromSeed(std::span<std::byte> bytes, uint64_t seed);

// How much memory a row moves in one round: well beyond any processor's cache, and a small part of
// what the host has. A multiple of 64 blocks.
uint64_t WorkingSetBytes(uint64_t block_bytes, uint64_t memory_available_bytes);

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline double GigabytesPerSecond(uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / 1e9 / seconds;
}

// Keeps the compiler from dropping what nothing else uses.
template <class T>
void KeepValue(const T& value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

}  // namespace aquifer
