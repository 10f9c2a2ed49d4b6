// The promises of every disk, tested over each of them.
#include "io/disk/disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/disk_requests.h"
#include "testing/memory_disk.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

enum class Kind : uint8_t { kUring, kThreads, kMemory };

class DiskTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kUring && !ProbeUring().ok()) GTEST_SKIP() << ProbeUring().message();
    Open({});
  }

  void Open(DiskOptions options) {
    disk_.reset();
    if (GetParam() == Kind::kMemory) {
      MemoryDiskOptions memory_options;
      memory_options.max_queued = options.max_queued;
      disk_ = std::make_unique<MemoryDisk>(media_, memory_options, executor_.get());
      return;
    }
    options.directory = scratch_.path();
    options.engine = GetParam() == Kind::kUring ? DiskEngine::kUring : DiskEngine::kThreads;
    auto disk = OpenDisk(options, executor_.get());
    ASSERT_TRUE(disk.ok()) << disk.status().ToString();
    disk_ = *std::move(disk);
  }

  Status Create(uint32_t file, uint64_t bytes) {
    return RunRequest(disk_.get(), CreateRequest(file, bytes));
  }
  Status Read(uint32_t file, uint64_t offset, const AlignedBytes& target) {
    return RunRequest(disk_.get(), DataRequest(IoKind::kRead, file, offset, target.span()));
  }
  Status Write(uint32_t file, uint64_t offset, const AlignedBytes& source) {
    return RunRequest(disk_.get(), DataRequest(IoKind::kWrite, file, offset, source.span()));
  }
  Status Do(IoKind kind, uint32_t file) { return RunRequest(disk_.get(), FileRequest(kind, file)); }

  ScratchDirectory scratch_;
  std::shared_ptr<MemoryMedia> media_ = std::make_shared<MemoryMedia>();
  std::unique_ptr<ThreadExecutor> executor_ = NewTestExecutor();
  std::unique_ptr<Disk> disk_;
};

TEST_P(DiskTest, WrittenBytesAreReadBack) {
  ASSERT_TRUE(Create(1, 32 * kMiB).ok());
  uint64_t offset = 0;
  for (const size_t bytes : {kPageBytes, 3 * kPageBytes, size_t{65536}, kMiB, 9 * kMiB}) {
    const AlignedBytes source(bytes, offset);
    const AlignedBytes target(bytes);
    ASSERT_TRUE(Write(1, offset, source).ok());
    ASSERT_TRUE(Read(1, offset, target).ok());
    EXPECT_EQ(source, target);
    offset += bytes;
  }
}

TEST_P(DiskTest, WrittenBytesAreThereAfterAReopen) {
  const AlignedBytes source(kMiB, 5);
  ASSERT_TRUE(Create(7, kMiB).ok());
  ASSERT_TRUE(Write(7, 0, source).ok());
  Open({});
  const AlignedBytes target(kMiB);
  ASSERT_TRUE(Read(7, 0, target).ok());
  EXPECT_EQ(source, target);
}

TEST_P(DiskTest, AGroupOfManyKindsAndFilesIsDone) {
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes source(kMiB, 1);
  const AlignedBytes target(kPageBytes, 2);
  const auto statuses = RunGroup(
      disk_.get(), {DataRequest(IoKind::kWrite, 1, 0, source.span()), CreateRequest(2, kPageBytes),
                    FileRequest(IoKind::kSync, 1), FileRequest(IoKind::kRemove, 3),
                    DataRequest(IoKind::kRead, 9, 0, target.span())});
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_TRUE(statuses[1].ok());
  EXPECT_TRUE(statuses[2].ok());
  EXPECT_TRUE(statuses[3].ok());
  EXPECT_EQ(statuses[4].code(), Code::kNotFound);
}

TEST_P(DiskTest, MisalignedRequestsAreInvalidAndTheOthersOfTheGroupAreDone) {
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes bytes(2 * kPageBytes);
  const auto statuses = RunGroup(
      disk_.get(), {DataRequest(IoKind::kRead, 1, 100, bytes.span().first(kPageBytes)),
                    DataRequest(IoKind::kRead, 1, 0, bytes.span().first(100)),
                    DataRequest(IoKind::kWrite, 1, 0, bytes.span().subspan(512, kPageBytes)),
                    DataRequest(IoKind::kRead, 1, 0, {}), CreateRequest(2, 1000),
                    DataRequest(static_cast<IoKind>(99), 1, 0, bytes.span()),
                    DataRequest(IoKind::kRead, 1, 0, bytes.span().first(kPageBytes))});
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(statuses[i].code(), Code::kInvalid) << i;
  EXPECT_TRUE(statuses[6].ok());
}

