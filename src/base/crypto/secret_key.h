// 32 secret bytes, wiped when they go. Nothing here prints them and nothing should.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace aquifer {

class SecretKey {
 public:
  static constexpr size_t kBytes = 32;

  SecretKey() = default;  // Zeros.
  explicit SecretKey(std::span<const std::byte, kBytes> bytes);
  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  ~SecretKey();

  std::span<const std::byte, kBytes> bytes() const { return bytes_; }
  std::span<std::byte, kBytes> writable() { return bytes_; }

  // In a time that does not depend on the bytes.
  friend bool operator==(const SecretKey& a, const SecretKey& b);

 private:
  std::array<std::byte, kBytes> bytes_{};
};

// For secrets that lie elsewhere; compilers do not leave it out.
void WipeSecret(std::span<std::byte> bytes);

}  // namespace aquifer
