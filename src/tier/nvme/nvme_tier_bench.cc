// The NVMe tier against the drive itself: the same block size, depth and file state, through the
// same Disk. And how long a start takes.
//
//   nvme_tier_bench --benchmark_counters_tabular=true
//
// "of_raw" is the tier's throughput over the raw one, both measured in the same run.
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "base/clock.h"
#include "base/crypto/random.h"
#include "base/executor.h"
#include "benchmark/benchmark.h"
#include "io/disk/disk.h"
#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_disk.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"
#include "tier/nvme/nvme_format.h"
#include "tier/nvme/nvme_tier.h"
#include "tier/test_block.h"

namespace aquifer {
namespace {

constexpr uint64_t kTotalBytes = uint64_t{768} << 20;

class World {
 public:
  World()
      : executor_(NewThreadExecutor({}, SystemClock())),
        workers_(NewThreadWorkerPool(1, "aq-bench")) {
    auto disk = OpenDisk({.directory = directory_.Sub("drive")}, executor_.get());
    AQ_CHECK(disk.ok());
    disk_ = std::move(*disk);
  }
  ~World() {
    disk_.reset();
    workers_.reset();
    executor_->Stop();
  }

  // Runs `start` on the executor and waits until the function it is given was called.
  void Await(const std::function<void(std::function<void()>)>& start) {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    executor_->Post([&] {
      start([&] {
        const std::lock_guard lock(mutex);
        done = true;
        changed.notify_one();
      });
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done; });
  }