TEST_P(DiskTest, AnEmptyGroupCompletes) { EXPECT_TRUE(RunGroup(disk_.get(), {}).empty()); }

TEST_P(DiskTest, ANewFileReadsAsZero) {
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes target(kMiB, 3);
  ASSERT_TRUE(Read(1, 0, target).ok());
  EXPECT_EQ(target, AlignedBytes(kMiB));
}

TEST_P(DiskTest, AReadPastTheEndFindsNothing) {
  ASSERT_TRUE(Create(1, 2 * kPageBytes).ok());
  const AlignedBytes target(2 * kPageBytes);
  EXPECT_EQ(Read(1, kPageBytes, target).code(), Code::kNotFound);
  EXPECT_EQ(Read(1, 2 * kPageBytes, target).code(), Code::kNotFound);
  EXPECT_EQ(Read(1, uint64_t{1} << 40, target).code(), Code::kNotFound);
  EXPECT_EQ(Read(1, UINT64_MAX - kPageBytes + 1, target).code(), Code::kNotFound);
  EXPECT_TRUE(Read(1, 0, target).ok());
}

TEST_P(DiskTest, AWritePastTheEndIsInvalidAndGrowsNothing) {
  ASSERT_TRUE(Create(1, 2 * kPageBytes).ok());
  EXPECT_EQ(Write(1, kPageBytes, AlignedBytes(2 * kPageBytes)).code(), Code::kInvalid);
  EXPECT_EQ((*disk_->List())[0].bytes, 2 * kPageBytes);
}

TEST_P(DiskTest, AFileThatIsNotThereIsNotFound) {
  const AlignedBytes bytes(kPageBytes);
  EXPECT_EQ(Read(5, 0, bytes).code(), Code::kNotFound);
  EXPECT_EQ(Write(5, 0, bytes).code(), Code::kNotFound);
  EXPECT_EQ(Do(IoKind::kSync, 5).code(), Code::kNotFound);
  EXPECT_TRUE(Do(IoKind::kRemove, 5).ok());
}

TEST_P(DiskTest, CreateKeepsGrowsAndCutsAFile) {
  const AlignedBytes source(2 * kPageBytes, 8);
  const AlignedBytes target(2 * kPageBytes);
  ASSERT_TRUE(Create(1, 2 * kPageBytes).ok());
  ASSERT_TRUE(Write(1, 0, source).ok());
  ASSERT_TRUE(Create(1, 2 * kPageBytes).ok());
  ASSERT_TRUE(Create(1, 8 * kPageBytes).ok());
  ASSERT_TRUE(Read(1, 0, target).ok());
  EXPECT_EQ(source, target);
  EXPECT_TRUE(Read(1, 6 * kPageBytes, target).ok());
  ASSERT_TRUE(Create(1, kPageBytes).ok());
  EXPECT_EQ(Read(1, 0, target).code(), Code::kNotFound);
  ASSERT_TRUE(Create(1, 2 * kPageBytes).ok());
  ASSERT_TRUE(Read(1, 0, target).ok());  // The part that was cut off is zero now.
  const auto zeros = target.span().subspan(kPageBytes);
  EXPECT_TRUE(
      std::all_of(zeros.begin(), zeros.end(), [](std::byte b) { return b == std::byte{0}; }));
  ASSERT_TRUE(Create(1, 0).ok());
  EXPECT_EQ((*disk_->List())[0].bytes, 0u);
}

TEST_P(DiskTest, ARemovedFileIsGoneAndItsNumberCanBeUsedAgain) {
  const AlignedBytes source(kPageBytes, 8);
  const AlignedBytes target(kPageBytes);
  ASSERT_TRUE(Create(1, kPageBytes).ok());
  ASSERT_TRUE(Write(1, 0, source).ok());
  ASSERT_TRUE(Do(IoKind::kRemove, 1).ok());
  EXPECT_EQ(Read(1, 0, target).code(), Code::kNotFound);
  EXPECT_TRUE(disk_->List()->empty());
  ASSERT_TRUE(Create(1, kPageBytes).ok());
  ASSERT_TRUE(Read(1, 0, target).ok());
  EXPECT_EQ(target, AlignedBytes(kPageBytes));
}

