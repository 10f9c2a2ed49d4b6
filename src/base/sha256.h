// SHA-256 by OpenSSL, for many short digests: the algorithm is looked up once and an object keeps
// its context. (OpenSSL 3.0 takes and frees its 112-byte state for each digest; the 127 ns that a
// key costs include it.) One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace aquifer {

using Sha256Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256();  // Ready for Update().

  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text) { Update(std::as_bytes(std::span(text))); }

  // The digest of all bytes since the last Finish(). Ready for Update() again.
  Sha256Digest Finish();

 private:
  void Begin();

  struct ContextDeleter {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, ContextDeleter> context_;
};

// One digest of bytes that lie together, with the calling thread's own context.
Sha256Digest Sha256Of(std::span<const std::byte> bytes);

}  // namespace aquifer
