// The block mover's view of a GPU, and nothing more: memory, queues of copies and kernels, and
// marks in them. The CUDA driver stands behind it (cuda_device.h); tests put a fake there.
//
// A GpuDevice is one user's share of a device. Its queues, marks and memory are numbered or
// addressed by it and go with it. Calls are not thread-safe, return at once unless they say
// otherwise, and fail with a Status; after kUnavailable the device is not to be used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "aquifer/status.h"
#include "cuda/move_work.h"

namespace aquifer {

// Addresses are the device's or the host's, which the device tells apart; the host's are pinned.
struct GpuCopy {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;
};

class GpuDevice {
 public:
  using Queue = uint32_t;
  using Mark = uint32_t;

  virtual ~GpuDevice() = default;

  // kNoSpace: the device, or the host, has no more.
  virtual Result<uint64_t> NewDeviceMemory(uint64_t bytes) = 0;
  virtual void FreeDeviceMemory(uint64_t address) = 0;
  virtual Result<std::span<std::byte>> NewPinnedMemory(uint64_t bytes) = 0;
  virtual void FreePinnedMemory(std::span<std::byte> memory) = 0;

  // Makes memory of the host known to the device, for everyone in this process. Slow: some 40 ms
  // for 64 MiB. Only whole ranges that were pinned are unpinned. These two any thread may call.
  virtual Status Pin(std::span<std::byte> memory) = 0;
  virtual void Unpin(std::span<std::byte> memory) = 0;
  // Where the device sees pinned memory.
  virtual Result<uint64_t> DeviceAddress(const std::byte* pinned) = 0;

  // A queue does its work in order; queues go on side by side.
  virtual Result<Queue> NewQueue() = 0;
  virtual Result<Mark> NewMark() = 0;
  virtual Status Copy(Queue queue, std::span<const GpuCopy> copies) = 0;
  virtual Status Move(Queue queue, MoveKind kind, const MoveLaunch& launch) = 0;
  // Puts the mark behind what is in the queue now; it is taken away from where it was before.
  virtual Status SetMark(Queue queue, Mark mark) = 0;
  // All work that comes into `queue` from now on waits for the mark.
  virtual Status WaitFor(Queue queue, Mark mark) = 0;
  virtual Result<bool> Reached(Mark mark) = 0;

  // Waits until nothing of this share is under way any more, if it takes until the device is lost.
  virtual void Drain() = 0;
};

}  // namespace aquifer
