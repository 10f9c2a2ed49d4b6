// A GPU in plain memory. Its queues hold work until a step is made. Each question for a mark makes
// some steps, in an order that a seed decides. Copies and kernels of different queues therefore
// interleave as they may on a device, and nothing is done when the call for it returns.
//
// It checks the mover. A copy or kernel is a mistake, and not made, if it uses host memory that is
// not pinned, or memory that was freed. Taking two ranges that were pinned apart for one is a
// mistake, too. So is destroying the GPU while work is queued. Any one call can be made to fail.
//
// Not thread-safe, except for Pin() and Unpin().
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cuda/gpu_device.h"
#include "testing/seeded_random.h"

namespace aquifer {

// A record of the actions of FakeGpus, which outlives them. GPUs with one log are one device:
// memory that one of them pins is pinned for all.
struct FakeGpuLog {
  std::string mistake;  // The first mistake; empty: none.
  uint64_t calls = 0;
  uint64_t copies = 0;
  uint64_t moves = 0;
  uint64_t drains = 0;
  uint64_t queued = 0;                // Copies, kernels, marks and waits that are not done.
  uint64_t open_memory = 0;           // Allocations that were not given back.
  std::atomic<uint64_t> pinned = 0;   // Ranges pinned by Pin().
  std::atomic<uint64_t> pinning = 0;  // Threads that are inside of Pin().
  // While it is set, no thread returns from Pin(). Call notify_all() after clearing it.
  std::atomic<bool> hold_pins = false;
  Mutex mutex;
  // Begin and bytes of each range.
  std::map<uint64_t, uint64_t> pinned_ranges AQ_GUARDED_BY(mutex);
};

struct FakeGpuOptions {
  uint64_t seed = 1;
  uint64_t fail_call = 0;  // The call of this number, and all later ones, fail. 0: none.
  Code fail_code = Code::kUnavailable;
  uint64_t throw_call = 0;  // The call of this number throws std::bad_alloc. 0: none.
};

class FakeGpu final : public GpuDevice {
 public:
  FakeGpu(FakeGpuLog* log, const FakeGpuOptions& options);
  ~FakeGpu() override;

  Result<uint64_t> NewDeviceMemory(uint64_t bytes) override;
  void FreeDeviceMemory(uint64_t address) override;
  Result<std::span<std::byte>> NewPinnedMemory(uint64_t bytes) override;
  void FreePinnedMemory(std::span<std::byte> memory) override;
  Status Pin(std::span<std::byte> memory) override;
  void Unpin(std::span<std::byte> memory) override;
  Result<uint64_t> DeviceAddress(const std::byte* pinned) override;
  Result<Queue> NewQueue() override;
  Result<Mark> NewMark() override;
  Status Copy(Queue queue, std::span<const GpuCopy> copies) override;
  Status Move(Queue queue, MoveKind kind, const MoveLaunch& launch) override;
  Status SetMark(Queue queue, Mark mark) override;
  Status WaitFor(Queue queue, Mark mark) override;
  Result<bool> Reached(Mark mark) override;
  void Drain() override;

 private:
  // An item of a queue: work, or a wait.
  struct Item {
    std::function<void()> work;
    Mark wait_mark = 0;
    uint64_t wait_setting = 0;  // The setting of the mark to wait for; 0: this is no wait.
  };
  struct MarkState {
    uint64_t set = 0;      // How often the mark was set.
    uint64_t reached = 0;  // The last setting that was reached.
  };

  Status Call();
  void Mistake(const std::string& what);
  void Put(Queue queue, Item item);
  bool Step();  // Returns false if no queue can go on.
  bool MayCopy(const GpuCopy& copy);
  bool MayMove(const MoveLaunch& launch);
  bool Knows(uint64_t address, uint64_t bytes);
  template <class T>
  bool KnowsTable(const T* table, uint64_t count) {
    return Knows(reinterpret_cast<uint64_t>(table), count * sizeof(T));
  }

  FakeGpuLog* const log_;
  const FakeGpuOptions options_;
  SeededRandom random_;
  std::vector<std::deque<Item>> queues_;
  std::vector<MarkState> marks_;
  // The device's memory and pinned memory.
  std::map<uint64_t, std::unique_ptr<std::byte[]>> memory_;
  std::map<uint64_t, uint64_t> sizes_;
};

// Does the kernel's work, on the host.
void RunMove(MoveKind kind, const MoveLaunch& launch);

}  // namespace aquifer