TEST_P(DiskTest, FilesAreListedByNumber) {
  for (const uint32_t file : {30u, 2u, 4'000'000'000u}) {
    ASSERT_TRUE(Create(file, file % 7 * kPageBytes).ok());
  }
  const auto list = disk_->List();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 3u);
  EXPECT_EQ((*list)[0].number, 2u);
  EXPECT_EQ((*list)[1].number, 30u);
  EXPECT_EQ((*list)[1].bytes, 2 * kPageBytes);
  EXPECT_EQ((*list)[2].number, 4'000'000'000u);
}

TEST_P(DiskTest, AGroupBeyondTheBoundIsBusyAndTheNextOneFits) {
  DiskOptions options;
  options.max_queued = 4;
  Open(options);
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes target(5 * kPageBytes);
  std::vector<IoRequest> reads;
  for (size_t at = 0; at < target.span().size(); at += kPageBytes) {
    reads.push_back(DataRequest(IoKind::kRead, 1, 0, target.span().subspan(at, kPageBytes)));
  }
  for (const Status& status : RunGroup(disk_.get(), reads)) {
    EXPECT_EQ(status.code(), Code::kBusy);
  }
  reads.pop_back();
  for (const Status& status : RunGroup(disk_.get(), reads)) EXPECT_TRUE(status.ok());
}

TEST_P(DiskTest, MoreRequestsThanTheDepthAreAllDone) {
  DiskOptions options;
  options.queue_depth = 2;
  Open(options);
  ASSERT_TRUE(Create(1, 64 * kPageBytes).ok());
  const AlignedBytes source(64 * kPageBytes, 4);
  const AlignedBytes target(64 * kPageBytes);
  std::vector<IoRequest> writes;
  std::vector<IoRequest> reads;
  for (uint64_t at = 0; at < 64 * kPageBytes; at += kPageBytes) {
    writes.push_back(DataRequest(IoKind::kWrite, 1, at, source.span().subspan(at, kPageBytes)));
    reads.push_back(DataRequest(IoKind::kRead, 1, at, target.span().subspan(at, kPageBytes)));
  }
  for (const Status& status : RunGroup(disk_.get(), writes)) EXPECT_TRUE(status.ok());
  for (const Status& status : RunGroup(disk_.get(), reads)) EXPECT_TRUE(status.ok());
  EXPECT_EQ(source, target);
}

TEST_P(DiskTest, EveryGroupCompletesOnceOnTheExecutor) {
  ASSERT_TRUE(Create(1, kMiB).ok());
  std::thread::id executor_thread;
  std::promise<void> known;
  executor_->Post([&] {
    executor_thread = std::this_thread::get_id();
    known.set_value();
  });
  known.get_future().wait();

  constexpr size_t kGroups = 200;
  const AlignedBytes target(kGroups * 5 * kPageBytes);
  std::vector<IoGroup> groups(kGroups);
  std::vector<int> completions(kGroups);  // Touched on the executor only, until it has stopped.
  std::latch done(kGroups);
  for (size_t i = 0; i < kGroups; ++i) {
    for (size_t r = 0; r < 1 + i % 5; ++r) {
      const auto page = target.span().subspan((i * 5 + r) * kPageBytes, kPageBytes);
      groups[i].requests.push_back(DataRequest(IoKind::kRead, 1, r * kPageBytes, page));
    }
    groups[i].on_done = [&, i](IoGroup&) {
      EXPECT_EQ(std::this_thread::get_id(), executor_thread);
      if (++completions[i] == 1) done.count_down();
    };
    disk_->Submit(&groups[i]);
  }
  done.wait();
  disk_.reset();
  executor_->Stop();
  for (const int count : completions) EXPECT_EQ(count, 1);
}

TEST_P(DiskTest, ThreadsMaySubmitAtTheSameTime) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      const auto file = static_cast<uint32_t>(t);
      EXPECT_TRUE(Create(file, kMiB).ok());
      const AlignedBytes target(kMiB / 4);
      for (int round = 0; round < kRounds; ++round) {
        const AlignedBytes source(kMiB / 4, static_cast<uint64_t>(t * kRounds + round));
        EXPECT_TRUE(Write(file, kMiB / 4, source).ok());
        EXPECT_TRUE(Read(file, kMiB / 4, target).ok());
        EXPECT_EQ(source, target);
      }
      EXPECT_TRUE(Do(IoKind::kRemove, file).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DiskTest, ACompletionMaySubmitAgainAndNeverRunsInsideSubmit) {
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes target(kPageBytes);
  std::promise<void> finished;
  bool inside = false;
  int left = 50;
  IoGroup group;
  group.requests = {DataRequest(IoKind::kRead, 1, 0, target.span())};
  group.on_done = [&](IoGroup& self) {
    EXPECT_FALSE(inside);
    EXPECT_TRUE(self.requests[0].status.ok());
    if (--left == 0) {
      finished.set_value();
      return;
    }
    inside = true;
    disk_->Submit(&self);
    inside = false;
  };
  disk_->Submit(&group);
  finished.get_future().wait();
}

TEST_P(DiskTest, TheDestructorLetsEveryGroupComplete) {
  ASSERT_TRUE(Create(1, 4 * kMiB).ok());
  constexpr int kGroups = 300;
  constexpr size_t kBytes = 16 * kPageBytes;
  const AlignedBytes target(kGroups * kBytes);
  std::vector<IoGroup> groups(kGroups);
  std::atomic<int> completed = 0;
  for (size_t i = 0; i < kGroups; ++i) {
    IoGroup& group = groups[i];
    group.requests = {DataRequest(IoKind::kRead, 1, 0, target.span().subspan(i * kBytes, kBytes)),
                      CreateRequest(2, kPageBytes)};
    group.bulk = i % 2 == 1;
    group.on_done = [&completed](IoGroup& self) {
      for (const IoRequest& request : self.requests) {
        EXPECT_TRUE(request.status.ok() || request.status.code() == Code::kUnavailable);
      }
      ++completed;
    };
    disk_->Submit(&group);
  }
  disk_.reset();
  executor_->Stop();
  EXPECT_EQ(completed, kGroups);
}

// By the time that a read is there, a drive with room for one request cannot have done all of them.
TEST_P(DiskTest, AReadWaitsForNoBulkWriteThatTheDeviceDoesNotHave) {
  if (GetParam() == Kind::kMemory) GTEST_SKIP() << "it does everything at once";
  constexpr size_t kWrites = 128;
  DiskOptions options;
  options.queue_depth = 1;
  Open(options);
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes source(kMiB);
  const AlignedBytes target(kPageBytes);
  std::vector<IoGroup> groups(kWrites + 1);
  std::vector<size_t> order;  // Touched on the executor only, until all are done.
  std::latch done(kWrites + 1);
  for (size_t i = 0; i <= kWrites; ++i) {
    groups[i].requests = {i < kWrites ? DataRequest(IoKind::kWrite, 1, 0, source.span())
                                      : DataRequest(IoKind::kRead, 1, 0, target.span())};
    groups[i].bulk = i < kWrites;
    groups[i].on_done = [&, i](IoGroup& group) {
      EXPECT_TRUE(group.requests[0].status.ok());
      order.push_back(i);
      done.count_down();
    };
    disk_->Submit(&groups[i]);
  }
  done.wait();
  disk_.reset();
  executor_->Stop();
  EXPECT_LT(std::ranges::find(order, kWrites) - order.begin(), ptrdiff_t{kWrites});
}

TEST_P(DiskTest, MoreBulkThanTheDeviceMayHaveIsAllDone) {
  constexpr size_t kGroups = 100;
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes source(kMiB);
  std::vector<IoGroup> groups(kGroups);
  std::latch done(kGroups);
  for (IoGroup& group : groups) {
    group.requests = {DataRequest(IoKind::kWrite, 1, 0, source.span())};
    group.bulk = true;
    group.on_done = [&done](IoGroup& self) {
      EXPECT_TRUE(self.requests[0].status.ok());
      done.count_down();
    };
    disk_->Submit(&group);
  }
  done.wait();
}

TEST_P(DiskTest, ReadsThatNeverEndKeepNoBulkWriteWaiting) {
  constexpr size_t kReads = 8;     // So large that one that ended is there again before all have.
  constexpr int kMostReads = 500;  // It would wait for all of these.
  DiskOptions options;
  options.queue_depth = 1;
  Open(options);
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes source(kMiB);
  ASSERT_TRUE(RunRequest(disk_.get(), DataRequest(IoKind::kWrite, 1, 0, source.span())).ok());
  const AlignedBytes target(kReads * kMiB);
  std::vector<IoGroup> reads(kReads);
  IoGroup write;
  int read = 0;  // These are touched on the executor only, until all are done.
  int read_before_write = -1;
  std::latch done(kReads + 1);
  for (size_t i = 0; i < kReads; ++i) {
    const auto own = target.span().subspan(i * kMiB, kMiB);
    reads[i].requests = {DataRequest(IoKind::kRead, 1, 0, own)};
    reads[i].on_done = [&](IoGroup& group) {
      if (++read >= kMostReads || read_before_write >= 0) return done.count_down();
      disk_->Submit(&group);
    };
  }
  write.requests = {DataRequest(IoKind::kWrite, 1, 0, source.span())};
  write.bulk = true;
  write.on_done = [&](IoGroup&) {
    read_before_write = read;
    done.count_down();
  };
  // From the executor, so that no read is answered, and comes again, before the write is there too.
  executor_->Post([&] {
    for (IoGroup& group : reads) disk_->Submit(&group);
    disk_->Submit(&write);
  });
  done.wait();
  disk_.reset();
  executor_->Stop();
  EXPECT_LT(read_before_write, kMostReads);
}

TEST_P(DiskTest, RememberedMemoryWorksLikeAnyOther) {
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes source(kMiB, 3);
  const AlignedBytes target(kMiB);
  disk_->Remember(source.span());
  disk_->Remember(target.span());
  disk_->Remember(target.span());  // Twice is as good as once.
  disk_->Remember({});
  ASSERT_TRUE(Write(1, 0, source).ok());
  ASSERT_TRUE(Read(1, 0, target).ok());
  EXPECT_EQ(source, target);

  disk_->Forget(target.span());
  disk_->Forget(target.span());
  const AlignedBytes zeros(kMiB);
  std::copy(zeros.span().begin(), zeros.span().end(), target.span().begin());
  ASSERT_TRUE(Read(1, 0, target).ok());
  EXPECT_EQ(source, target);
  disk_->Forget(source.span());
}

TEST_P(DiskTest, ARequestAcrossTheEdgeOfRememberedMemoryWorks) {
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes source(kMiB, 3);
  const AlignedBytes target(kMiB);
  disk_->Remember(source.span().subspan(kMiB / 4, kMiB / 4));
  disk_->Remember(target.span().first(kMiB / 4));
  ASSERT_TRUE(Write(1, 0, source).ok());
  ASSERT_TRUE(Read(1, 0, target).ok());
  EXPECT_EQ(source, target);
  disk_->Forget(source.span());  // More than was remembered.
  disk_->Forget(target.span());
}

TEST_P(DiskTest, ItCountsWhatItDid) {
  ASSERT_TRUE(Create(1, kMiB).ok());
  const AlignedBytes bytes(kMiB / 2);
  ASSERT_TRUE(Write(1, 0, bytes).ok());
  ASSERT_TRUE(Read(1, 0, bytes).ok());
  ASSERT_TRUE(Read(1, kMiB / 2, bytes).ok());
  EXPECT_EQ(Read(1, kMiB, bytes).code(), Code::kNotFound);
  const DiskStats stats = disk_->stats();
  EXPECT_EQ(stats.requests, 5u);
  EXPECT_EQ(stats.bytes_written, kMiB / 2);
  EXPECT_EQ(stats.bytes_read, kMiB);
}

INSTANTIATE_TEST_SUITE_P(Every, DiskTest,
                         testing::Values(Kind::kUring, Kind::kThreads, Kind::kMemory),
                         [](const auto& info) {
                           switch (info.param) {
                             case Kind::kUring:
                               return std::string("Uring");
                             case Kind::kThreads:
                               return std::string("Threads");
                             default:
                               return std::string("Memory");
                           }
                         });

}  // namespace
}  // namespace aquifer
