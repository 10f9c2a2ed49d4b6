// Disks against a bare io_uring loop on one thread: same file, block size, depth and memory. The
// directory is made under TMPDIR, so set that to the drive to be measured. `waiting` is how many
// requests wait in the disk's queue behind those at the device: with none, the drive has a gap
// whenever a completion travels to the caller and the next request back.
//
//   TMPDIR=/mnt/nvme disk_bench --benchmark_repetitions=5
//   --benchmark_enable_random_interleaving=true
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "io/disk/disk.h"
#include "io/memory/extent.h"
#include "testing/disk_requests.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

constexpr uint64_t kFileBytes = uint64_t{1} << 30;
constexpr uint64_t kBytesEachTime = uint64_t{512} << 20;
constexpr size_t kDepth = 32;
constexpr size_t kBlocks = 2 * kDepth;

// One file full of random bytes, made on first use, and memory for kBlocks blocks. All ways use all
// of it, as the caches would otherwise favour those that use less.
class Bench {
 public:
  static Bench& Get() {
    static Bench bench;
    return bench;
  }

  std::span<std::byte> Block(size_t index, size_t bytes) {
    return memory_->bytes().subspan(index % kBlocks * bytes, bytes);
  }

  std::unique_ptr<Disk> Open(DiskEngine engine) {
    DiskOptions options;
    options.directory = scratch_.path();
    options.engine = engine;
    options.queue_depth = kDepth;
    auto disk = OpenDisk(options, executor_.get());
    AQ_CHECK(disk.ok());
    (*disk)->Remember(memory_->bytes());
    // One round trip, so that the memory is remembered before anybody takes the time.
    (void)RunRequest(disk->get(), FileRequest(IoKind::kSync, 1));
    return *std::move(disk);
  }

  std::string FilePath() const { return scratch_.Sub("segment-00000001.aq"); }

 private:
  Bench() {
    const auto disk = Open(DiskEngine::kAuto);
    AQ_CHECK(RunRequest(disk.get(), CreateRequest(1, kFileBytes)).ok());
    const std::span<std::byte> bytes = memory_->bytes();
    SeededRandom(1).Fill(bytes);
    for (uint64_t at = 0; at < kFileBytes; at += bytes.size()) {
      AQ_CHECK(RunRequest(disk.get(), DataRequest(IoKind::kWrite, 1, at, bytes)).ok());
    }
    AQ_CHECK(RunRequest(disk.get(), FileRequest(IoKind::kSync, 1)).ok());
  }

