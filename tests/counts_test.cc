// Tests the cost of a fetch besides time: allocations, copies and system calls. From memory, none
// of them may grow with the number of blocks in the steady state. From NVMe, each has a small bound
// per block.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <new>

#include "aquifer/cache.h"
#include "aquifer/checksum.h"
#include "base/check.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/child_process.h"
#include "testing/scratch_directory.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<uint64_t> allocations{0};
// Counts copies of a page or more: payload, not bookkeeping.
std::atomic<uint64_t> copied_bytes{0};

using CopyFunction = void* (*)(void*, const void*, size_t);

// The C library's own functions, which the two below replace.
void* Copy(const char* name, std::atomic<CopyFunction>* real, void* target, const void* source,
           size_t bytes) {
  if (bytes >= 4096 && counting.load(std::memory_order_relaxed)) copied_bytes += bytes;
  CopyFunction copy = real->load(std::memory_order_relaxed);
  if (copy == nullptr) {
    copy = reinterpret_cast<CopyFunction>(dlsym(RTLD_NEXT, name));
    real->store(copy, std::memory_order_relaxed);
  }
  return copy(target, source, bytes);
}

std::atomic<CopyFunction> real_memcpy{nullptr};
std::atomic<CopyFunction> real_memmove{nullptr};

void* Allocate(size_t bytes, size_t alignment) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  void* memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

// Every thread's copies go through these, except short ones that the compiler expands in place.
extern "C" void* memcpy(void* target, const void* source, size_t bytes) {
  return Copy("memcpy", &real_memcpy, target, source, bytes);
}
extern "C" void* memmove(void* target, const void* source, size_t bytes) {
  return Copy("memmove", &real_memmove, target, source, bytes);
}

// Our own copies, which sum in the same pass, do not use memcpy. The linker puts the first of these
// in the place of aquifer::CopyAndSumLanes, which then has the second one's name.
#define AQ_COPY "_ZN7aquifer15CopyAndSumLanesESt4spanIKSt4byteLm18446744073709551615EEmPS1_"
aquifer::LaneSums CountedCopy(std::span<const std::byte> piece, uint64_t offset,
                              std::byte* target) __asm__("__wrap_" AQ_COPY);
aquifer::LaneSums RealCopy(std::span<const std::byte> piece, uint64_t offset,
                           std::byte* target) __asm__("__real_" AQ_COPY);

aquifer::LaneSums CountedCopy(std::span<const std::byte> piece, uint64_t offset,
                              std::byte* target) {
  if (counting.load(std::memory_order_relaxed)) copied_bytes += piece.size();
  return RealCopy(piece, offset, target);
}

