#include "testing/memory_disk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "testing/manual_clock.h"
#include "testing/manual_executor.h"
#include "testing/memory_extents.h"
#include "testing/seeded_random.h"

namespace aquifer {
namespace {

constexpr uint64_t kFileBytes = 64 * kPageBytes;

class MemoryDiskTest : public testing::Test {
 protected:
  MemoryDiskTest() { Mount({}); }

  void Mount(const MemoryDiskOptions& options) {
    disk_ = std::make_unique<MemoryDisk>(media_, options, &executor_, &clock_);
  }

  // `pages` pages, each byte `fill`.
  std::span<std::byte> Buffer(size_t pages, int fill) {
    buffers_.push_back(*MemoryExtents().New(pages * kPageBytes));
    const std::span<std::byte> bytes = buffers_.back()->bytes();
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(fill));
    return bytes;
  }

  static IoRequest Create(uint32_t file, uint64_t length = kFileBytes) {
    IoRequest request;
    request.kind = IoKind::kCreate;
    request.file = file;
    request.length = length;
    return request;
  }

  static IoRequest At(IoKind kind, uint32_t file, uint64_t offset = 0,
                      std::span<std::byte> data = {}) {
    IoRequest request;
    request.kind = kind;
    request.file = file;
    request.offset = offset;
    request.data = data;
    return request;
  }

  // Leaves the group waiting; `completed_` tells when it is done.
  IoGroup* Start(std::vector<IoRequest> requests) {
    groups_.push_back(std::make_unique<IoGroup>());
    groups_.back()->requests = std::move(requests);
    groups_.back()->on_done = [this](IoGroup& group) {
      EXPECT_TRUE(completed_.insert(&group).second);
    };
    disk_->Submit(groups_.back().get());
    return groups_.back().get();
  }

  bool Completed(IoGroup* group) const { return completed_.contains(group); }

  Code Run(const IoRequest& request) {
    IoGroup* group = Start({request});
    EXPECT_FALSE(Completed(group));
    executor_.RunAll();
    EXPECT_TRUE(Completed(group));
    return group->requests[0].status.code();
  }

  void MakeFile(uint32_t file, int fill) {
    ASSERT_EQ(Run(Create(file)), Code::kOk);
    ASSERT_EQ(Run(At(IoKind::kWrite, file, 0, Buffer(kFileBytes / kPageBytes, fill))), Code::kOk);
  }

  // How many sectors of the file hold `fill` from end to end; every sector must hold `fill` or
  // `other`.
  size_t Sectors(uint32_t file, int fill, int other) {
    size_t found = 0;
    const std::vector<std::byte> bytes = media_->Bytes(file, 0, media_->Size(file));
    for (size_t at = 0; at < bytes.size(); at += kSectorBytes) {
      const auto sector = std::span(bytes).subspan(at, kSectorBytes);
      EXPECT_TRUE(sector[0] == static_cast<std::byte>(fill) ||
                  sector[0] == static_cast<std::byte>(other));
      EXPECT_EQ(static_cast<size_t>(std::count(sector.begin(), sector.end(), sector[0])),
                kSectorBytes);
      if (sector[0] == static_cast<std::byte>(fill)) ++found;
    }
    return found;
  }

