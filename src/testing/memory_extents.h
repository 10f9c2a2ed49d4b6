// Extents of plain memory, whose shortage and failures are at a test's command. They cannot be
// shared with another process.
#pragma once

#include <cstdint>
#include <memory>

#include "io/memory/extent.h"

namespace aquifer {

// Any thread may call. Extents may outlive the source. Their memory starts as zeros and is 4 KiB
// aligned; what is not touched costs nothing.
class MemoryExtents final : public ExtentSource {
 public:
  explicit MemoryExtents(uint64_t available_bytes = uint64_t{1} << 40);
  ~MemoryExtents() override;

  Result<std::unique_ptr<Extent>> New(uint64_t bytes) override;
  uint64_t AvailableBytes() override;

  // As if the rest of the host took or gave back memory: what is free now. New() takes from it and
  // is kNoSpace beyond it; an extent that goes away gives back.
  void SetAvailableBytes(uint64_t bytes);

  // The next `count` calls of New() fail with `code`.
  void FailNext(uint64_t count, Code code);

  uint64_t outstanding_bytes() const;  // In extents that are alive.
  uint64_t outstanding() const;        // How many.

 private:
  struct State;
  const std::shared_ptr<State> state_;  // Shared with the extents, which may outlive this.
};

}  // namespace aquifer
