// Moves blocks between a GPU's pages and slots in the host's memory at the speed of the link, and
// sums them on the way: what gather_scatter.h is for tensors in the host's memory.
//
// Slots are contiguous and pages are not. A copy engine is the only thing that fills the link both
// ways, and wants few long copies; a kernel finds scattered pieces, and is fast in the GPU's own
// memory. So a batch goes in chunks through staging memory on the GPU:
//
//   gather:   pages ──kernel, sums──► staging ──copy engine──► slots
//   scatter:  slots ──copy engine──► staging ──kernel, sums──► pages
//
// Several chunks are under way at a time, so that the link never waits for a kernel. On an H200
// this reaches 0.97 to 0.99 of one long copy each way and of two both ways, whatever the pieces; a
// kernel that reads and writes the slots across the link reaches 0.93 to 0.95, and 0.6 both ways.
// That one is used where a copy engine would move other ranks' heads, or only small slots.
//
// Slots that are not pinned yet (host_pins.h) are copied by the caller's thread through a ring of
// pinned memory.
//
// Not thread-safe: one thread begins batches and polls. A batch whose tables the device does not
// have yet waits for what is under way, and so does an error: then every block of every batch gets
// the status, and so does whatever comes later. Nothing else waits for the GPU but Wait(). The
// engine's own work on the pages must be done before a batch begins.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "aquifer/status.h"
#include "block/tensor/gather_scatter.h"
#include "cuda/gpu_device.h"
#include "cuda/host_pins.h"
#include "cuda/move_tables.h"

namespace aquifer {

// The caller's until it is done; so are the ops, the page tables and the slots.
struct MoveBatch {
  const MoveTables* tables = nullptr;
  // One of the two.
  std::span<GatherOp> gathers{};
  // With a check, `sums` are the whole block's and not only those of this rank's heads.
  std::span<ScatterOp> scatters{};
  Verify verify = Verify::kWhileCopying;
  bool summed = true;  // False only to measure what sums cost.

  size_t size() const { return gathers.empty() ? scatters.size() : gathers.size(); }
  bool done() const { return finished == size(); }

  // The mover's: from the front, without a gap.
  size_t started = 0;
  size_t finished = 0;
};

struct MoverOptions {
  uint64_t chunk_bytes = uint64_t{16} << 20;  // One block at least.
  uint32_t chunks = 4;                        // Under way at a time.
  // Smaller blocks go across the link by the kernel: on an H200 copies of 64 KiB reach 0.99 of the
  // link to the device and 0.88 from it, the kernel 0.93 and 0.95.
  uint64_t staged_bytes = 64 << 10;
};

class BlockMover {
 public:
  static Result<std::unique_ptr<BlockMover>> New(std::unique_ptr<GpuDevice> device,
                                                 const HostPins* pins,
                                                 const MoverOptions& options = {});
  ~BlockMover();  // Waits for what is under way.
  BlockMover(const BlockMover&) = delete;
  BlockMover& operator=(const BlockMover&) = delete;

  // Batches are moved in the order in which they begin.
  void Begin(MoveBatch* batch);
  // Moves on what can be.
  void Poll();
  // Polls until it is done, however long that takes: what the device was told to do cannot be taken
  // back, and until then it touches slots and pages.
  void Wait(const MoveBatch& batch);
  // For a caller whose batches go before they are done, since it has no memory to go on: waits for
  // what is under way and forgets them. The path is off from then on.
  void Abandon() noexcept;

  const Status& status() const { return status_; }  // Not ok: the path is off, and why.

  struct Counts {
    uint64_t staged_blocks = 0;  // By the copy engine.
    uint64_t direct_blocks = 0;  // By the kernel across the link.
    uint64_t ringed_blocks = 0;  // Of both, through the ring since the slot was not pinned.
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Moving {
    size_t op = 0;
    std::byte* slot = nullptr;
    std::byte* host = nullptr;  // The slot, or its place in the ring.
    std::span<std::byte> pinned{};
    BlockPlace place{};
    Checksum checksum{};
  };
  // Part of a batch that is under way, and what it needs for that.
  struct Chunk {
    MoveBatch* batch = nullptr;
    size_t count = 0;  // Of the batch's ops; those that are wrong are not moved.
    std::vector<Moving> blocks;
    // Each has one of its own: where the engine's kernels leave a gap now and then, all that wait
    // go on at once.
    GpuDevice::Queue kernels = 0;
    GpuDevice::Mark middle = 0;  // The first half is done: the copy, or the kernel.
    GpuDevice::Mark end = 0;
    uint64_t staging = 0;  // On the device.
    uint64_t staging_bytes = 0;
    uint64_t device_sums = 0;
    std::span<std::byte> tables;  // Blocks, page numbers, and the sums when it is done. Pinned.
    std::span<std::byte> ring;
  };
  struct DeviceTables {
    uint64_t id = 0;
    uint64_t address = 0;  // Pieces, then tiles.
    std::span<std::byte> pinned;
  };

  BlockMover(std::unique_ptr<GpuDevice> device, const HostPins* pins, const MoverOptions& options)
      : device_(std::move(device)), pins_(pins), options_(options) {}
  Status Start();

  Status FinishReached();
  Status StartWaiting();
  Status StartChunk(MoveBatch* batch, Chunk* chunk);
  void Choose(MoveBatch* batch, Chunk* chunk);
  bool IsDirect(const MoveBatch& batch) const;
  void AddBlock(const MoveBatch& batch, size_t op, Chunk* chunk);
  Status FindHostMemory(Chunk* chunk);
  Status Enqueue(Chunk* chunk);
  Status EnqueueGather(const Chunk& chunk, const MoveLaunch& launch, bool direct);
  Status EnqueueScatter(const Chunk& chunk, const MoveLaunch& launch, bool direct);
  Status CopyStaging(const Chunk& chunk, bool to_host);
  Result<MoveLaunch> FillTables(Chunk* chunk, bool direct);
  Result<DeviceTables*> TablesOf(const MoveTables& tables);
  void FinishChunk(Chunk* chunk);
  void Disable(const Status& status);

  std::unique_ptr<GpuDevice> device_;
  const HostPins* const pins_;
  const MoverOptions options_;
  GpuDevice::Queue copies_ = 0;
  std::vector<Chunk> chunks_;  // Used in turn.
  size_t begun_ = 0;
  size_t ended_ = 0;
  std::deque<MoveBatch*> waiting_;  // Those with ops that have not started.
  std::vector<DeviceTables> tables_;
  std::vector<GpuCopy> copy_list_;
  Status status_;
  // For status_, made before there is no memory to make it.
  Status abandoned_{Code::kUnavailable, "the GPU path is off: this process was out of memory"};
  Counts counts_;
};

}  // namespace aquifer