  ManualClock clock_;
  ManualExecutor executor_{&clock_};
  std::shared_ptr<MemoryMedia> media_ = std::make_shared<MemoryMedia>();
  std::unique_ptr<MemoryDisk> disk_;
  std::vector<std::unique_ptr<Extent>> buffers_;
  std::vector<std::unique_ptr<IoGroup>> groups_;
  std::set<IoGroup*> completed_;
};

TEST_F(MemoryDiskTest, AFileOutlivesTheDisk) {
  MakeFile(3, 7);
  disk_.reset();
  Mount({});
  const std::span<std::byte> target = Buffer(1, 0);
  EXPECT_EQ(Run(At(IoKind::kRead, 3, kPageBytes, target)), Code::kOk);
  EXPECT_EQ(target[100], std::byte{7});
  const auto list = disk_->List();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ((*list)[0].number, 3u);
  EXPECT_EQ((*list)[0].bytes, kFileBytes);
}

TEST_F(MemoryDiskTest, ASparseFileCostsNoMemory) {
  const uint64_t terabyte = uint64_t{1} << 40;
  ASSERT_EQ(Run(Create(1, terabyte)), Code::kOk);
  EXPECT_EQ(media_->resident_bytes(), 0u);
  ASSERT_EQ(Run(At(IoKind::kWrite, 1, terabyte - kPageBytes, Buffer(1, 1))), Code::kOk);
  ASSERT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(64, 0))), Code::kOk);
  EXPECT_LE(media_->resident_bytes(), uint64_t{64} << 10);
  EXPECT_EQ(media_->used_bytes(), terabyte);
}

TEST_F(MemoryDiskTest, CreateBeyondTheCapacityIsRefusedAndChangesNothing) {
  media_->set_capacity_bytes(kFileBytes + kPageBytes);
  ASSERT_EQ(Run(Create(1)), Code::kOk);
  EXPECT_EQ(Run(Create(2)), Code::kNoSpace);
  EXPECT_FALSE(media_->Exists(2));
  EXPECT_EQ(Run(Create(1, kFileBytes + kPageBytes)), Code::kOk);
  EXPECT_EQ(Run(Create(1, kPageBytes)), Code::kOk);
  EXPECT_EQ(Run(Create(2)), Code::kOk);
}

TEST_F(MemoryDiskTest, CopyOnWriteNeedsSpaceToOverwrite) {
  MakeFile(1, 1);
  media_->set_capacity_bytes(kFileBytes + kPageBytes);
  media_->set_copy_on_write(true);
  EXPECT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(1, 2))), Code::kOk);
  EXPECT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(2, 2))), Code::kNoSpace);
}

TEST_F(MemoryDiskTest, AFileThatShrankGrowsAgainWithZeros) {
  MakeFile(1, 9);
  ASSERT_EQ(Run(Create(1, kPageBytes)), Code::kOk);
  ASSERT_EQ(Run(Create(1)), Code::kOk);
  EXPECT_EQ(Sectors(1, 9, 0), kPageBytes / kSectorBytes);
}

TEST_F(MemoryDiskTest, TheNextRequestsOfAKindFail) {
  MakeFile(1, 1);
  disk_->FailNext(IoKind::kWrite, 2, Code::kUnavailable);
  EXPECT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(1, 2))), Code::kUnavailable);
  EXPECT_EQ(Run(At(IoKind::kRead, 1, 0, Buffer(1, 0))), Code::kOk);
  EXPECT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(1, 2))), Code::kUnavailable);
  EXPECT_EQ(Sectors(1, 2, 1), 0u);
  EXPECT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(1, 2))), Code::kOk);
}

TEST_F(MemoryDiskTest, EveryRequestOfAKindFailsUntilToldOtherwise) {
  MakeFile(1, 1);
  disk_->FailAll(IoKind::kSync, Code::kUnavailable);
  EXPECT_EQ(Run(At(IoKind::kSync, 1)), Code::kUnavailable);
  EXPECT_EQ(Run(At(IoKind::kSync, 1)), Code::kUnavailable);
  disk_->FailAll(IoKind::kSync, Code::kOk);
  EXPECT_EQ(Run(At(IoKind::kSync, 1)), Code::kOk);
}

