#include "tier/packing/scratch_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

// Sizes in steps of an eighth of a power of two, so that blocks of about one size share buffers.
size_t SizeFor(size_t bytes) {
  const size_t step = std::max(std::bit_floor(bytes) / 8, kPageBytes);
  return (bytes + step - 1) / step * step;
}

std::byte* Allocate(size_t bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes));
  AQ_CHECK(memory != nullptr);
  return memory;
}

}  // namespace

struct ScratchPool::Buffer::State {
  explicit State(uint64_t most) : max_bytes(most) {}
  ~State() { FreeIdle(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void FreeIdle() AQ_EXCLUDES(mutex) {
    const MutexLock lock(&mutex);
    while (FreeOne()) {
    }
  }

  // The largest that waits for use; false when none does.
  bool FreeOne() AQ_REQUIRES(mutex) {
    const auto largest = std::find_if(idle.rbegin(), idle.rend(),
                                      [](const auto& one) { return !one.second.empty(); });
    if (largest == idle.rend()) return false;
    std::free(largest->second.back());
    largest->second.pop_back();
    idle_bytes -= largest->first;
    return true;
  }

  // One of exactly this size that waits for use, or null.
  std::byte* TakeIdle(size_t size) AQ_REQUIRES(mutex) {
    const auto found = idle.find(size);
    if (found == idle.end() || found->second.empty()) return nullptr;
    std::byte* const memory = found->second.back();
    found->second.pop_back();
    idle_bytes -= size;
    return memory;
  }

  std::byte* Take(size_t size) AQ_EXCLUDES(mutex) {
    const MutexLock lock(&mutex);
    if (used_bytes > 0 && used_bytes + size > max_bytes) return nullptr;
    std::byte* memory = TakeIdle(size);
    if (memory == nullptr) {
      while (used_bytes + idle_bytes + size > max_bytes && FreeOne()) {
      }
      memory = Allocate(size);
    }
    used_bytes += size;
    return memory;
  }

  void GiveBack(std::byte* memory, size_t size) AQ_EXCLUDES(mutex) {
    const MutexLock lock(&mutex);
    used_bytes -= size;
    if (used_bytes + idle_bytes + size > max_bytes) return std::free(memory);
    idle[size].push_back(memory);
    idle_bytes += size;
  }

  uint64_t used() AQ_EXCLUDES(mutex) {
    const MutexLock lock(&mutex);
    return used_bytes;
  }

  const uint64_t max_bytes;
  Mutex mutex;
  uint64_t used_bytes AQ_GUARDED_BY(mutex) = 0;
  uint64_t idle_bytes AQ_GUARDED_BY(mutex) = 0;
  std::map<size_t, std::vector<std::byte*>> idle AQ_GUARDED_BY(mutex);  // By size; never erased.
};

ScratchPool::Buffer::Buffer(Buffer&& other) noexcept
    : state_(std::move(other.state_)), bytes_(std::exchange(other.bytes_, {})) {}

ScratchPool::Buffer& ScratchPool::Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Release();
  state_ = std::move(other.state_);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

void ScratchPool::Buffer::Release() {
  if (state_ != nullptr) state_->GiveBack(bytes_.data(), bytes_.size());
  state_.reset();
  bytes_ = {};
}

ScratchPool::ScratchPool(uint64_t max_bytes) : state_(std::make_shared<Buffer::State>(max_bytes)) {}

ScratchPool::~ScratchPool() { state_->FreeIdle(); }

ScratchPool::Buffer ScratchPool::Take(size_t bytes) {
  const size_t size = SizeFor(std::max<size_t>(bytes, 1));
  Buffer buffer;
  std::byte* const memory = state_->Take(size);
  if (memory == nullptr) return buffer;
  buffer.state_ = state_;
  buffer.bytes_ = {memory, size};
  return buffer;
}

uint64_t ScratchPool::used_bytes() const { return state_->used(); }

}  // namespace aquifer
