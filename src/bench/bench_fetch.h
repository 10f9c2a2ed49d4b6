// Fetching warm blocks, through whichever cache holds them: what the rows of DRAM and of the node
// share.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aquifer/cache.h"
#include "bench/bench_row.h"
#include "bench/peers/bench_memory.h"
#include "bench/peers/cache_caller.h"
#include "bench/peers/server_process.h"

namespace aquifer {

inline constexpr size_t kFetchBatchBlocks = 64;

// Slots are cut from extents of 64 MiB, and a few extents are kept ready ahead of need: so much
// more than its blocks does a pool need.
inline constexpr uint64_t kPoolSlackBytes = uint64_t{512} << 20;

// A chain whose blocks are all in a cache's DRAM, and the client's own memory beside it.
struct WarmBlocks {
  uint64_t block_bytes = 0;
  // Requests that are open borrow both until the cache is gone.
  NamedChain chain;
  BenchMemory memory;                     // As large as the chain.
  std::unique_ptr<ServerProcess> server;  // The node, if it is one's cache; ends after its client.
  std::unique_ptr<CacheCaller> caller;

  size_t batches() const { return chain.keys.size() / kFetchBatchBlocks; }
  std::span<const Key> Batch(size_t batch) const {
    return std::span(chain.keys).subspan(batch * kFetchBatchBlocks, kFetchBatchBlocks);
  }
  // The client's memory for a block.
  std::span<std::byte> Place(size_t block) const {
    return memory.bytes().subspan(block * block_bytes, block_bytes);
  }
  LaneSums CopyIn(size_t block, std::span<std::byte> slot) const {
    return CopyAndSumLanes(Place(block), 0, slot.data());
  }
};

// Stores `bytes` of blocks in a cache whose layout is BenchLayout(block_bytes).
Result<WarmBlocks> StoreWarmBlocks(std::unique_ptr<CacheCaller> caller, uint64_t block_bytes,
                                   uint64_t bytes);

// Borrows a batch at a time.
class BatchFetcher {
 public:
  explicit BatchFetcher(const WarmBlocks* blocks) : blocks_(blocks) {}

  Status Lease(size_t batch);
  // As an engine copies them: checked in the same pass.
  Status CopyOut(size_t batch) const;
  void MemcpyOut(size_t batch) const;
  void Release();

  // The two halves of Lease().
  void Ask(size_t batch);
  Status Finish() const;
  // Checks the answers, where the caller has waited itself.
  Status Check() const;
  const FetchRequest& request() const { return fetch_; }

 private:
  std::byte* PlaceOf(size_t batch, size_t op) const;

  const WarmBlocks* const blocks_;
  FetchRequest fetch_;
  std::vector<ReleaseOp> releases_;
};

// Fetch, one copy out of each block by the client, checksums looked at, release; against one memcpy
// alone. The next batch is fetched while one is copied: the calls are asynchronous. In GB/s.
class FetchContest : public Contest {
 public:
  FetchContest(WarmBlocks blocks, uint64_t copied_before)
      : blocks_(std::move(blocks)), copied_before_(copied_before) {}

  static constexpr const char* kLimitIs =
      "one memcpy of the same blocks, from the same slots to the same memory, in the same batches "
      "of 64";
  static double GoalFor(uint64_t block_bytes);
  // How much payload the cache itself has copied so far.
  static Result<uint64_t> CopiedBytes(const WarmBlocks& blocks);

  Result<double> Limit() override;
  Result<double> Ours() override;
  std::string Note() const override { return "0 payload bytes copied by the cache"; }

 protected:
  const WarmBlocks& blocks() const { return blocks_; }

 private:
  // They outlive the cache, which may have their requests still after an error.
  std::array<BatchFetcher, 2> fetchers_{BatchFetcher(&blocks_), BatchFetcher(&blocks_)};
  const WarmBlocks blocks_;
  const uint64_t copied_before_;
};

// How long a client waits for one warm block, in microseconds: request after request, or each after
// a pause in which whoever answers falls asleep.
class FirstSlotContest final : public Contest {
 public:
  explicit FirstSlotContest(WarmBlocks blocks, std::chrono::microseconds pause = {})
      : blocks_(std::move(blocks)), pause_(pause) {}

  static constexpr const char* kLimitIs =
      "the design's figure: 20 us from the call to the first slot, back to back";

  Result<double> Limit() override { return 20; }
  Result<double> Ours() override;
  std::string Note() const override;

 private:
  const WarmBlocks blocks_;
  const std::chrono::microseconds pause_;
  FetchRequest fetch_;
  std::vector<double> all_micros_;  // Of every round.
};

}  // namespace aquifer