TEST_F(MemoryDiskTest, AFaultMayDependOnTheRequest) {
  MakeFile(1, 1);
  disk_->SetFault([](const IoRequest& request) {
    return Status(request.offset == kPageBytes ? Code::kUnavailable : Code::kOk);
  });
  EXPECT_EQ(Run(At(IoKind::kRead, 1, 0, Buffer(1, 0))), Code::kOk);
  EXPECT_EQ(Run(At(IoKind::kRead, 1, kPageBytes, Buffer(1, 0))), Code::kUnavailable);
  disk_->SetFault(nullptr);
  EXPECT_EQ(Run(At(IoKind::kRead, 1, kPageBytes, Buffer(1, 0))), Code::kOk);
}

TEST_F(MemoryDiskTest, AFailedWriteMayLeaveTornBytes) {
  MakeFile(1, 1);
  SeededRandom random(1);
  MemoryDiskOptions options;
  options.tear_failed_writes = true;
  options.random = &random;
  Mount(options);
  std::set<size_t> outcomes;
  disk_->FailAll(IoKind::kWrite, Code::kUnavailable);
  for (int i = 0; i < 20; ++i) {
    const int fill = 2 + i % 2;
    media_->SetBytes(1, 0, Buffer(kFileBytes / kPageBytes, 1));
    EXPECT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(4, fill))), Code::kUnavailable);
    outcomes.insert(Sectors(1, fill, 1));
  }
  EXPECT_TRUE(outcomes.contains(0));
  EXPECT_TRUE(outcomes.contains(4 * kPageBytes / kSectorBytes));
  EXPECT_GT(outcomes.size(), 2u);
}

TEST_F(MemoryDiskTest, HangingRequestsCompleteWhenTheHangEnds) {
  MakeFile(1, 1);
  IoGroup* waiting = Start({At(IoKind::kWrite, 1, 0, Buffer(64, 2))});
  disk_->Hang(true);
  IoGroup* later = Start({At(IoKind::kRead, 1, 0, Buffer(1, 0))});
  executor_.RunAll();
  EXPECT_FALSE(Completed(waiting));
  EXPECT_FALSE(Completed(later));
  EXPECT_EQ(Sectors(1, 2, 1), 0u);
  EXPECT_EQ(disk_->requests_pending(), 2u);

  disk_->Hang(false);
  EXPECT_FALSE(Completed(waiting));
  executor_.RunAll();
  EXPECT_TRUE(Completed(waiting));
  EXPECT_TRUE(Completed(later));
  EXPECT_EQ(later->requests[0].data[0], std::byte{2});
  EXPECT_EQ(disk_->requests_pending(), 0u);
}

TEST_F(MemoryDiskTest, AReadOnlyDiskRefusesToChangeAnything) {
  MakeFile(1, 1);
  disk_->SetReadOnly(true);
  EXPECT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(1, 2))), Code::kUnavailable);
  EXPECT_EQ(Run(Create(2)), Code::kUnavailable);
  EXPECT_EQ(Run(At(IoKind::kRemove, 1)), Code::kUnavailable);
  EXPECT_EQ(Run(At(IoKind::kRead, 1, 0, Buffer(1, 0))), Code::kOk);
  disk_->SetReadOnly(false);
  EXPECT_EQ(Run(At(IoKind::kRemove, 1)), Code::kOk);
}

TEST_F(MemoryDiskTest, StoppingLetsExactlySoManyRequestsTakeEffect) {
  for (uint64_t stop = 0; stop <= 4; ++stop) {
    media_ = std::make_shared<MemoryMedia>();
    Mount({});
    disk_->StopAfter(stop);
    IoGroup* first = Start({Create(1, kPageBytes), At(IoKind::kWrite, 1, 0, Buffer(1, 5))});
    IoGroup* second = Start({Create(2), At(IoKind::kRemove, 1)});
    executor_.RunAll();
    EXPECT_EQ(disk_->requests_done(), stop);
    EXPECT_EQ(Completed(first), stop >= 2);
    EXPECT_EQ(Completed(second), stop >= 4);
    EXPECT_EQ(media_->Exists(1), stop >= 1 && stop < 4);
    if (media_->Exists(1)) {
      EXPECT_EQ(Sectors(1, 5, 0), stop >= 2 ? 8u : 0u);
    }
    EXPECT_EQ(media_->Exists(2), stop >= 3);
  }
}