  ScratchDirectory scratch_;
  std::unique_ptr<ThreadExecutor> executor_ =
      NewThreadExecutor({.name = "bench", .spin_nanos = 50'000}, SystemClock());
  std::unique_ptr<Extent> memory_ = *SystemExtentSource()->New(uint64_t{512} << 20);
};

// Blocks in an order that no drive can guess but that is always the same.
class Offsets {
 public:
  explicit Offsets(size_t block_bytes) : block_bytes_(block_bytes) {}
  uint64_t Next() { return random_.Below(kFileBytes / block_bytes_) * block_bytes_; }

 private:
  const size_t block_bytes_;
  SeededRandom random_{7};
};

void Bare(benchmark::State& state, IoKind kind) {
  Bench& bench = Bench::Get();
  const auto bytes = static_cast<size_t>(state.range(0));
  const uint64_t blocks = kBytesEachTime / bytes;
  const int fd = ::open(bench.FilePath().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  io_uring ring;
  AQ_CHECK(fd >= 0);
  AQ_CHECK(io_uring_queue_init(kDepth, &ring,
                               IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) == 0);
  AQ_CHECK(io_uring_register_files(&ring, &fd, 1) == 0);
  const auto all = bench.Block(0, bytes * kBlocks);
  const iovec buffer = {.iov_base = all.data(), .iov_len = all.size()};
  AQ_CHECK(io_uring_register_buffers(&ring, &buffer, 1) == 0);
  Offsets offsets(bytes);
  for (auto _ : state) {
    uint64_t started = 0;
    uint64_t finished = 0;
    const auto start = [&](uint64_t block) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring);
      const auto data = bench.Block(block, bytes);
      if (kind == IoKind::kRead) {
        io_uring_prep_read_fixed(sqe, 0, data.data(), bytes, offsets.Next(), 0);
      } else {
        io_uring_prep_write_fixed(sqe, 0, data.data(), bytes, offsets.Next(), 0);
      }
      sqe->flags |= IOSQE_FIXED_FILE;
      sqe->user_data = block;
      ++started;
    };
    for (size_t i = 0; i < std::min<uint64_t>(kDepth, blocks); ++i) start(i);
    while (finished < blocks) {
      AQ_CHECK(io_uring_submit_and_wait(&ring, 1) >= 0);
      unsigned head = 0;
      unsigned seen = 0;
      io_uring_cqe* cqe = nullptr;
      io_uring_for_each_cqe(&ring, head, cqe) {
        AQ_CHECK(cqe->res == static_cast<int>(bytes));
        ++seen;
        if (started < blocks) start(cqe->user_data + kDepth);
      }
      io_uring_cq_advance(&ring, seen);
      finished += seen;
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytesEachTime));
  io_uring_queue_exit(&ring);
  ::close(fd);
}

void Through(benchmark::State& state, DiskEngine engine, IoKind kind) {
  Bench& bench = Bench::Get();
  const auto bytes = static_cast<size_t>(state.range(0));
  const size_t outstanding = kDepth + static_cast<size_t>(state.range(1));
  const uint64_t blocks = kBytesEachTime / bytes;
  const auto disk = bench.Open(engine);
  Offsets offsets(bytes);
  std::vector<IoGroup> groups(std::min<uint64_t>(outstanding, blocks));
  const DiskStats before = disk->stats();
  for (auto _ : state) {
    uint64_t started = groups.size();  // On the executor only, from here on.
    uint64_t finished = 0;
    std::promise<void> done;
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i].requests = {DataRequest(kind, 1, offsets.Next(), bench.Block(i, bytes))};
      groups[i].on_done = [&, i](IoGroup& group) {
        AQ_CHECK(group.requests[0].status.ok());
        if (++finished == blocks) {
          done.set_value();
        } else if (started < blocks) {
          ++started;
          group.requests[0].offset = offsets.Next();
          if (groups.size() <= kDepth) {  // Later groups have a block of their own.
            group.requests[0].data = bench.Block(i + started % 2 * kDepth, bytes);
          }
          disk->Submit(&group);
        }
      };
    }
    for (IoGroup& group : groups) disk->Submit(&group);
    done.get_future().wait();
  }
  const DiskStats after = disk->stats();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kBytesEachTime));
  state.counters["calls_per_request"] =
      static_cast<double>(after.submit_calls - before.submit_calls) /
      static_cast<double>(after.requests - before.requests);
}

void Sizes(benchmark::internal::Benchmark* bench) {
  for (const int64_t kib : {64, 1024, 2048, 8192}) bench->Arg(kib << 10);
  bench->ArgName("block")->UseRealTime()->Unit(benchmark::kMillisecond);
}

void SizesAndWaiting(benchmark::internal::Benchmark* bench) {
  for (const int64_t kib : {64, 1024, 2048, 8192}) {
    for (const int64_t waiting : {0, 32}) bench->Args({kib << 10, waiting});
  }
  bench->ArgNames({"block", "waiting"})->UseRealTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(Bare, read, IoKind::kRead)->Apply(Sizes);
BENCHMARK_CAPTURE(Through, read_uring, DiskEngine::kUring, IoKind::kRead)->Apply(SizesAndWaiting);
BENCHMARK_CAPTURE(Through, read_threads, DiskEngine::kThreads, IoKind::kRead)
    ->Apply(SizesAndWaiting);
BENCHMARK_CAPTURE(Bare, write, IoKind::kWrite)->Apply(Sizes);
BENCHMARK_CAPTURE(Through, write_uring, DiskEngine::kUring, IoKind::kWrite)->Apply(SizesAndWaiting);
BENCHMARK_CAPTURE(Through, write_threads, DiskEngine::kThreads, IoKind::kWrite)
    ->Apply(SizesAndWaiting);

}  // namespace
}  // namespace aquifer
