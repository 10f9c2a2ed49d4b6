#include "testing/memory_extents.h"

#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "io/disk/disk.h"

namespace aquifer {

struct MemoryExtents::State {
  std::mutex mutex;
  uint64_t available_bytes = 0;
  uint64_t outstanding_bytes = 0;
  uint64_t outstanding = 0;
  uint64_t fail_next = 0;
  Code fail_code = Code::kNoSpace;
};

namespace {

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, FreeDeleter>;

class MemoryExtent final : public Extent {
 public:
  MemoryExtent(Memory memory, std::span<std::byte> bytes, std::function<void(uint64_t)> on_gone)
      : memory_(std::move(memory)), bytes_(bytes), on_gone_(std::move(on_gone)) {}
  ~MemoryExtent() override { on_gone_(bytes_.size()); }

  std::span<std::byte> bytes() override { return bytes_; }
  void KeepContents() override {}
  int descriptor() const override { return -1; }
  bool huge_pages() const override { return false; }

 private:
  const Memory memory_;
  const std::span<std::byte> bytes_;  // The aligned part of it.
  const std::function<void(uint64_t)> on_gone_;
};

}  // namespace

MemoryExtents::MemoryExtents(uint64_t available_bytes) : state_(std::make_shared<State>()) {
  state_->available_bytes = available_bytes;
}

MemoryExtents::~MemoryExtents() = default;

Result<std::unique_ptr<Extent>> MemoryExtents::New(uint64_t bytes) {
  if (bytes == 0 || bytes % kPageBytes != 0) {
    return Status(Code::kInvalid, fmt::format("an extent of {} bytes", bytes));
  }
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->fail_next > 0) {
      --state_->fail_next;
      return Status(state_->fail_code, "injected");
    }
    if (bytes > state_->available_bytes) {
      return Status(Code::kNoSpace,
                    fmt::format("{} bytes wanted, {} left", bytes, state_->available_bytes));
    }
    state_->available_bytes -= bytes;
    state_->outstanding_bytes += bytes;
    ++state_->outstanding;
  }
  const auto give_back = [state = state_](uint64_t returned) {
    const std::lock_guard lock(state->mutex);
    state->available_bytes += returned;
    state->outstanding_bytes -= returned;
    --state->outstanding;
  };
  Memory memory(std::calloc(bytes + kPageBytes, 1));  // Large ones are mapped, hence zero and lazy.
  if (memory == nullptr) {
    give_back(bytes);
    return Status(Code::kNoSpace, "the test's process is out of memory");
  }
  void* begin = memory.get();
  size_t space = bytes + kPageBytes;
  std::align(kPageBytes, bytes, begin, space);
  const std::span<std::byte> aligned(static_cast<std::byte*>(begin), bytes);
  return std::unique_ptr<Extent>(
      std::make_unique<MemoryExtent>(std::move(memory), aligned, give_back));
}

uint64_t MemoryExtents::AvailableBytes() {
  const std::lock_guard lock(state_->mutex);
  return state_->available_bytes;
}

void MemoryExtents::SetAvailableBytes(uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->available_bytes = bytes;
}

void MemoryExtents::FailNext(uint64_t count, Code code) {
  const std::lock_guard lock(state_->mutex);
  state_->fail_next = count;
  state_->fail_code = code;
}

uint64_t MemoryExtents::outstanding_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->outstanding_bytes;
}

uint64_t MemoryExtents::outstanding() const {
  const std::lock_guard lock(state_->mutex);
  return state_->outstanding;
}

}  // namespace aquifer
