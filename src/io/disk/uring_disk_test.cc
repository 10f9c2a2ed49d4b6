// Promises of the io_uring engine alone. Not built without it.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/disk/ring.h"
#include "testing/disk_requests.h"
#include "testing/failing_calls.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

class UringDiskTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!ProbeUring().ok()) GTEST_SKIP() << ProbeUring().message();
  }

  std::unique_ptr<Disk> Open(uint32_t queue_depth) {
    DiskOptions options;
    options.directory = scratch_.path();
    options.engine = DiskEngine::kUring;
    options.queue_depth = queue_depth;
    auto disk = OpenDisk(options, executor_.get());
    EXPECT_TRUE(disk.ok()) << disk.status().ToString();
    return *std::move(disk);
  }

  ScratchDirectory scratch_;
  std::unique_ptr<ThreadExecutor> executor_ = NewTestExecutor();
};

TEST_F(UringDiskTest, AGroupCostsLessThanOneSystemCallForEachRequest) {
  const auto disk = Open(64);
  ASSERT_TRUE(RunRequest(disk.get(), CreateRequest(1, 64 * kPageBytes)).ok());
  const AlignedBytes target(64 * kPageBytes);
  std::vector<IoRequest> reads;
  for (uint64_t at = 0; at < target.span().size(); at += kPageBytes) {
    reads.push_back(DataRequest(IoKind::kRead, 1, at, target.span().subspan(at, kPageBytes)));
  }
  const uint64_t before = disk->stats().submit_calls;
  for (const Status& status : RunGroup(disk.get(), reads)) EXPECT_TRUE(status.ok());
  // One call submits all. In the worst case each completion then wakes us by itself; the rest is
  // the wake-up and its answer.
  EXPECT_LE(disk->stats().submit_calls - before, reads.size() + 4);
}

TEST_F(UringDiskTest, ASleepingDiskIsWokenAtASmallPrice) {
  const auto disk = Open(8);
  ASSERT_TRUE(RunRequest(disk.get(), CreateRequest(1, kPageBytes)).ok());
  const AlignedBytes page(kPageBytes);
  const IoRequest read = DataRequest(IoKind::kRead, 1, 0, page.span());
  const uint64_t before = disk->stats().submit_calls;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(RunRequest(disk.get(), read).ok());
  // Each: a write to the eventfd, a call that takes it and submits, and one that waits.
  EXPECT_LE(disk->stats().submit_calls - before, 100u * 4);
}

TEST_F(UringDiskTest, ManyFilesMayBeUsedThroughOneTable) {
  const auto disk = Open(4);
  constexpr uint32_t kFiles = 300;
  const AlignedBytes source(kPageBytes, 1);
  std::vector<IoRequest> creates;
  std::vector<IoRequest> writes;
  for (uint32_t file = 0; file < kFiles; ++file) {
    creates.push_back(CreateRequest(file, kPageBytes));
    writes.push_back(DataRequest(IoKind::kWrite, file, 0, source.span()));
  }
  for (const Status& status : RunGroup(disk.get(), creates)) ASSERT_TRUE(status.ok());
  for (const Status& status : RunGroup(disk.get(), writes)) ASSERT_TRUE(status.ok());
  const AlignedBytes target(kPageBytes);
  ASSERT_TRUE(RunRequest(disk.get(), DataRequest(IoKind::kRead, 299, 0, target.span())).ok());
  EXPECT_EQ(source, target);
}

TEST_F(UringDiskTest, AKernelWithoutTablesWorks) {
  // 5 has a bit of each call that registers files or memory, and none of the probe.
  if (!RunWhereCallFails(
          {.call = SYS_io_uring_register, .error = EINVAL, .argument = 1, .mask = 5}, [this] {
            const auto disk = Open(8);
            const AlignedBytes source(kPageBytes, 5);
            const AlignedBytes target(kPageBytes);
            disk->Remember(source.span());
            ASSERT_TRUE(RunRequest(disk.get(), CreateRequest(1, kPageBytes)).ok());
            ASSERT_TRUE(
                RunRequest(disk.get(), DataRequest(IoKind::kWrite, 1, 0, source.span())).ok());
            ASSERT_TRUE(
                RunRequest(disk.get(), DataRequest(IoKind::kRead, 1, 0, target.span())).ok());
            EXPECT_EQ(source, target);
            disk->Forget(source.span());
          })) {
    GTEST_SKIP() << "no system call filters on this host";
  }
}