TEST_F(MemoryDiskTest, ACrashTearsWhatWasNotComplete) {
  MakeFile(1, 1);
  std::set<size_t> outcomes;
  const std::shared_ptr<MemoryMedia> before = media_->Clone();
  for (uint64_t seed = 0; seed < 30; ++seed) {
    media_ = before->Clone();
    Mount({});
    IoGroup* group = Start({At(IoKind::kWrite, 1, 0, Buffer(64, 2))});
    SeededRandom random(seed);
    disk_->Crash(&random);
    executor_.RunAll();
    EXPECT_FALSE(Completed(group));
    outcomes.insert(Sectors(1, 2, 1));
    IoGroup* late = Start({At(IoKind::kRead, 1, 0, Buffer(1, 0))});
    executor_.RunAll();
    EXPECT_FALSE(Completed(late));
    EXPECT_EQ(disk_->List().status().code(), Code::kUnavailable);
  }
  EXPECT_TRUE(outcomes.contains(0));
  EXPECT_TRUE(outcomes.contains(kFileBytes / kSectorBytes));
  EXPECT_GT(outcomes.size(), 2u);
  media_ = before;
  EXPECT_EQ(Sectors(1, 1, 0), kFileBytes / kSectorBytes);  // The clones did not touch it.
}

TEST_F(MemoryDiskTest, ACrashLeavesCreatesAndRemovesDoneHalfDoneOrUndone) {
  std::set<uint64_t> sizes;
  std::set<bool> removed;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    media_ = std::make_shared<MemoryMedia>();
    ASSERT_TRUE(media_->Create(2, kPageBytes).ok());
    Mount({});
    Start({Create(1, 2 * kPageBytes), At(IoKind::kRemove, 2), At(IoKind::kSync, 2)});
    SeededRandom random(seed);
    disk_->Crash(&random);
    sizes.insert(media_->Exists(1) ? 1 + media_->Size(1) : 0);
    removed.insert(!media_->Exists(2));
  }
  EXPECT_EQ(sizes, (std::set<uint64_t>{0, 1, 1 + kPageBytes, 1 + 2 * kPageBytes}));
  EXPECT_EQ(removed, (std::set<bool>{false, true}));
}

TEST_F(MemoryDiskTest, PowerLossUndoesOnlyWhatWasNotSynced) {
  media_->set_reorder_until_sync(true);
  MakeFile(1, 1);
  ASSERT_EQ(Run(At(IoKind::kSync, 1)), Code::kOk);
  std::set<size_t> outcomes;
  const std::shared_ptr<MemoryMedia> before = media_->Clone();
  for (uint64_t seed = 0; seed < 30; ++seed) {
    media_ = before->Clone();
    Mount({});
    ASSERT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(64, 2))), Code::kOk);
    SeededRandom random(seed);
    disk_->PowerLoss(&random);
    outcomes.insert(Sectors(1, 2, 1));
  }
  EXPECT_TRUE(outcomes.contains(0));
  EXPECT_TRUE(outcomes.contains(kFileBytes / kSectorBytes));
  EXPECT_GT(outcomes.size(), 2u);

  media_ = before->Clone();
  Mount({});
  ASSERT_EQ(Run(At(IoKind::kWrite, 1, 0, Buffer(64, 2))), Code::kOk);
  ASSERT_EQ(Run(At(IoKind::kSync, 1)), Code::kOk);
  SeededRandom random(1);
  disk_->PowerLoss(&random);
  EXPECT_EQ(Sectors(1, 2, 1), kFileBytes / kSectorBytes);
}

TEST_F(MemoryDiskTest, WithoutReorderingPowerLossKeepsWhatWasComplete) {
  MakeFile(1, 1);
  SeededRandom random(4);
  disk_->PowerLoss(&random);
  EXPECT_EQ(Sectors(1, 1, 0), kFileBytes / kSectorBytes);
}

