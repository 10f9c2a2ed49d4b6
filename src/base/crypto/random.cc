#include "base/crypto/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/check.h"

namespace aquifer {
namespace {

class KernelRandom final : public Random {
 public:
  void Fill(std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t filled = getrandom(bytes.data(), bytes.size(), 0);
      if (filled < 0) {
        // Blocking and without flags, nothing but a signal can stop it. Going on with predictable
        // bytes would be worse than ending.
        AQ_CHECK(errno == EINTR);
        continue;
      }
      bytes = bytes.subspan(static_cast<size_t>(filled));
    }
  }
};

}  // namespace

uint64_t Random::Next64() {
  uint64_t value = 0;
  Fill(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

Random* SystemRandom() {
  static KernelRandom random;
  return &random;
}

}  // namespace aquifer