TEST_F(UringDiskTest, AKernelThatCannotSayWhatItKnowsIsTooOld) {
  if (!RunWhereCallFails({.call = SYS_io_uring_register, .error = EINVAL, .argument = 1, .mask = 8},
                         [] {
                           EXPECT_EQ(ProbeUring().code(), Code::kUnavailable);
                           EXPECT_NE(ProbeUring().message().find("too old"), std::string::npos);
                         })) {
    GTEST_SKIP() << "no system call filters on this host";
  }
}

TEST_F(UringDiskTest, ARingKnowsWhatItRemembers) {
  auto opened = Ring::Open(4, 4);
  ASSERT_TRUE(opened.ok());
  Ring& ring = **opened;
  const AlignedBytes memory(16 * kPageBytes);
  const auto whole = memory.span();
  EXPECT_FALSE(ring.Find(whole).has_value());
  ring.Remember(whole.subspan(4 * kPageBytes, 8 * kPageBytes));
  if (!ring.Find(whole.subspan(4 * kPageBytes, kPageBytes)).has_value()) {
    GTEST_SKIP() << "this kernel or limit allows no registered memory";
  }
  EXPECT_TRUE(ring.Find(whole.subspan(11 * kPageBytes, kPageBytes)).has_value());
  EXPECT_FALSE(ring.Find(whole.subspan(11 * kPageBytes, 2 * kPageBytes)).has_value());
  EXPECT_FALSE(ring.Find(whole.subspan(12 * kPageBytes, kPageBytes)).has_value());
  EXPECT_FALSE(ring.Find(whole.subspan(3 * kPageBytes, 2 * kPageBytes)).has_value());
  EXPECT_FALSE(ring.Find(whole.first(kPageBytes)).has_value());
  ring.Remember(whole.first(kPageBytes));
  EXPECT_NE(ring.Find(whole.first(kPageBytes)),
            ring.Find(whole.subspan(4 * kPageBytes, kPageBytes)));
  ring.Forget(whole.subspan(4 * kPageBytes, 8 * kPageBytes));
  EXPECT_FALSE(ring.Find(whole.subspan(4 * kPageBytes, kPageBytes)).has_value());
  EXPECT_TRUE(ring.Find(whole.first(kPageBytes)).has_value());
}

// The memory itself is registered: a mapping put in its place without a word gets nothing.
TEST_F(UringDiskTest, RememberedMemoryIsReadIntoAsItWasRegistered) {
  const auto disk = Open(8);
  ASSERT_TRUE(RunRequest(disk.get(), CreateRequest(1, kPageBytes)).ok());
  const AlignedBytes source(kPageBytes, 9);
  ASSERT_TRUE(RunRequest(disk.get(), DataRequest(IoKind::kWrite, 1, 0, source.span())).ok());
  const auto map = [](void* at, int fixed) {
    return ::mmap(at, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1,
                  0);
  };
  void* const where = map(nullptr, 0);
  ASSERT_NE(where, MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(where), kPageBytes);
  auto ring = Ring::Open(4, 4);
  ASSERT_TRUE(ring.ok());
  (*ring)->Remember(memory);
  if (!(*ring)->Find(memory).has_value()) {
    GTEST_SKIP() << "this kernel or limit allows no registered memory";
  }
  const IoRequest read = DataRequest(IoKind::kRead, 1, 0, memory);
  disk->Remember(memory);
  ASSERT_TRUE(RunRequest(disk.get(), read).ok());
  EXPECT_TRUE(std::equal(memory.begin(), memory.end(), source.span().begin()));
  ASSERT_EQ(map(where, MAP_FIXED), where);
  ASSERT_TRUE(RunRequest(disk.get(), read).ok());
  EXPECT_TRUE(
      std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == std::byte{}; }));
  disk->Forget(memory);
  ::munmap(where, kPageBytes);
}

TEST_F(UringDiskTest, MemoryMappedAnewWhereForgottenMemoryWasIsNotMistaken) {
  const auto disk = Open(8);
  ASSERT_TRUE(RunRequest(disk.get(), CreateRequest(1, kPageBytes)).ok());
  const AlignedBytes source(kPageBytes, 9);
  ASSERT_TRUE(RunRequest(disk.get(), DataRequest(IoKind::kWrite, 1, 0, source.span())).ok());
  void* where =
      ::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(where, MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(where), kPageBytes);
  const IoRequest read = DataRequest(IoKind::kRead, 1, 0, memory);
  disk->Remember(memory);
  ASSERT_TRUE(RunRequest(disk.get(), read).ok());
  disk->Forget(memory);
  ASSERT_EQ(::mmap(where, kPageBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            where);
  ASSERT_TRUE(RunRequest(disk.get(), read).ok());
  EXPECT_TRUE(std::equal(memory.begin(), memory.end(), source.span().begin()));
  ::munmap(where, kPageBytes);
}

}  // namespace
}  // namespace aquifer
