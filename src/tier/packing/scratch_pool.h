// Page-aligned memory for blocks that do not go to a store as they lie in their slot: sealed, or
// made smaller. It is bounded, taken as it is first needed, and used again.
//
// Any thread. A buffer may outlive the pool that it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/mutex.h"

namespace aquifer {

class ScratchPool {
 public:
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer() { Release(); }

    std::span<std::byte> bytes() const { return bytes_; }  // Empty: there is none.
    void Release();

   private:
    friend class ScratchPool;
    struct State;
    std::shared_ptr<State> state_;  // Shared: whoever goes last frees the memory.
    std::span<std::byte> bytes_;
  };

  // `max_bytes` bounds what is out and what waits for use, together.
  explicit ScratchPool(uint64_t max_bytes);
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // At least so long; empty when there is no room now. What is longer than the whole pool is given
  // while nothing else is out, so that every block gets its turn.
  Buffer Take(size_t bytes);

  uint64_t used_bytes() const;  // Out at the moment.

 private:
  const std::shared_ptr<Buffer::State> state_;
};

}  // namespace aquifer
