// Promises of disks that stand on a real directory: locks, full and failing file systems, hosts
// without io_uring.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "io/disk/disk.h"
#include "io/disk/disk_directory.h"
#include "testing/disk_requests.h"
#include "testing/failing_calls.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr char kNoFilters[] = "no system call filters on this host";

// A file system of a test's own, of 4 MiB.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(const std::string& path) : path_(path) {
    std::filesystem::create_directories(path);
    mounted_ = ::mount("none", path.c_str(), "tmpfs", 0, "size=4m") == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }

  bool mounted() const { return mounted_; }
  bool MakeReadOnly() {
    return ::mount("none", path_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  const std::string path_;
  bool mounted_ = false;
};

class OpenDiskTest : public testing::TestWithParam<DiskEngine> {
 protected:
  void SetUp() override {
    if (GetParam() == DiskEngine::kUring && !ProbeUring().ok()) {
      GTEST_SKIP() << ProbeUring().message();
    }
  }

  DiskOptions Options() const {
    DiskOptions options;
    options.directory = scratch_.Sub("disk");
    options.engine = GetParam();
    return options;
  }

  Result<std::unique_ptr<Disk>> Open() { return OpenDisk(Options(), executor_.get()); }

  ScratchDirectory scratch_;
  std::unique_ptr<ThreadExecutor> executor_ = NewTestExecutor();
};

TEST_P(OpenDiskTest, MissingDirectoriesAreMade) {
  DiskOptions options = Options();
  options.directory = scratch_.Sub("a/b/c");
  ASSERT_TRUE(OpenDisk(options, executor_.get()).ok());
  EXPECT_TRUE(std::filesystem::is_directory(options.directory));
}

TEST_P(OpenDiskTest, AFileInTheWayIsSaid) {
  std::ofstream(scratch_.Sub("disk")) << "x";
  const auto disk = Open();
  EXPECT_EQ(disk.status().code(), Code::kUnavailable);
  EXPECT_THAT(disk.status().message(), HasSubstr("cannot be made"));
}

TEST_P(OpenDiskTest, ANameThatLeadsNowhereIsSaid) {
  DiskOptions options = Options();
  options.directory = scratch_.Sub("loop");
  std::filesystem::create_symlink("loop", options.directory);
  EXPECT_EQ(OpenDisk(options, executor_.get()).status().code(), Code::kUnavailable);
  options.directory = scratch_.Sub(std::string(256, 'n'));  // No file has such a long name.
  EXPECT_EQ(OpenDisk(options, executor_.get()).status().code(), Code::kUnavailable);
}

TEST_P(OpenDiskTest, ADirectoryHasOneUserInThisProcess) {
  auto first = Open();
  ASSERT_TRUE(first.ok());
  const auto second = Open();
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(second.status().message(),
              HasSubstr("in use by this process; stop it or choose another directory"));
  {
    const auto gone = *std::move(first);
  }
  EXPECT_TRUE(Open().ok());
}

TEST_P(OpenDiskTest, OddOptionsAreInvalid) {
  DiskOptions options = Options();
  options.directory = "";
  EXPECT_EQ(OpenDisk(options, executor_.get()).status().code(), Code::kInvalid);
  options = Options();
  options.prefix = "../";
  EXPECT_EQ(OpenDisk(options, executor_.get()).status().code(), Code::kInvalid);
  for (const uint32_t depth : {0u, 1'000'000u}) {
    options = Options();
    options.queue_depth = depth;
    EXPECT_EQ(OpenDisk(options, executor_.get()).status().code(), Code::kInvalid);
  }
  options = Options();
  options.max_queued = 0;
  EXPECT_EQ(OpenDisk(options, executor_.get()).status().code(), Code::kInvalid);
}

TEST_P(OpenDiskTest, ForeignFilesAreNotListed) {
  auto disk = Open();
  ASSERT_TRUE(disk.ok());
  ASSERT_TRUE(RunRequest(disk->get(), CreateRequest(12, kPageBytes)).ok());
  for (const char* name : {"segment-12.aq", "segment-x0000001.aq", "segment-00000001.aq~", "other",
                           "segment-.aq", "segment-99999999999.aq", "00000003.aq"}) {
    std::ofstream(scratch_.Sub("disk/") + name) << "x";
  }
  std::filesystem::create_directory(scratch_.Sub("disk/segment-00000002.aq"));
  std::filesystem::create_symlink("other", scratch_.Sub("disk/segment-00000003.aq"));
  const auto list = (*disk)->List();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ((*list)[0].number, 12u);
  EXPECT_TRUE(std::filesystem::exists(scratch_.Sub("disk/segment-00000012.aq")));
}

TEST_P(OpenDiskTest, AFailingFileIsSaidWithItsNameAndTheReason) {
  auto disk = Open();
  ASSERT_TRUE(disk.ok());
  ASSERT_TRUE(RunRequest(disk->get(), CreateRequest(1, kMiB)).ok());
  // Memory that nobody may touch stands for a device that fails: the kernel refuses in the middle.
  void* memory = ::mmap(nullptr, kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::span<std::byte> data(static_cast<std::byte*>(memory), kMiB);
  const Status read = RunRequest(disk->get(), DataRequest(IoKind::kRead, 1, 0, data));
  EXPECT_EQ(read.code(), Code::kUnavailable);
  EXPECT_EQ(read.message(),
            "cannot read " + scratch_.Sub("disk/segment-00000001.aq") + ": Bad address");
  const Status write = RunRequest(disk->get(), DataRequest(IoKind::kWrite, 1, 0, data));
  EXPECT_EQ(write.code(), Code::kUnavailable);
  (*disk)->Remember(data);  // Cannot be; is ignored.
  EXPECT_EQ(RunRequest(disk->get(), DataRequest(IoKind::kRead, 1, 0, data)).code(),
            Code::kUnavailable);
  ::munmap(memory, kMiB);
  const AlignedBytes page(kPageBytes);
  EXPECT_TRUE(RunRequest(disk->get(), DataRequest(IoKind::kRead, 1, 0, page.span())).ok());
}

TEST_P(OpenDiskTest, ADirectoryInPlaceOfAFileFailsEveryRequest) {
  std::filesystem::create_directories(scratch_.Sub("disk/segment-00000001.aq"));
  auto disk = Open();
  ASSERT_TRUE(disk.ok());
  const AlignedBytes page(kPageBytes);
  for (const IoRequest& request :
       {DataRequest(IoKind::kRead, 1, 0, page.span()), FileRequest(IoKind::kSync, 1),
        CreateRequest(1, kMiB), FileRequest(IoKind::kRemove, 1)}) {
    const Status status = RunRequest(disk->get(), request);
    EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("segment-00000001.aq: Is a directory"));
  }
}

TEST_P(OpenDiskTest, AFileThatSomebodyCutEndsEarly) {
  auto disk = Open();
  ASSERT_TRUE(disk.ok());
  ASSERT_TRUE(RunRequest(disk->get(), CreateRequest(1, kMiB)).ok());
  const AlignedBytes bytes(kMiB);
  const IoRequest read = DataRequest(IoKind::kRead, 1, 0, bytes.span());
  ASSERT_TRUE(RunRequest(disk->get(), read).ok());
  std::filesystem::resize_file(scratch_.Sub("disk/segment-00000001.aq"), 3 * kPageBytes + 100);
  EXPECT_EQ(RunRequest(disk->get(), read).code(), Code::kNotFound);
  std::filesystem::resize_file(scratch_.Sub("disk/segment-00000001.aq"), 3 * kPageBytes);
  EXPECT_EQ(RunRequest(disk->get(), read).code(), Code::kNotFound);
}

TEST_P(OpenDiskTest, AFullFileSystemRefusesAFileAndGoesOn) {
  const SmallFileSystem small(scratch_.Sub("disk"));
  if (!small.mounted()) GTEST_SKIP() << "mounting needs root";
  auto disk = Open();
  ASSERT_TRUE(disk.ok()) << disk.status().ToString();
  ASSERT_TRUE(RunRequest(disk->get(), CreateRequest(1, 2 * kMiB)).ok());
  const Status refused = RunRequest(disk->get(), CreateRequest(2, 3 * kMiB));
  EXPECT_EQ(refused.code(), Code::kNoSpace);
  EXPECT_THAT(refused.message(), HasSubstr("segment-00000002.aq: No space left on device"));
  ASSERT_EQ((*disk)->List()->size(), 1u);  // Nothing of it is left.

  // Growing fails as well, and leaves the file as it was.
  const AlignedBytes source(2 * kMiB, 4);
  const AlignedBytes target(2 * kMiB);
  ASSERT_TRUE(RunRequest(disk->get(), DataRequest(IoKind::kWrite, 1, 0, source.span())).ok());
  EXPECT_EQ(RunRequest(disk->get(), CreateRequest(1, 5 * kMiB)).code(), Code::kNoSpace);
  EXPECT_EQ((*(*disk)->List())[0].bytes, 2 * kMiB);
  ASSERT_TRUE(RunRequest(disk->get(), DataRequest(IoKind::kRead, 1, 0, target.span())).ok());
  EXPECT_EQ(source, target);

  // A file that is removed gives its space back at once, although it was open.
  ASSERT_TRUE(RunRequest(disk->get(), FileRequest(IoKind::kRemove, 1)).ok());
  EXPECT_TRUE(RunRequest(disk->get(), CreateRequest(2, 3 * kMiB)).ok());
}

TEST_P(OpenDiskTest, AWriteThatFindsNoSpaceSaysSo) {
  const SmallFileSystem small(scratch_.Sub("disk"));
  if (!small.mounted()) GTEST_SKIP() << "mounting needs root";
  auto disk = Open();
  ASSERT_TRUE(disk.ok()) << disk.status().ToString();
  // A file with holes, such as another program may leave or a copy-on-write file system has.
  std::ofstream(scratch_.Sub("disk/segment-00000001.aq")) << "";
  std::filesystem::resize_file(scratch_.Sub("disk/segment-00000001.aq"), 16 * kMiB);
  const AlignedBytes bytes(8 * kMiB, 1);
  const Status status = RunRequest(disk->get(), DataRequest(IoKind::kWrite, 1, 0, bytes.span()));
  EXPECT_EQ(status.code(), Code::kNoSpace) << status.ToString();
  EXPECT_TRUE(RunRequest(disk->get(), FileRequest(IoKind::kRemove, 1)).ok());
  EXPECT_TRUE(RunRequest(disk->get(), CreateRequest(1, kMiB)).ok());
}

TEST_P(OpenDiskTest, AReadOnlyFileSystemIsRefusedWithAdvice) {
  SmallFileSystem small(scratch_.Sub("disk"));
  if (!small.mounted()) GTEST_SKIP() << "mounting needs root";
  {
    ASSERT_TRUE(Open().ok());
  }  // Leaves a lock file.
  ASSERT_TRUE(small.MakeReadOnly());
  const auto disk = Open();
  EXPECT_EQ(disk.status().code(), Code::kUnavailable);
  EXPECT_THAT(disk.status().message(), HasSubstr("cannot be written to: Read-only file system; "
                                                 "make it writable for this user"));
}

TEST_P(OpenDiskTest, ADirectoryOfAnotherUserIsRefusedWithAdvice) {
  if (!RunWhereCallFails({.call = SYS_openat, .error = EACCES, .argument = 2, .mask = O_CREAT},
                         [this] {
                           const auto disk = Open();
                           EXPECT_EQ(disk.status().code(), Code::kUnavailable);
                           EXPECT_THAT(disk.status().message(),
                                       HasSubstr("cannot be written to: Permission denied"));
                         })) {
    GTEST_SKIP() << kNoFilters;
  }
  if (!RunWhereCallFails(
          {.call = SYS_openat, .error = EACCES, .argument = 2, .mask = O_DIRECTORY}, [this] {
            const auto disk = Open();
            EXPECT_EQ(disk.status().code(), Code::kUnavailable);
            EXPECT_THAT(disk.status().message(), HasSubstr("cannot be opened: Permission denied"));
          })) {
    GTEST_SKIP() << kNoFilters;
  }
}

TEST_P(OpenDiskTest, AFileSystemWithoutLocksIsRefused) {
  if (!RunWhereCallFails({.call = SYS_flock, .error = ENOLCK}, [this] {
        const auto disk = Open();
        EXPECT_EQ(disk.status().code(), Code::kUnavailable);
        EXPECT_THAT(disk.status().message(), HasSubstr("cannot be locked: No locks available; "
                                                       "choose a directory on a local"));
      })) {
    GTEST_SKIP() << kNoFilters;
  }
}

TEST_P(OpenDiskTest, ALockFileThatCannotBeWrittenIsRefused) {
  if (!RunWhereCallFails({.call = SYS_ftruncate, .error = EIO}, [this] {
        const auto disk = Open();
        EXPECT_EQ(disk.status().code(), Code::kUnavailable);
        EXPECT_THAT(disk.status().message(), HasSubstr("cannot write its lock file"));
      })) {
    GTEST_SKIP() << kNoFilters;
  }
}

TEST_P(OpenDiskTest, WithoutDirectIoItGoesThroughThePageCacheAndSaysSo) {
  if (!RunWhereCallFails(
          {.call = SYS_openat, .error = EINVAL, .argument = 2, .mask = O_DIRECT}, [this] {
            auto disk = Open();
            ASSERT_TRUE(disk.ok()) << disk.status().ToString();
            EXPECT_THAT((*disk)->Describe(), HasSubstr("no O_DIRECT"));
            const AlignedBytes source(kMiB, 1);
            const AlignedBytes target(kMiB);
            ASSERT_TRUE(RunRequest(disk->get(), CreateRequest(1, kMiB)).ok());
            ASSERT_TRUE(
                RunRequest(disk->get(), DataRequest(IoKind::kWrite, 1, 0, source.span())).ok());
            ASSERT_TRUE(
                RunRequest(disk->get(), DataRequest(IoKind::kRead, 1, 0, target.span())).ok());
            EXPECT_EQ(source, target);
          })) {
    GTEST_SKIP() << kNoFilters;
  }
}

TEST_P(OpenDiskTest, AFileSystemThatCannotAllocateGetsWrittenTo) {
  if (!RunWhereCallFails({.call = SYS_fallocate, .error = EOPNOTSUPP}, [this] {
        auto disk = Open();
        ASSERT_TRUE(disk.ok());
        ASSERT_TRUE(RunRequest(disk->get(), CreateRequest(1, kMiB)).ok());
        EXPECT_EQ((*(*disk)->List())[0].bytes, kMiB);
      })) {
    GTEST_SKIP() << kNoFilters;
  }
}

TEST_P(OpenDiskTest, AFileThatCannotBeMadeStableIsNotThere) {
  if (!RunWhereCallFails({.call = SYS_fsync, .error = EIO}, [this] {
        auto disk = Open();
        ASSERT_TRUE(disk.ok());
        const Status created = RunRequest(disk->get(), CreateRequest(1, kMiB));
        EXPECT_EQ(created.code(), Code::kUnavailable);
        EXPECT_THAT(created.message(), HasSubstr("Input/output error"));
        EXPECT_TRUE((*disk)->List()->empty());
        std::ofstream(scratch_.Sub("disk/segment-00000002.aq")) << "x";
        EXPECT_EQ(RunRequest(disk->get(), FileRequest(IoKind::kRemove, 2)).code(),
                  Code::kUnavailable);
      })) {
    GTEST_SKIP() << kNoFilters;
  }
}

TEST_P(OpenDiskTest, AListThatCannotBeReadIsAnError) {
  auto disk = Open();
  ASSERT_TRUE(disk.ok());
  if (!RunWhereCallFails({.call = SYS_openat, .error = EIO},
                         [&] { EXPECT_EQ((*disk)->List().status().code(), Code::kUnavailable); })) {
    GTEST_SKIP() << kNoFilters;
  }
  RunWhereCallFails({.call = SYS_getdents64, .error = EIO},
                    [&] { EXPECT_EQ((*disk)->List().status().code(), Code::kUnavailable); });
}

TEST_P(OpenDiskTest, ADescriptionNamesTheDirectoryAndTheEngine) {
  auto disk = Open();
  ASSERT_TRUE(disk.ok());
  const std::string engine = GetParam() == DiskEngine::kUring ? "io_uring" : "threads";
  EXPECT_THAT((*disk)->Describe(), testing::StartsWith(scratch_.Sub("disk") + " (" + engine));
}

// While it is there, whoever opens the file waits: as on a drive that does not answer.
class HangingOpen {
 public:
  explicit HangingOpen(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    std::signal(SIGIO, SIG_IGN);  // Says that somebody waits.
    held_ = ::fcntl(file_.get(), F_SETLEASE, F_WRLCK) == 0;
  }
  ~HangingOpen() { Release(); }

  bool held() const { return held_; }
  bool SomebodyWaits() const { return ::fcntl(file_.get(), F_GETLEASE) != F_WRLCK; }
  void Release() {
    if (std::exchange(held_, false)) ::fcntl(file_.get(), F_SETLEASE, F_UNLCK);
  }

 private:
  const Descriptor file_;
  bool held_ = false;
};

// It is the cache's owner who submits: if he waited, everybody would.
TEST_P(OpenDiskTest, AFileWhoseOpeningHangsKeepsNobodyFromSubmitting) {
  auto disk = Open();
  ASSERT_TRUE(disk.ok());
  for (const uint32_t file : {1u, 2u}) {
    ASSERT_TRUE(RunRequest(disk->get(), CreateRequest(file, kPageBytes)).ok());
  }
  HangingOpen hanging(scratch_.Sub("disk/segment-00000001.aq"));
  if (!hanging.held()) GTEST_SKIP() << "no leases on this file system";
  const auto read = [&](uint32_t file, const AlignedBytes& target) {
    return std::async(std::launch::async, [&disk, file, &target] {
      return RunRequest(disk->get(), DataRequest(IoKind::kRead, file, 0, target.span()));
    });
  };
  const AlignedBytes first(kPageBytes);
  auto hangs = read(1, first);
  while (!hanging.SomebodyWaits()) std::this_thread::yield();
  const AlignedBytes second(kPageBytes);
  IoGroup group;
  group.requests = {DataRequest(IoKind::kRead, 2, 0, second.span())};
  std::promise<void> done;
  group.on_done = [&done](IoGroup&) { done.set_value(); };
  auto submits = std::async(std::launch::async, [&] { (*disk)->Submit(&group); });
  EXPECT_EQ(submits.wait_for(std::chrono::seconds(5)), std::future_status::ready);
  hanging.Release();
  EXPECT_TRUE(hangs.get().ok());
  submits.wait();
  done.get_future().wait();
  EXPECT_TRUE(group.requests[0].status.ok());
}

INSTANTIATE_TEST_SUITE_P(Both, OpenDiskTest,
                         testing::Values(DiskEngine::kUring, DiskEngine::kThreads),
                         [](const auto& info) {
                           return info.param == DiskEngine::kUring ? "Uring" : "Threads";
                         });

TEST(DiskDirectoryTest, AnotherProcessIsNamedAndItsDeathUnlocks) {
  const ScratchDirectory scratch;
  DiskOptions options;
  options.directory = scratch.path();
  int locked[2];
  int finish[2];
  ASSERT_EQ(::pipe(locked), 0);
  ASSERT_EQ(::pipe(finish), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(finish[1]);
    const auto directory = DiskDirectory::Open(options);
    char byte = directory.ok() ? 'y' : 'n';
    (void)!::write(locked[1], &byte, 1);
    (void)!::read(finish[0], &byte, 1);  // Until the parent closes it.
    ::_exit(0);
  }
  char answer = 0;
  ASSERT_EQ(::read(locked[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_THAT(DiskDirectory::Open(options).status().message(),
              HasSubstr("in use by process " + std::to_string(child) +
                        "; stop it or choose another directory"));
  // Whoever holds the lock may not have got to write its number yet.
  std::filesystem::resize_file(scratch.Sub("LOCK"), 0);
  EXPECT_THAT(DiskDirectory::Open(options).status().message(), HasSubstr("another process"));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(DiskDirectory::Open(options).ok());
  for (const int fd : {locked[0], locked[1], finish[0], finish[1]}) ::close(fd);
}

TEST(AutoDiskTest, WithoutUringItTakesThreads) {
  const ScratchDirectory scratch;
  const auto executor = NewTestExecutor();
  DiskOptions options;
  options.directory = scratch.path();
  for (const auto& [error, reason] :
       std::vector<std::pair<int, std::string>>{{ENOSYS, "no io_uring"},
                                                {EPERM, "forbidden"},
                                                {ENOMEM, "locked memory"},
                                                {EIO, "cannot be set up"}}) {
    if (!RunWhereCallFails({.call = SYS_io_uring_setup, .error = error}, [&] {
          EXPECT_EQ(ProbeUring().code(), Code::kUnavailable);
          options.engine = DiskEngine::kUring;
          EXPECT_EQ(OpenDisk(options, executor.get()).status().code(), Code::kUnavailable);
          options.engine = DiskEngine::kAuto;
          auto disk = OpenDisk(options, executor.get());
          ASSERT_TRUE(disk.ok()) << disk.status().ToString();
          EXPECT_THAT((*disk)->Describe(), HasSubstr("(threads"));
          EXPECT_TRUE(RunRequest(disk->get(), CreateRequest(1, kPageBytes)).ok());
        })) {
      GTEST_SKIP() << kNoFilters;
    }
  }
}

TEST(AutoDiskTest, WithUringItTakesUring) {
  if (!ProbeUring().ok()) GTEST_SKIP() << ProbeUring().message();
  const ScratchDirectory scratch;
  const auto executor = NewTestExecutor();
  DiskOptions options;
  options.directory = scratch.path();
  auto disk = OpenDisk(options, executor.get());
  ASSERT_TRUE(disk.ok());
  EXPECT_THAT((*disk)->Describe(), HasSubstr("(io_uring"));
}

TEST(AutoDiskTest, ADirectoryThatCannotBeUsedIsNotTriedTwice) {
  const auto executor = NewTestExecutor();
  DiskOptions options;
  options.directory = "/proc/nowhere";
  EXPECT_EQ(OpenDisk(options, executor.get()).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace aquifer
