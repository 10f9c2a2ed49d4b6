// SharedMemory is memory that two processes have mapped: a memfd that cannot change its size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aquifer/status.h"
#include "base/descriptor.h"

namespace aquifer {

class SharedMemory {
 public:
  // Makes new memory, all zeros. Returns kUnavailable if the process has no descriptor or memory
  // left.
  static Result<SharedMemory> New(uint64_t bytes);
  // Maps the memory of another process. Returns kInvalid unless it has exactly this size and is
  // sealed against shrinking. Otherwise touching it could end this process.
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
