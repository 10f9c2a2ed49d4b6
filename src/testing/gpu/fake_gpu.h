// A GPU in plain memory. Its queues hold what was put into them until a step is made: each asking
// for a mark makes some, in an order that a seed decides, so that copies and kernels of different
// queues interleave as they may on a device, and nothing is done when the call for it returns.
//
// It keeps the mover honest: copies and kernels that use memory of the host that is not pinned, two
// ranges that were pinned apart as if they were one, or memory that was freed, are mistakes and not
// made; so is to destroy it while something is queued. Any one call can be made to fail.
//
// Not thread-safe, but for Pin() and Unpin().
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

// What FakeGpus did, which outlives them. Those of one log are one device: what one of them pins is
// pinned for all.
struct FakeGpuLog {
  std::string mistake;  // The first; empty: none.
  uint64_t calls = 0;
  uint64_t copies = 0;
  uint64_t moves = 0;
  uint64_t drains = 0;
  uint64_t queued = 0;                  // Copies, kernels, marks and waits that are not done.
  uint64_t open_memory = 0;             // Allocations that were not given back.
  std::atomic<uint64_t> pinned = 0;     // Ranges, by Pin().
  std::atomic<uint64_t> pinning = 0;    // Threads that are inside of Pin().
  std::atomic<bool> hold_pins = false;  // While it is set, none of them comes out; notify_all().
  Mutex mutex;
  std::map<uint64_t, uint64_t> pinned_ranges AQ_GUARDED_BY(mutex);  // Begin and bytes.
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
  // What a queue holds: work, or a wait.
  struct Item {
    std::function<void()> work;
    Mark wait_mark = 0;
    uint64_t wait_setting = 0;  // Of that mark; 0: this is no wait.
  };
  struct MarkState {
    uint64_t set = 0;      // How often it was set,
    uint64_t reached = 0;  // and the last setting that was reached.
  };

  Status Call();
  void Mistake(const std::string& what);
  void Put(Queue queue, Item item);
  bool Step();  // False: nothing can go on.
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
  std::map<uint64_t, std::unique_ptr<std::byte[]>> memory_;  // The device's and the pinned.
  std::map<uint64_t, uint64_t> sizes_;
};

// What the kernel does, on the host.
void RunMove(MoveKind kind, const MoveLaunch& launch);

}  // namespace aquifer