// Every thread's allocations go through these.
void* operator new(size_t bytes) { return Allocate(bytes, 0); }
void* operator new[](size_t bytes) { return Allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr const char* kLoopFlag = "--fetch-loop";
constexpr size_t kMaxBlocks = 256;

// A cache with one chain in memory, and requests that are used again and again.
class FetchLoop {
 public:
  FetchLoop()
      : cache_(OpenCache()),
        engine_(cache_.get(), LayoutOfBytes(64 << 10)),
        chain_(engine_.layout(), {.seed = 1, .blocks = kMaxBlocks}) {
    AQ_CHECK(engine_.Store(chain_) == kMaxBlocks);
    releases_.resize(kMaxBlocks);
    Run(kMaxBlocks, 200);  // Now every vector has its size, and every free list is full.
  }

  // Matches, fetches, reads and releases the first `blocks` of the chain, `batches` times.
  void Run(size_t blocks, size_t batches) {
    match_.chain = engine_.Slice(chain_, {.first = 0, .count = blocks});
    fetch_.chain = match_.chain;
    for (size_t i = 0; i < batches; ++i) {
      cache_->Match(&match_);
      engine_.Finish(match_);
      AQ_CHECK(match_.matched == blocks);
      cache_->Fetch(&fetch_);
      engine_.Finish(fetch_);
      for (size_t block = 0; block < blocks; ++block) {
        const FetchOp& op = fetch_.ops[block];
        AQ_CHECK(op.status.ok() && op.bytes.size() == 64 << 10);
        releases_[block] = {.lease = op.lease, .corrupt = false};
      }
      cache_->Release(std::span(releases_).first(blocks));
    }
  }

  uint64_t AllocationsOf(size_t blocks, size_t batches) {
    engine_.Stats();  // When this request is answered, no earlier work is under way.
    allocations = copied_bytes = 0;
    counting = true;
    Run(blocks, batches);
    counting = false;
    return allocations;
  }

  TestEngine& engine() { return engine_; }

 private:
  static std::unique_ptr<Cache> OpenCache() {
    CacheOptions options;
    options.dram_bytes = 64 * kMiB;
    auto cache = Open(options, {});
    AQ_CHECK(cache.ok());
    return *std::move(cache);
  }

  std::unique_ptr<Cache> cache_;
  TestEngine engine_;
  const Chain chain_;
  MatchRequest match_;
  FetchRequest fetch_;
  std::vector<ReleaseOp> releases_;
};

constexpr size_t kBatches = 500;

TEST(CountsTest, AFetchFromMemoryAllocatesNothingPerBlock) {
  FetchLoop loop;
  // Timers and housekeeping allocate now and then, whatever is fetched.
  const double small = static_cast<double>(loop.AllocationsOf(16, kBatches)) / kBatches;
  const double medium = static_cast<double>(loop.AllocationsOf(64, kBatches)) / kBatches;
  const double large = static_cast<double>(loop.AllocationsOf(256, kBatches)) / kBatches;
  RecordProperty("allocations_per_batch_of_64", fmt::format("{:.2f}", medium));
  std::cout << fmt::format("allocations a batch: {:.2f} (16 blocks), {:.2f} (64), {:.2f} (256)\n",
                           small, medium, large);
  EXPECT_LE(medium, 4.0);
  EXPECT_LE(large, 256 / 32.0);  // A long request is cut into slices, each of which is a task.
}

TEST(CountsTest, TheCountersCount) {
  std::vector<std::byte> from(1 << 20);
  std::vector<std::byte> to(1 << 20);
  allocations = copied_bytes = 0;
  counting = true;
  std::copy(from.begin(), from.end(), to.begin());
  const auto one = std::make_unique<std::vector<std::byte>>(100);
  CopyAndSumLanes(from, 0, to.data());
  counting = false;
  EXPECT_EQ(copied_bytes, 2 * from.size());
  EXPECT_EQ(allocations, 2u);
}

TEST(CountsTest, AFetchFromMemoryCopiesNothing) {
  FetchLoop loop;
  const CacheStats before = loop.engine().Stats();
  loop.AllocationsOf(64, 100);
  const CacheStats after = loop.engine().Stats();
  EXPECT_EQ(after.Counter("fetch_hits_dram") - before.Counter("fetch_hits_dram"), 6400u);
  EXPECT_EQ(copied_bytes, 0u);
}

// --- From NVMe ---------------------------------------------------------------------------------

// Twice as many blocks as memory holds, fetched in turn: each block is only on the drive when it is
// requested.
class DriveLoop {
 public:
  static constexpr size_t kBlocks = 2048;
  static constexpr size_t kBatch = 64;

  DriveLoop()
      : cache_(OpenCache(directory_.path())),
        engine_(cache_.get(), LayoutOfBytes(64 << 10)),
        chain_(engine_.layout(), {.seed = 1, .blocks = kBlocks}) {
    // In pieces that fit in memory until they are written.
    constexpr size_t kPiece = 256;
    for (size_t first = 0; first < kBlocks; first += kPiece) {
      AQ_CHECK(engine_.StorePatiently(chain_, {.first = first, .count = kPiece}) == kPiece);
      AQ_CHECK(engine_.Flush().ok());
    }
    releases_.resize(kBatch);
    Run(2 * kBlocks / kBatch);
  }

  // Returns how many blocks came from the drive.
  size_t Run(size_t batches) {
    size_t from_drive = 0;
    for (size_t i = 0; i < batches; ++i) {
      fetch_.chain = engine_.Slice(chain_, {.first = next_, .count = kBatch});
      next_ = (next_ + kBatch) % kBlocks;
      fetch_.timeout_nanos = 60 * kDefaultTimeoutNanos;
      cache_->Fetch(&fetch_);
      engine_.Finish(fetch_);
      for (size_t block = 0; block < kBatch; ++block) {
        const FetchOp& op = fetch_.ops[block];
        AQ_CHECK(op.status.ok());
        from_drive += op.tier == TierKind::kNvme ? 1 : 0;
        releases_[block] = {.lease = op.lease, .corrupt = false};
      }
      cache_->Release(releases_);
    }
    return from_drive;
  }

  TestEngine& engine() { return engine_; }

 private:
  static std::unique_ptr<Cache> OpenCache(const std::string& directory) {
    CacheOptions options;
    options.dram_bytes = 64 * kMiB;
    options.nvme_directories = {directory};
    options.nvme_bytes = 512 * kMiB;
    options.eviction =
        EvictionPolicy::kLru;  // The learned order would recognise the loop and keep some blocks.
    auto cache = Open(options, {});
    AQ_CHECK(cache.ok());
    return *std::move(cache);
  }

  ScratchDirectory directory_;
  std::unique_ptr<Cache> cache_;
  TestEngine engine_;
  const Chain chain_;
  FetchRequest fetch_;
  std::vector<ReleaseOp> releases_;
  size_t next_ = 0;
};

TEST(CountsTest, AFetchFromNvmeCopiesNothingAndAllocatesAndCallsLittlePerBlock) {
  constexpr size_t kDriveBatches = 200;
  DriveLoop loop;
  const CacheStats before = loop.engine().Stats();
  allocations = copied_bytes = 0;
  counting = true;
  const size_t blocks = loop.Run(kDriveBatches);
  counting = false;
  const CacheStats after = loop.engine().Stats();
  EXPECT_GE(blocks, kDriveBatches * DriveLoop::kBatch * 9 / 10);
  const auto per_block = [blocks](uint64_t count) {
    return static_cast<double>(count) / static_cast<double>(blocks);
  };
  const double allocated = per_block(allocations);
  const double called =
      per_block(after.Counter("nvme_submit_calls") - before.Counter("nvme_submit_calls"));
  std::cout << fmt::format("from NVMe, a block: {:.2f} allocations, {:.2f} calls to submit\n",
                           allocated, called);
  RecordProperty("nvme_allocations_per_block", fmt::format("{:.2f}", allocated));
  RecordProperty("nvme_submit_calls_per_block", fmt::format("{:.2f}", called));
  EXPECT_EQ(copied_bytes, 0u);
  EXPECT_LE(allocated, 3.5);
  EXPECT_GT(called, 0.0);
  EXPECT_LE(called, 0.5);
}

// --- System calls ------------------------------------------------------------------------------

int RunLoop(size_t blocks, size_t batches) {
  DieWithParent();
  FetchLoop loop;
  loop.Run(blocks, batches);
  return 0;
}

// The calls that strace counted in a child that fetched so many batches of so many blocks.
uint64_t SystemCallsOf(size_t blocks, size_t batches) {
  ScratchDirectory directory;
  const std::string report = directory.Sub("calls");
  auto child = ChildProcess::Start({kLoopFlag, std::to_string(blocks), std::to_string(batches)},
                                   {"strace", "-f", "-c", "-U", "calls", "-o", report});
  AQ_CHECK(child->Wait() == 0);
  std::ifstream lines(report);
  std::string line;
  uint64_t total = 0;
  while (std::getline(lines, line))
    total = std::max<uint64_t>(total, std::strtoull(line.c_str(), nullptr, 10));
  return total;  // The largest number is the sum of the others.
}

double SystemCallsPerBatch(size_t blocks) {
  constexpr size_t kFew = 100;
  constexpr size_t kMany = 900;
  const uint64_t few = SystemCallsOf(blocks, kFew);
  const uint64_t many = SystemCallsOf(blocks, kMany);
  EXPECT_GT(few, 0u);
  return (static_cast<double>(many) - static_cast<double>(few)) / (kMany - kFew);
}

TEST(CountsTest, AFetchFromMemoryMakesNoSystemCallPerBlock) {
  if (std::system("strace -f -o /dev/null true >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "strace is missing or may not trace: apt-get install strace";
  }
  const double small = SystemCallsPerBatch(16);
  const double large = SystemCallsPerBatch(256);
  std::cout << fmt::format("system calls a batch: {:.2f} (16 blocks), {:.2f} (256)\n", small,
                           large);
  RecordProperty("system_calls_per_batch_of_256", fmt::format("{:.2f}", large));
  // A batch is a match, a fetch and a release. Each may wake the owner and be woken by it. Tracing
  // slows both so much that they sleep in between. The bound must not depend on the number of
  // blocks.
  EXPECT_LE(small, 32.0);
  EXPECT_LE(large, 48.0);  // How often they sleep varies; a call for each block would add 256.
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == aquifer::kLoopFlag) {
    return aquifer::RunLoop(std::strtoull(argv[2], nullptr, 10),
                            std::strtoull(argv[3], nullptr, 10));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
