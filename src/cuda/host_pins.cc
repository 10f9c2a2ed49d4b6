#include "cuda/host_pins.h"

#include <algorithm>
#include <utility>

#include "base/thread_name.h"

namespace aquifer {

HostPins* HostPins::OfProcess() {
  static auto* const pins = new HostPins;
  return pins;
}

HostPins::~HostPins() {
  {
    const MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  const MutexLock lock(&mutex_);
  for (const auto& [begin, extent] : extents_) {
    if (extent.state == State::kPinned) device_->Unpin({begin, extent.bytes});
  }
}

void HostPins::Use(std::unique_ptr<GpuDevice> device,
                   std::function<void(const Status&)> on_failure) {
  const MutexLock lock(&mutex_);
  if (device_ != nullptr) return;
  device_ = std::move(device);
  on_failure_ = std::move(on_failure);
  thread_ = std::thread([this] { Run(); });
}

bool HostPins::in_use() const {
  const MutexLock lock(&mutex_);
  return device_ != nullptr;
}

void HostPins::Add(std::span<std::byte> memory) {
  const MutexLock lock(&mutex_);
  extents_[memory.data()] = {.bytes = memory.size(), .state = State::kWaiting};
  changed_.NotifyAll();
}

void HostPins::Remove(std::span<std::byte> memory) {
  GpuDevice* device = nullptr;
  {
    const MutexLock lock(&mutex_);
    auto found = extents_.find(memory.data());
    while (found != extents_.end() && found->second.state == State::kPinning) {
      changed_.Wait(&mutex_);
      found = extents_.find(memory.data());
    }
    if (found == extents_.end()) return;
    if (found->second.state != State::kPinned) {
      extents_.erase(found);
      return;
    }
    found->second.state = State::kUnpinning;
    device = device_.get();
  }
  device->Unpin(memory);
  const MutexLock lock(&mutex_);
  extents_.erase(memory.data());
}

std::span<std::byte> HostPins::Around(std::span<const std::byte> bytes) const {
  const MutexLock lock(&mutex_);
  auto found = extents_.upper_bound(const_cast<std::byte*>(bytes.data()));
  if (found == extents_.begin()) return {};
  --found;
  const auto& [begin, extent] = *found;
  const bool inside = bytes.data() + bytes.size() <= begin + extent.bytes;
  if (extent.state != State::kPinned || !inside) return {};
  return {begin, extent.bytes};
}

HostPins::Counts HostPins::counts() const {
  const MutexLock lock(&mutex_);
  Counts counts;
  for (const auto& [begin, extent] : extents_) {
    counts.waiting += extent.state <= State::kPinning ? 1 : 0;
    counts.pinned += extent.state == State::kPinned ? 1 : 0;
    counts.failed += extent.state == State::kFailed ? 1 : 0;
  }
  return counts;
}

Status HostPins::failure() const {
  const MutexLock lock(&mutex_);
  return failure_;
}

HostPins::Extents::iterator HostPins::NextWaiting() {
  return std::find_if(extents_.begin(), extents_.end(),
                      [](const auto& entry) { return entry.second.state == State::kWaiting; });
}

void HostPins::Run() {
  NameThisThread("aq-pins");
  mutex_.Lock();
  while (!stopping_) {
    const auto next = NextWaiting();
    if (next == extents_.end()) {
      changed_.Wait(&mutex_);
      continue;
    }
    // It stays in the map while it is being pinned: Remove() waits.
    next->second.state = State::kPinning;
    GpuDevice* const device = device_.get();
    const std::span<std::byte> memory(next->first, next->second.bytes);
    mutex_.Unlock();
    const Status status = device->Pin(memory);
    mutex_.Lock();
    next->second.state = status.ok() ? State::kPinned : State::kFailed;
    changed_.NotifyAll();
    if (status.ok()) continue;
    failure_ = status;
    const std::function<void(const Status&)> tell = std::exchange(on_failure_, nullptr);
    if (tell == nullptr) continue;
    mutex_.Unlock();
    tell(status);
    mutex_.Lock();
  }
  mutex_.Unlock();
}

PinnedExtent::PinnedExtent(std::span<std::byte> memory) : memory_(memory) {
  HostPins::OfProcess()->Add(memory_);
}

PinnedExtent::PinnedExtent(PinnedExtent&& other) noexcept
    : memory_(std::exchange(other.memory_, {})) {}

PinnedExtent& PinnedExtent::operator=(PinnedExtent&& other) noexcept {
  std::swap(memory_, other.memory_);
  return *this;
}

PinnedExtent::~PinnedExtent() {
  if (!memory_.empty()) HostPins::OfProcess()->Remove(memory_);
}

}  // namespace aquifer
