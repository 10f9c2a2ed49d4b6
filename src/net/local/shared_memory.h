// Memory that two processes have mapped: a memfd that cannot change its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aquifer/status.h"
#include "base/descriptor.h"

namespace aquifer {

class SharedMemory {
 public:
  // Zeros. kUnavailable when the process has no descriptor or memory left.
  static Result<SharedMemory> New(uint64_t bytes);
  // What another process made. kInvalid unless it is exactly so long and sealed against shrinking:
  // touching it could otherwise end this process.
  static Result<SharedMemory> Map(Descriptor descriptor, uint64_t bytes);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  int descriptor() const { return descriptor_.get(); }
  void CloseDescriptor() { descriptor_ = Descriptor(); }  // The mapping stays.

 private:
  static Result<SharedMemory> MapOpen(Descriptor descriptor, uint64_t bytes);

  Descriptor descriptor_;
  std::span<std::byte> bytes_;
};

}  // namespace aquifer
