// Which memory of this process the GPU may copy from and to by itself. Extents of a node are added
// when they are mapped; once a GPU is used, a thread pins them, one at a time, since each takes
// some 40 ms. Nobody waits for that: what is not pinned yet goes through a ring of staging memory.
//
// An extent must be removed before it is unmapped. The driver would otherwise hold its pages, and
// read them, even when another extent lies at the same address.
//
// Any thread may call anything. The driver keeps one table of pinned memory a process, and so do
// we: OfProcess().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <thread>

#include "aquifer/status.h"
#include "base/mutex.h"
#include "cuda/gpu_device.h"

namespace aquifer {

class HostPins {
 public:
  // Never destroyed: a thread may be inside of the driver when the process ends.
  static HostPins* OfProcess();

  HostPins() = default;
  ~HostPins();  // Unpins everything.
  HostPins(const HostPins&) = delete;
  HostPins& operator=(const HostPins&) = delete;

  // From now on memory is pinned, by this device for all of them. Later calls change nothing.
  // `on_failure` is called once, when some cannot be pinned for the first time, by the thread that
  // pins: blocks in it are copied more slowly for as long as it is mapped, and nobody would know.
  void Use(std::unique_ptr<GpuDevice> device,
           std::function<void(const Status&)> on_failure = nullptr);
  bool in_use() const;

  void Add(std::span<std::byte> memory);
  // Unpins it; waits if it is being pinned. Nothing may be under way to or from it.
  void Remove(std::span<std::byte> memory);

  // The pinned memory around `bytes`; empty when it is not, or not all of it, pinned.
  std::span<std::byte> Around(std::span<const std::byte> bytes) const;

  struct Counts {
    size_t waiting = 0;
    size_t pinned = 0;
    size_t failed = 0;
  };
  Counts counts() const;
  Status failure() const;  // Why the last one failed.

 private:
  enum class State : uint8_t { kWaiting, kPinning, kPinned, kUnpinning, kFailed };
  struct Extent {
    size_t bytes = 0;
    State state = State::kWaiting;
  };
  using Extents = std::map<std::byte*, Extent>;

  void Run();
  Extents::iterator NextWaiting() AQ_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Condition changed_;
  Extents extents_ AQ_GUARDED_BY(mutex_);
  Status failure_ AQ_GUARDED_BY(mutex_);
  bool stopping_ AQ_GUARDED_BY(mutex_) = false;
  // Set once, before the thread starts. Pins and unpins from several threads, as a GpuDevice may.
  std::unique_ptr<GpuDevice> device_ AQ_GUARDED_BY(mutex_);
  std::function<void(const Status&)> on_failure_ AQ_GUARDED_BY(mutex_);  // Null once it was called.
  std::thread thread_;
};

// Adds memory for as long as it lives. Has to go before the mapping does.
class PinnedExtent {
 public:
  PinnedExtent() = default;
  explicit PinnedExtent(std::span<std::byte> memory);
  PinnedExtent(PinnedExtent&& other) noexcept;
  PinnedExtent& operator=(PinnedExtent&& other) noexcept;
  ~PinnedExtent();

 private:
  std::span<std::byte> memory_;
};

}  // namespace aquifer
