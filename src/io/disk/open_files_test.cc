#include "io/disk/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <set>
#include <string>
#include <vector>

#include "io/disk/disk_directory.h"
#include "testing/failing_calls.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

class OpenFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    DiskOptions options;
    options.directory = scratch_.path();
    auto directory = DiskDirectory::Open(options);
    ASSERT_TRUE(directory.ok()) << directory.status().ToString();
    directory_ = *std::move(directory);
    for (uint32_t i = 0; i < 4; ++i)
      ASSERT_TRUE(directory_->CreateFile(i, (i + 1) * kPageBytes).ok());
  }

  // As the owner of `files` sees the slots.
  OpenFiles::OnChange Watch() {
    return [this](const OpenFile& file, OpenFiles::Change change) {
      EXPECT_TRUE(file.descriptor.valid());
      if (change == OpenFiles::Change::kOpened) {
        EXPECT_TRUE(slots_.insert(file.slot).second);
      } else {
        EXPECT_EQ(slots_.erase(file.slot), 1u);
      }
    };
  }

  ScratchDirectory scratch_;
  std::unique_ptr<DiskDirectory> directory_;
  std::set<size_t> slots_;
};

TEST_F(OpenFilesTest, AFileIsOpenedOnceAndKnowsItsSize) {
  OpenFiles files(directory_.get(), 4, Watch());
  OpenFile* first = *files.Acquire(2);
  OpenFile* second = *files.Acquire(2);
  EXPECT_EQ(first, second);
  EXPECT_EQ(first->bytes, 3 * kPageBytes);
  EXPECT_EQ(files.open(), 1u);
  files.Release(first);
  files.Release(second);
  EXPECT_EQ(files.open(), 1u);
}

TEST_F(OpenFilesTest, TheLeastRecentlyUsedIsClosedWhenThereAreTooMany) {
  OpenFiles files(directory_.get(), 2, Watch());
  const auto touch = [&files](uint32_t number) { files.Release(*files.Acquire(number)); };
  touch(0);
  touch(1);
  touch(0);
  touch(2);  // In place of 1.
  EXPECT_EQ(files.open(), 2u);
  OpenFile* zero = *files.Acquire(0);
  OpenFile* two = *files.Acquire(2);
  EXPECT_EQ(slots_.size(), 2u);
  EXPECT_NE(zero->slot, two->slot);
  files.Release(two);
  OpenFile* three = *files.Acquire(3);  // 0 is in use.
  EXPECT_EQ(three->number, 3u);
  EXPECT_EQ(zero->number, 0u);
  files.Release(zero);
  files.Release(three);
}

TEST_F(OpenFilesTest, ADroppedFileIsOpenedAnewWhileItsUsersKeepTheOldOne) {
  OpenFiles files(directory_.get(), 4, Watch());
  OpenFile* old = *files.Acquire(1);
  ASSERT_TRUE(directory_->CreateFile(1, 9 * kPageBytes).ok());
  files.Drop(1);
  EXPECT_TRUE(old->descriptor.valid());
  OpenFile* fresh = *files.Acquire(1);
  EXPECT_NE(fresh, old);
  EXPECT_EQ(fresh->bytes, 9 * kPageBytes);
  EXPECT_EQ(files.open(), 2u);
  files.Release(old);
  EXPECT_EQ(files.open(), 1u);
  files.Release(fresh);
  files.Drop(1);
  EXPECT_EQ(files.open(), 0u);
  files.Drop(1);  // Nothing to drop.
}

TEST_F(OpenFilesTest, AFileThatIsNotThereIsNotFound) {
  OpenFiles files(directory_.get(), 4, Watch());
  EXPECT_EQ(files.Acquire(77).status().code(), Code::kNotFound);
  EXPECT_EQ(files.open(), 0u);
}

TEST_F(OpenFilesTest, WithoutDescriptorsOurOwnIdleFilesMakeRoom) {
  OpenFiles files(directory_.get(), 4, Watch());
  files.Release(*files.Acquire(0));
  OpenFile* used = *files.Acquire(1);
  const bool ran = RunWhereCallFails({.call = SYS_openat, .error = EMFILE}, [&] {
    EXPECT_EQ(files.Acquire(2).status().code(), Code::kBusy);
  });
  if (!ran) {
    files.Release(used);
    GTEST_SKIP() << "no system call filters on this host";
  }
  EXPECT_EQ(files.open(), 1u);  // The idle one was closed, the used one not.
  files.Release(used);
}

TEST_F(OpenFilesTest, ADiskMayAlwaysHaveAsManyFilesOpenAsRequests) {
  EXPECT_GT(OpenFiles::MaxOpen(4096), 4096u);
  EXPECT_GE(OpenFiles::MaxOpen(1), 2u);
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_LE(OpenFiles::MaxOpen(1), std::max<size_t>(limit.rlim_cur, 2));
}

}  // namespace
}  // namespace aquifer