  ScratchDirectory directory_;
  std::unique_ptr<ThreadExecutor> executor_;
  std::unique_ptr<WorkerPool> workers_;
  std::unique_ptr<Disk> disk_;
};

double Seconds(int64_t from) { return static_cast<double>(SystemClock()->NowNanos() - from) / 1e9; }

// Keeps `depth` requests of `block_bytes` going until `count` are done, each over its own range.
double RawSeconds(World* world, IoKind kind, uint32_t file, uint64_t block_bytes, uint64_t count,
                  uint64_t depth, std::byte* memory) {
  const int64_t start = SystemClock()->NowNanos();
  uint64_t next = 0;
  uint64_t finished = 0;
  std::vector<IoGroup> groups(depth);
  world->Await([&](const std::function<void()>& done) {
    const auto submit = [&](IoGroup* group) {
      group->requests.resize(1);
      group->requests[0] = {.kind = kind,
                            .file = file,
                            .offset = next * block_bytes,
                            .data = {memory + next % depth * block_bytes, block_bytes},
                            .status = {}};
      ++next;
      world->disk_->Submit(group);
    };
    for (IoGroup& group : groups) {
      group.on_done = [&, done, submit](IoGroup& finished_group) {
        AQ_CHECK(finished_group.requests[0].status.ok());
        if (++finished == count) return done();
        if (next < count) submit(&finished_group);
      };
    }
    for (uint64_t i = 0; i < std::min(depth, count); ++i) submit(&groups[i]);
  });
  return Seconds(start);
}

void RunOne(World* world, const IoRequest& request) {
  IoGroup group;
  group.requests = {request};
  world->Await([&](const std::function<void()>& done) {
    group.on_done = [done](IoGroup&) { done(); };
    world->disk_->Submit(&group);
  });
  AQ_CHECK(group.requests[0].status.ok());
}

void BM_Throughput(benchmark::State& state) {
  const auto block_bytes = static_cast<uint64_t>(state.range(0));
  const auto depth = static_cast<uint64_t>(state.range(1));
  const uint64_t count = kTotalBytes / block_bytes;
  std::vector<std::unique_ptr<TestBlock>> blocks;
  for (uint64_t i = 0; i < depth; ++i)
    blocks.push_back(std::make_unique<TestBlock>(i, block_bytes));
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, depth * block_bytes));
  std::memset(memory, 7, depth * block_bytes);
  double best_raw_write = 1e9;
  double best_raw_read = 1e9;
  double best_write = 1e9;
  double best_read = 1e9;
  for (auto _ : state) {
    World world;
    // The raw file is allocated and never written, like the tier's fresh segments.
    RunOne(
        &world,
        {.kind = IoKind::kCreate, .file = 9999, .data = {}, .length = kTotalBytes, .status = {}});
    best_raw_write = std::min(best_raw_write, RawSeconds(&world, IoKind::kWrite, 9999, block_bytes,
                                                         count, depth, memory));
    best_raw_read = std::min(
        best_raw_read, RawSeconds(&world, IoKind::kRead, 9999, block_bytes, count, depth, memory));
    RunOne(
        &world,
        {.kind = IoKind::kRemove, .file = 9999, .data = {}, .length = kTotalBytes, .status = {}});

    NvmeTierOptions options;
    options.capacity_bytes = kTotalBytes * 2;
    options.segment_bytes = uint64_t{256} << 20;
    options.max_block_bytes = std::max<uint64_t>(block_bytes, 4096);
    std::unique_ptr<NvmeTier> tier;
    world.Await([&](const std::function<void()>& done) {
      auto made = NewNvmeTier(options, {world.disk_.get()}, nullptr, world.workers_.get(),
                              world.executor_.get(), SystemClock(), SystemRandom());
      AQ_CHECK(made.ok());
      tier = std::move(*made);
      tier->Recover([done](const Status&) { done(); });
    });
    // The same few buffers under ever new keys: the checksum stays the same. Batches of a quarter
    // of the depth, four of them going at once.
    const uint64_t per_batch = std::max<uint64_t>(depth / 4, 1);
    const auto id_of = [&](uint64_t i) {
      BlockId id = blocks[i % depth]->id();
      std::memcpy(id.key.bytes.data(), &i, sizeof(i));
      id.key.bytes[8] = std::byte{1};
      return id;
    };
    int64_t start = SystemClock()->NowNanos();
    uint64_t next = 0;
    uint64_t finished = 0;
    std::vector<Batch<WriteOp>> writes(std::max<uint64_t>(depth / per_batch, 1));
    world.Await([&](const std::function<void()>& done) {
      const auto submit = [&](Batch<WriteOp>* batch) {
        batch->ops.clear();
        for (uint64_t i = 0; i < per_batch && next < count; ++i, ++next) {
          batch->ops.push_back(blocks[next % depth]->ToWrite());
          batch->ops.back().meta.id = id_of(next);
        }
        tier->Write(batch);
      };
      for (auto& batch : writes) {
        batch.on_done = [&, done, submit](Batch<WriteOp>& finished_batch) {
          for (const WriteOp& op : finished_batch.ops) AQ_CHECK(op.status.ok());
          finished += finished_batch.ops.size();
          if (finished == count) return done();
          if (next < count) submit(&finished_batch);
        };
      }
      for (auto& batch : writes) submit(&batch);
    });
    best_write = std::min(best_write, Seconds(start));

    start = SystemClock()->NowNanos();
    next = finished = 0;
    std::vector<Batch<ReadOp>> reads(writes.size());
    world.Await([&](const std::function<void()>& done) {
      const auto submit = [&](Batch<ReadOp>* batch) {
        batch->ops.clear();
        for (uint64_t i = 0; i < per_batch && next < count; ++i, ++next) {
          batch->ops.push_back({.id = id_of(next),
                                .target = {memory + next % depth * block_bytes, block_bytes},
                                .status = {},
                                .checksum = {}});
        }
        tier->Read(batch);
      };
      for (auto& batch : reads) {
        batch.on_done = [&, done, submit](Batch<ReadOp>& finished_batch) {
          for (const ReadOp& op : finished_batch.ops) AQ_CHECK(op.status.ok());
          finished += finished_batch.ops.size();
          if (finished == count) return done();
          if (next < count) submit(&finished_batch);
        };
      }
      for (auto& batch : reads) submit(&batch);
    });
    best_read = std::min(best_read, Seconds(start));
    world.Await([&](const std::function<void()>& done) {
      tier.reset();
      done();
    });
  }
  const double gigabytes = static_cast<double>(kTotalBytes) / 1e9;
  state.counters["raw_write_GBs"] = gigabytes / best_raw_write;
  state.counters["write_GBs"] = gigabytes / best_write;
  state.counters["write_of_raw"] = best_raw_write / best_write;
  state.counters["raw_read_GBs"] = gigabytes / best_raw_read;
  state.counters["read_GBs"] = gigabytes / best_read;
  state.counters["read_of_raw"] = best_raw_read / best_read;
  std::free(memory);
}
BENCHMARK(BM_Throughput)
    ->ArgNames({"block", "depth"})
    ->Args({64 << 10, 64})
    ->Args({1 << 20, 16})
    ->Args({2 << 20, 16})
    ->Iterations(3)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// A terabyte of 2 MiB blocks on a sparse disk: headers, maps and footers are real, payloads are
