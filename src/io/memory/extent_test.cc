#include "io/memory/extent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "io/memory/bus_guard.h"
#include "io/memory/system_extents.h"
#include "testing/failing_calls.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t AllocatedBytes(int fd) {
  struct stat stat = {};
  EXPECT_EQ(::fstat(fd, &stat), 0);
  return static_cast<uint64_t>(stat.st_blocks) * 512;
}

TEST(ExtentTest, EveryPageIsThereZeroAndWritable) {
  auto extent = SystemExtentSource()->New(4 * kMiB);
  ASSERT_TRUE(extent.ok()) << extent.status().ToString();
  const std::span<std::byte> bytes = (*extent)->bytes();
  ASSERT_EQ(bytes.size(), 4 * kMiB);
  EXPECT_EQ(AllocatedBytes((*extent)->descriptor()), 4 * kMiB);
  for (size_t i = 0; i < bytes.size(); i += 4096) EXPECT_EQ(bytes[i], std::byte{0});
  bytes.front() = std::byte{1};
  bytes.back() = std::byte{2};
  std::byte shared{0};
  ASSERT_EQ(::pread((*extent)->descriptor(), &shared, 1, 4 * kMiB - 1), 1);
  EXPECT_EQ(shared, std::byte{2});
}

TEST(ExtentTest, NobodyCanResizeItOrUnseal) {
  auto extent = SystemExtentSource()->New(kMiB);
  ASSERT_TRUE(extent.ok());
  const int fd = (*extent)->descriptor();
  EXPECT_NE(::ftruncate(fd, 0), 0);
  EXPECT_NE(::ftruncate(fd, 2 * kMiB), 0);
  EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(::fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
}

// A client may be reading it when the node goes.
TEST(ExtentTest, AnExtentThatKeepsItsContentsHasThemForItsMappers) {
  auto extent = SystemExtentSource()->New(kMiB);
  ASSERT_TRUE(extent.ok());
  void* const mapped = ::mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, (*extent)->descriptor(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  (*extent)->bytes()[4096] = std::byte{7};
  (*extent)->KeepContents();
  extent->reset();
  EXPECT_EQ(static_cast<const std::byte*>(mapped)[4096], std::byte{7});
  ASSERT_EQ(::munmap(mapped, kMiB), 0);
}

TEST(ExtentTest, AMappingThatIsKeptHoldsNoMemory) {
  auto extent = SystemExtentSource()->New(kMiB);
  ASSERT_TRUE(extent.ok());
  const int kept = ::dup((*extent)->descriptor());
  void* mapping = ::mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, kept, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  (*extent)->bytes()[0] = std::byte{9};
  {
    const auto gone = *std::move(extent);
  }
  EXPECT_EQ(AllocatedBytes(kept), 0u);
  EXPECT_EQ(*static_cast<std::byte*>(mapping), std::byte{0});  // A page of zeros, not our bytes.
  ::munmap(mapping, kMiB);
  ::close(kept);
}

TEST(ExtentTest, AHoleThatAMapperPunchedDoesNotBringTheProcessDown) {
  auto extent = SystemExtentSource()->New(2 * kMiB);
  ASSERT_TRUE(extent.ok());
  ASSERT_EQ(
      ::fallocate((*extent)->descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 2 * kMiB),
      0);
  // Small pages come back as zeros, huge ones raise SIGBUS when the pool is empty.
  const Status status = GuardBusErrors([&] { (*extent)->bytes()[0] = std::byte{1}; });
  EXPECT_TRUE(status.ok() || status.code() == Code::kCorrupt);
}

TEST(ExtentTest, OddSizesAreRefused) {
  EXPECT_EQ(SystemExtentSource()->New(0).status().code(), Code::kInvalid);
  EXPECT_EQ(SystemExtentSource()->New(5000).status().code(), Code::kInvalid);
}

class ShortMemoryTest : public testing::Test {
 protected:
  // A host of which the kernel says this.
  std::unique_ptr<ExtentSource> Source(uint64_t available_kib, uint64_t free_huge_pages) {
    std::filesystem::create_directories(scratch_.Sub("huge"));
    std::ofstream(scratch_.Sub("meminfo")) << "MemAvailable: " << available_kib << " kB\n";
    std::ofstream(scratch_.Sub("huge/free_hugepages")) << free_huge_pages << "\n";
    return NewSystemExtents({.proc = scratch_.path(),
                             .cgroup = scratch_.Sub("none"),
                             .huge_pages = scratch_.Sub("huge")});
  }

  void ExpectNoSpaceWhere(const FailingCall& failing, const std::string& step) {
    const auto source = Source(1 << 20, 0);
    if (!RunWhereCallFails(failing, [&] {
          const auto extent = source->New(kMiB);
          EXPECT_EQ(extent.status().code(), Code::kNoSpace);
          EXPECT_NE(extent.status().message().find(step), std::string::npos)
              << extent.status().message();
        })) {
      GTEST_SKIP() << "no system call filters on this host";
    }
  }

  ScratchDirectory scratch_;
};

TEST_F(ShortMemoryTest, MoreThanIsAvailableIsRefused) {
  const auto source = Source(1024, 0);
  EXPECT_EQ(source->AvailableBytes(), kMiB);
  EXPECT_TRUE(source->New(kMiB).ok());
  EXPECT_EQ(source->New(kMiB + 4096).status().code(), Code::kNoSpace);
}

TEST_F(ShortMemoryTest, HugePagesThatTurnOutToBeGoneAreReplacedBySmallOnes) {
  const auto source = Source(1 << 20, 1'000'000'000);  // More than any pool has.
  auto extent = source->New(uint64_t{4} << 20);
  ASSERT_TRUE(extent.ok()) << extent.status().ToString();
}

TEST_F(ShortMemoryTest, HugePagesAreUsedWhereThePoolHasThem) {
  if (FreeHugePageBytes({}) < 2 * kMiB) GTEST_SKIP() << "the pool of huge pages is empty";
  auto extent = SystemExtentSource()->New(2 * kMiB);
  ASSERT_TRUE(extent.ok());
  EXPECT_TRUE((*extent)->huge_pages());
  (*extent)->bytes().back() = std::byte{1};
}

TEST_F(ShortMemoryTest, WithoutAMemfdThereIsNoSpace) {
  ExpectNoSpaceWhere({.call = SYS_memfd_create, .error = EMFILE}, "memfd_create");
}

TEST_F(ShortMemoryTest, AnExtentThatCannotBeSizedIsNoSpace) {
  ExpectNoSpaceWhere({.call = SYS_ftruncate, .error = EFBIG}, "ftruncate");
}

TEST_F(ShortMemoryTest, PagesThatAreNotThereAreNoSpace) {
  ExpectNoSpaceWhere({.call = SYS_fallocate, .error = ENOSPC}, "fallocate");
}

TEST_F(ShortMemoryTest, AnExtentThatCannotBeSealedIsNoSpace) {
  ExpectNoSpaceWhere({.call = SYS_fcntl, .error = EPERM, .argument = 1, .mask = 1024}, "sealing");
}

TEST_F(ShortMemoryTest, AnExtentThatCannotBeMappedIsNoSpace) {
  ExpectNoSpaceWhere({.call = SYS_mmap, .error = ENOMEM, .argument = 3, .mask = MAP_SHARED},
                     "mmap");
}

TEST_F(ShortMemoryTest, PagesThatCannotBePopulatedAreNoSpace) {
  // 16 | 7 are the bits of MADV_POPULATE_WRITE; MADV_DONTDUMP is 16.
  ExpectNoSpaceWhere({.call = SYS_madvise, .error = EFAULT, .argument = 2, .mask = 7},
                     "MADV_POPULATE_WRITE");
}

TEST_F(ShortMemoryTest, AnExtentThatCannotBeKeptOutOfCoreDumpsIsNotUsed) {
  ExpectNoSpaceWhere({.call = SYS_madvise, .error = EINVAL, .argument = 2, .mask = 16},
                     "MADV_DONTDUMP");
}

TEST_F(ShortMemoryTest, AKernelThatMakesNoHugePagesGivesSmallOnes) {
  const auto source = Source(1 << 20, 0);
  // Of all the advice that an extent takes, only MADV_COLLAPSE has the bit 8; EAGAIN is tried
  // again.
  for (const int error : {EINVAL, EAGAIN, ENOMEM}) {
    if (!RunWhereCallFails({.call = SYS_madvise, .error = error, .argument = 2, .mask = 8}, [&] {
          auto extent = source->New(4 * kMiB);
          ASSERT_TRUE(extent.ok()) << extent.status().ToString();
          EXPECT_FALSE((*extent)->huge_pages());
          EXPECT_EQ(AllocatedBytes((*extent)->descriptor()), 4 * kMiB);
        })) {
      GTEST_SKIP() << "no system call filters on this host";
    }
  }
}

TEST_F(ShortMemoryTest, AKernelThatCannotPopulateIsFine) {
  const auto source = Source(1 << 20, 0);
  if (!RunWhereCallFails({.call = SYS_madvise, .error = EINVAL, .argument = 2, .mask = 7},
                         [&] { EXPECT_TRUE(source->New(kMiB).ok()); })) {
    GTEST_SKIP() << "no system call filters on this host";
  }
}

}  // namespace
}  // namespace aquifer