TEST_F(MemoryDiskTest, LatencyAndBandwidthDelayTheCompletion) {
  MakeFile(1, 1);
  MemoryDiskOptions options;
  options.latency_nanos = 1000;
  options.bytes_per_second = kPageBytes * 1'000'000;  // A microsecond for a page.
  Mount(options);
  IoGroup* first = Start({At(IoKind::kRead, 1, 0, Buffer(2, 0))});
  IoGroup* second = Start({At(IoKind::kRead, 1, 0, Buffer(1, 0))});
  executor_.AdvanceAndRun(2999);
  EXPECT_FALSE(Completed(first));
  executor_.AdvanceAndRun(1);
  EXPECT_TRUE(Completed(first));
  executor_.AdvanceAndRun(999);
  EXPECT_FALSE(Completed(second));
  executor_.AdvanceAndRun(1);
  EXPECT_TRUE(Completed(second));
}

TEST_F(MemoryDiskTest, ShuffledAndJitteredDisksAreTheSameForTheSameSeed) {
  const auto trace = [this](uint64_t seed) {
    SeededRandom random(seed);
    MemoryDiskOptions options;
    options.shuffle = true;
    options.jitter_nanos = 1000;
    options.random = &random;
    media_ = std::make_shared<MemoryMedia>();
    Mount(options);
    std::vector<uint32_t> order;
    disk_->SetFault([&order](const IoRequest& request) {
      order.push_back(request.file);
      return Status();
    });
    Start({Create(0), Create(1), Create(2), Create(3)});
    Start({Create(4), Create(5), Create(6), Create(7)});
    executor_.AdvanceAndRun(1000);
    disk_->SetFault(nullptr);
    EXPECT_EQ(order.size(), 8u);
    return order;
  };
  EXPECT_EQ(trace(1), trace(1));
  EXPECT_NE(trace(1), trace(2));
}

TEST_F(MemoryDiskTest, TheDestructorLetsWaitingRequestsTakeEffectOnce) {
  IoGroup* group = Start({Create(1)});
  disk_.reset();
  EXPECT_TRUE(media_->Exists(1));
  EXPECT_FALSE(Completed(group));
  executor_.RunAll();  // The task of the disk that is gone runs as well.
  EXPECT_TRUE(Completed(group));
}

TEST_F(MemoryDiskTest, TheBytesOfAFileCanBeDamagedByHand) {
  MakeFile(1, 1);
  MakeFile(2, 2);
  media_->SwapRanges(1, 100, 2, 70'000, 10);
  EXPECT_EQ(media_->Bytes(1, 100, 1)[0], std::byte{2});
  EXPECT_EQ(media_->Bytes(2, 70'009, 1)[0], std::byte{1});
  EXPECT_EQ(media_->Bytes(2, 70'010, 1)[0], std::byte{2});
  media_->FlipBit(1, 5, 7);
  EXPECT_EQ(media_->Bytes(1, 5, 1)[0], std::byte{0x81});
  media_->Truncate(1, kPageBytes);
  EXPECT_EQ(Run(At(IoKind::kRead, 1, 0, Buffer(2, 0))), Code::kNotFound);
}

TEST_F(MemoryDiskTest, ItSaysWhatItIsAndDid) {
  EXPECT_EQ(disk_->Describe(), "memory (memory)");
  MakeFile(1, 1);
  EXPECT_EQ(Run(At(IoKind::kRead, 1, 0, Buffer(1, 0))), Code::kOk);
  EXPECT_EQ(disk_->stats().requests, 3u);
  EXPECT_EQ(disk_->stats().bytes_written, kFileBytes);
  EXPECT_EQ(disk_->stats().bytes_read, kPageBytes);
}

}  // namespace
}  // namespace aquifer