// not.
void BM_StartWithATerabyte(benchmark::State& state) {
  constexpr uint64_t kSegmentBytes = uint64_t{1} << 30;
  constexpr uint64_t kBlock = uint64_t{2} << 20;
  constexpr uint64_t kSegments = 1000;
  ManualClock clock;
  ManualExecutor executor(&clock);
  SeededRandom random(1);
  auto media = std::make_shared<MemoryMedia>();
  const uint64_t per_segment =
      (kSegmentBytes - DataOffset(kSegmentBytes) - (4 << 20)) / (kBlock + 4096);
  DriveId drive_id{std::byte{1}};
  std::vector<std::byte> bytes(kPageBytes);
  const std::span<std::byte, kPageBytes> page(bytes.data(), kPageBytes);
  uint64_t sequence = 1;
  for (uint32_t file = 0; file < kSegments; ++file) {
    AQ_CHECK(media->Create(file, kSegmentBytes).ok());
    const SegmentUse use{.generation = file + 1, .salt = random.Next()};
    EncodeHeader({.state = SegmentState::kUsed,
                  .file = file,
                  .segment_bytes = kSegmentBytes,
                  .drive_id = drive_id,
                  .use = use},
                 page);
    media->SetBytes(file, 0, page);
    for (uint64_t copy = 0; copy < 2; ++copy) {
      std::vector<std::byte> map(MapBytes(kSegmentBytes));
      FinishMap({.use = use, .sequence = copy, .records = 0}, map);
      media->SetBytes(file, kMapsOffset + copy * map.size(), map);
    }
    const uint64_t footer = kSegmentBytes - FooterBytes(per_segment);
    for (uint64_t first = 0; first < per_segment; first += kRecordsPerPage) {
      std::memset(bytes.data(), 0, bytes.size());
      const auto count =
          static_cast<uint32_t>(std::min<uint64_t>(kRecordsPerPage, per_segment - first));
      for (uint32_t i = 0; i < count; ++i) {
        Record record;
        random.Fill(record.meta.id.key.bytes);
        record.meta.raw_bytes = record.meta.stored_bytes = kBlock;
        record.age = {.origin = sequence, .sequence = sequence};
        ++sequence;
        record.payload_offset = DataOffset(kSegmentBytes) + (first + i) * kBlock;
        record.generation = use.generation;
        EncodeRecord(record, RecordAt(page, i));
      }
      const auto number = static_cast<uint32_t>(first / kRecordsPerPage);
      FinishRecordPage({.kind = RecordPageKind::kFooter,
                        .use = use,
                        .number = number,
                        .first_record = static_cast<uint32_t>(first),
                        .records = count},
                       page);
      media->SetBytes(file, footer + number * kPageBytes, page);
    }
    EncodeTrailer({.use = use,
                   .records = static_cast<uint32_t>(per_segment),
                   .groups = 1,
                   .footer_offset = footer,
                   .data_end = DataOffset(kSegmentBytes)},
                  page);
    media->SetBytes(file, kSegmentBytes - kPageBytes, page);
  }
  for (auto _ : state) {
    MemoryDisk disk(media, {}, &executor, &clock);
    NvmeTierOptions options;
    options.capacity_bytes = (kSegments + 2) * kSegmentBytes;  // Nothing is reclaimed.
    auto tier = NewNvmeTier(options, {&disk}, nullptr, &executor, &executor, &clock, &random);
    AQ_CHECK(tier.ok());
    (*tier)->Recover([](const Status& status) { AQ_CHECK(status.ok()); });
    int64_t longest = 0;
    for (int64_t start = SystemClock()->NowNanos(); executor.RunOne();) {
      const int64_t now = SystemClock()->NowNanos();
      longest = std::max(longest, now - start);
      start = now;
    }
    const NvmeRecovery& found = (*tier)->recovery();
    AQ_CHECK(found.segments_by_footer == kSegments);
    state.counters["blocks"] = static_cast<double>(found.blocks);
    state.counters["read_MB"] = static_cast<double>(found.bytes_read) / 1e6;
    state.counters["longest_task_us"] = static_cast<double>(longest) / 1e3;
    for (const auto& [name, value] : (*tier)->Counters()) {
      if (name == "index_bytes") {
        state.counters["bytes_a_block"] =
            static_cast<double>(value) / static_cast<double>(found.blocks);
      }
    }
  }
}
BENCHMARK(BM_StartWithATerabyte)->Iterations(3)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace aquifer
