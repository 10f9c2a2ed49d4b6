// Tests drives as in real life: full, read-only, held by another process, with files removed by
// somebody. The cache goes on with memory, answers every fetch, and uses the drive again when it
// can.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "aquifer/cache.h"
#include "base/check.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/child_process.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr const char* kHoldFlag = "--hold-directory";
constexpr int64_t kShortTimeoutNanos = 2 * kDefaultTimeoutNanos;

CacheOptions OptionsFor(const std::string& directory) {
  CacheOptions options;
  options.dram_bytes = 64 * kMiB;
  options.nvme_directories = {directory};
  options.nvme_bytes = 256 * kMiB;
  options.nvme_segment_bytes = 4 * kMiB;
  return options;
}

Layout FaultLayout() { return LayoutOfBytes(256 << 10); }

// A cache with its first client.
struct Opened {
  explicit Opened(const std::string& directory) {
    auto result = Open(OptionsFor(directory), {});
    if (!result.ok()) ADD_FAILURE() << result.status().ToString();
    AQ_CHECK(result.ok());
    cache = *std::move(result);
    engine = std::make_unique<TestEngine>(cache.get(), FaultLayout());
  }
  ~Opened() { engine.reset(); }

  bool NvmeInService() const { return engine->StatsOf(TierKind::kNvme).in_service; }

  std::unique_ptr<Cache> cache;
  std::unique_ptr<TestEngine> engine;
};

Chain MakeChain(uint64_t seed, size_t blocks) {
  return Chain(FaultLayout(), {.seed = seed, .blocks = blocks});
}

// --- Mounts ------------------------------------------------------------------------------------

bool WriteText(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return written;
}

// Gives this process mounts of its own, which end with it, however it ends. Call before the first
// thread is started. Returns why it failed, or an empty text.
std::string EnterPrivateMounts() {
  const uid_t uid = getuid();
  const gid_t gid = getgid();
  if (unshare(CLONE_NEWNS) != 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      return fmt::format("neither root nor a user namespace: {}", std::strerror(errno));
    }
    if (!WriteText("/proc/self/setgroups", "deny") ||
        !WriteText("/proc/self/uid_map", fmt::format("0 {} 1", uid)) ||
        !WriteText("/proc/self/gid_map", fmt::format("0 {} 1", gid))) {
      return fmt::format("the user namespace could not be set up: {}", std::strerror(errno));
    }
  }
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return fmt::format("mounts could not be made private: {}", std::strerror(errno));
  }
  return "";
}

std::string& WhyNoMounts() {
  static std::string why = "not tried";
  return why;
}

class SmallFileSystem {
 public:
  SmallFileSystem(const std::string& path, uint64_t bytes) : path_(path) {
    std::filesystem::create_directories(path);
    const std::string options = fmt::format("size={}", bytes);
    mounted_ = mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }

  bool mounted() const { return mounted_; }
  const std::string& path() const { return path_; }

  bool SetReadOnly(bool on) {
    return mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | (on ? MS_RDONLY : 0), nullptr) == 0;
  }

  // A file that takes all but `left` bytes.
  void FillUp(uint64_t left) {
    const auto free = std::filesystem::space(path_).available;
    AQ_CHECK(free > left);
    const int fd = open(Ballast().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    AQ_CHECK(fd >= 0 && posix_fallocate(fd, 0, static_cast<off_t>(free - left)) == 0);
    close(fd);
  }
  void MakeRoom() { std::filesystem::remove(Ballast()); }

 private:
  std::string Ballast() const { return path_ + "/ballast"; }

  std::string path_;
  bool mounted_ = false;
};

class MountedFaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!WhyNoMounts().empty()) GTEST_SKIP() << WhyNoMounts();
    files_.emplace(scratch_.Sub("drive"), 96 * kMiB);
    if (!files_->mounted()) GTEST_SKIP() << "no tmpfs could be mounted: " << std::strerror(errno);
    const int fd =
        open((files_->path() + "/probe").c_str(), O_CREAT | O_WRONLY | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0) GTEST_SKIP() << "this kernel's tmpfs has no O_DIRECT";
    close(fd);
    std::filesystem::remove(files_->path() + "/probe");
  }

  std::string directory() const { return files_->path() + "/nvme"; }

  ScratchDirectory scratch_;
  std::optional<SmallFileSystem> files_;
};

TEST_F(MountedFaultsTest, ADriveThatFillsUpIsUsedAgainWhenThereIsRoom) {
  std::optional<Opened> opened(directory());
  ASSERT_TRUE(opened->NvmeInService());
  const Chain before = MakeChain(1, 16);
  ASSERT_EQ(opened->engine->Store(before), 16u);
  ASSERT_TRUE(opened->engine->Flush().ok());

  files_->FillUp(4096);
  const Chain during = MakeChain(2, 120);
  EXPECT_EQ(opened->engine->Store(during), 120u);  // Memory has room for all.
  EXPECT_EQ(opened->engine->Recall(during), Recalled{.right = 120});
  // Perhaps by dropping other blocks.
  static_cast<void>(opened->engine->Flush(kShortTimeoutNanos));
  EXPECT_EQ(opened->engine->Recall(before), Recalled{.right = 16});

  files_->MakeRoom();
  // More than the old files could hold. The other chains are evicted first. Until there are more
  // files, memory holds more than fits on the drive, and a flush would drop some of it.
  opened->engine->Evict(before);
  opened->engine->Evict(during);
  const Chain after = MakeChain(3, 100);
  EXPECT_TRUE(opened->engine->Eventually([&] {
    opened->engine->Evict(after);
    return opened->engine->Store(after) == 100 && opened->engine->Flush(kShortTimeoutNanos).ok() &&
           opened->engine->StatsOf(TierKind::kNvme).blocks == 100;
  }));
  EXPECT_TRUE(opened->NvmeInService());
  opened.reset();
  opened.emplace(directory());
  EXPECT_EQ(opened->engine->Recall(after), Recalled{.right = 100});
}

TEST_F(MountedFaultsTest, ADriveThatIsFullFromTheStartLeavesTheCacheInMemory) {
  files_->FillUp(64 << 10);
  std::optional<Opened> opened(directory());
  const Chain chain = MakeChain(1, 40);
  EXPECT_EQ(opened->engine->Store(chain), 40u);
  EXPECT_EQ(opened->engine->Recall(chain), Recalled{.right = 40});
  EXPECT_FALSE(opened->engine->Flush(kShortTimeoutNanos).ok());
  files_->MakeRoom();
  EXPECT_TRUE(opened->engine->Eventually([&] {
    const Chain after = MakeChain(2, 4);
    return opened->engine->Store(after) == 4 && opened->engine->Flush(kShortTimeoutNanos).ok();
  }));
}

TEST_F(MountedFaultsTest, AReadOnlyDirectoryIsUsedWhenItCanBeWritten) {
  ASSERT_TRUE(files_->SetReadOnly(true));
  std::optional<Opened> opened(directory());
  EXPECT_FALSE(opened->NvmeInService());
  const Chain chain = MakeChain(1, 40);
  EXPECT_EQ(opened->engine->Store(chain), 40u);
  EXPECT_EQ(opened->engine->Recall(chain), Recalled{.right = 40});
  EXPECT_FALSE(opened->engine->Flush(kShortTimeoutNanos).ok());

  ASSERT_TRUE(files_->SetReadOnly(false));
  EXPECT_TRUE(opened->engine->Eventually([&] { return opened->NvmeInService(); }));
  EXPECT_TRUE(opened->engine->Eventually([&] {
    const Chain after = MakeChain(2, 4);
    return opened->engine->Store(after) == 4 && opened->engine->Flush(kShortTimeoutNanos).ok();
  }));
  opened.reset();
  opened.emplace(directory());
  EXPECT_EQ(opened->engine->Recall(MakeChain(2, 4)), Recalled{.right = 4});
}

TEST_F(MountedFaultsTest, ADirectoryThatBecameReadOnlyBetweenRunsHarmsNothing) {
  std::optional<Opened> opened(directory());
  const Chain chain = MakeChain(1, 16);
  ASSERT_EQ(opened->engine->Store(chain), 16u);
  ASSERT_TRUE(opened->engine->Flush().ok());
  opened.reset();
  ASSERT_TRUE(files_->SetReadOnly(true));
  opened.emplace(directory());
  const Recalled recalled = opened->engine->Recall(chain);
  EXPECT_EQ(recalled.wrong, 0u);
  EXPECT_EQ(recalled.late, 0u);
  ASSERT_TRUE(files_->SetReadOnly(false));
  EXPECT_TRUE(opened->engine->Eventually([&] { return opened->engine->Matched(chain) == 16; }));
  EXPECT_EQ(opened->engine->Recall(chain), Recalled{.right = 16});
}

// --- Another process ---------------------------------------------------------------------------

constexpr uint64_t kHeldChain = 77;

// Stores a chain, and keeps the directory until the parent ends it.
int HoldDirectory(const std::string& directory) {
  DieWithParent();
  Opened opened(directory);
  AQ_CHECK(opened.engine->Store(MakeChain(kHeldChain, 16)) == 16);
  AQ_CHECK(opened.engine->Flush().ok());
  TellParent("holding");
  WaitForParent();
  return 0;
}

class SharedDirectoryTest : public testing::TestWithParam<bool> {
 protected:
  ScratchDirectory scratch_;
};

TEST_P(SharedDirectoryTest, ASecondProcessWaitsInMemoryForTheFirstToEnd) {
  const bool killed = GetParam();
  auto holder = ChildProcess::Start({kHoldFlag, scratch_.path()});
  ASSERT_EQ(holder->ReadLine(std::chrono::seconds(30)), "holding");

  Opened second(scratch_.path());
  EXPECT_FALSE(second.NvmeInService());
  const Chain held = MakeChain(kHeldChain, 16);
  const Chain own = MakeChain(1, 16);
  EXPECT_EQ(second.engine->Store(own), 16u);
  EXPECT_EQ(second.engine->Recall(own), Recalled{.right = 16});
  EXPECT_EQ(second.engine->Recall(held), Recalled{.missed = 16});

  if (killed) {
    holder->Kill();
    EXPECT_EQ(holder->Wait(), -SIGKILL);
  } else {
    holder->EndInput();
    EXPECT_EQ(holder->Wait(), 0);
  }
  EXPECT_TRUE(second.engine->Eventually([&] { return second.NvmeInService(); }));
  EXPECT_TRUE(second.engine->Eventually([&] { return second.engine->Matched(held) == 16; }));
  EXPECT_EQ(second.engine->Recall(held), Recalled{.right = 16});
  EXPECT_EQ(second.engine->Recall(own), Recalled{.right = 16});
  EXPECT_TRUE(second.engine->Flush().ok());
}

TEST_P(SharedDirectoryTest, BlocksOutOfReachAreNotReportedAsDeleted) {
  auto holder = ChildProcess::Start({kHoldFlag, scratch_.path()});
  ASSERT_EQ(holder->ReadLine(std::chrono::seconds(30)), "holding");
  Opened second(scratch_.path());
  ASSERT_FALSE(second.NvmeInService());
  const Chain held = MakeChain(kHeldChain, 16);
  const auto evict = second.engine->Evict(held);

  if (GetParam()) holder->Kill();
  holder->EndInput();
  holder->Wait();
  EXPECT_TRUE(second.engine->Eventually([&] { return second.NvmeInService(); }));
  if (evict->status.ok()) {
    EXPECT_EQ(second.engine->Recall(held), Recalled{.missed = 16}) << "they came back";
  }
  EXPECT_TRUE(second.engine->Evict(held)->status.ok());
  EXPECT_EQ(second.engine->Recall(held), Recalled{.missed = 16});
}

INSTANTIATE_TEST_SUITE_P(TheFirst, SharedDirectoryTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "IsKilled" : "EndsByItself"; });

// --- Files in somebody's hands -----------------------------------------------------------------

class HandledFilesTest : public testing::Test {
 protected:
  // Flushed, and evicted from memory by later chains: half of it can only come from the drive.
  void StoreMoreThanMemory() {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      chains_.push_back(MakeChain(seed, 64));
      ASSERT_EQ(opened_->engine->StorePatiently(chains_.back()), 64u);
      ASSERT_TRUE(opened_->engine->Flush().ok());
    }
  }

  // Every operation is answered, and every served block is right.
  size_t RecallAll() {
    size_t right = 0;
    for (const Chain& chain : chains_) {
      const Recalled recalled = opened_->engine->Recall(chain);
      EXPECT_EQ(recalled.wrong, 0u);
      EXPECT_EQ(recalled.late, 0u);
      right += recalled.right;
    }
    return right;
  }

  std::vector<std::string> SegmentFiles() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(scratch_.path())) {
      if (entry.is_regular_file() && entry.file_size() >= kMiB) files.push_back(entry.path());
    }
    return files;
  }

  void ExpectItGoesOn() {
    const Chain fresh = MakeChain(100, 16);
    EXPECT_TRUE(opened_->engine->Eventually([&] { return opened_->engine->Store(fresh) == 16; }));
    EXPECT_EQ(opened_->engine->Recall(fresh), Recalled{.right = 16});
  }

  ScratchDirectory scratch_;
  std::optional<Opened> opened_{std::in_place, scratch_.path()};
  std::vector<Chain> chains_;
};

TEST_F(HandledFilesTest, FilesRemovedUnderneathCostMissesOnly) {
  StoreMoreThanMemory();
  const auto files = SegmentFiles();
  ASSERT_GT(files.size(), 4u);
  for (size_t i = 0; i < files.size(); i += 2) std::filesystem::remove(files[i]);
  RecallAll();
  ExpectItGoesOn();

  opened_.reset();
  opened_.emplace(scratch_.path());
  const size_t right = RecallAll();
  EXPECT_GT(right, 0u);  // The other half of the files.
  EXPECT_LT(right, 8 * 64u);
  ExpectItGoesOn();
}

TEST_F(HandledFilesTest, FilesCutUnderneathCostMissesOnly) {
  StoreMoreThanMemory();
  const auto files = SegmentFiles();
  ASSERT_GT(files.size(), 4u);
  for (size_t i = 0; i < files.size(); i += 2) std::filesystem::resize_file(files[i], i * 4096);
  RecallAll();
  ExpectItGoesOn();
  opened_.reset();
  opened_.emplace(scratch_.path());
  EXPECT_GT(RecallAll(), 0u);
  ExpectItGoesOn();
}

TEST_F(HandledFilesTest, ADirectoryRemovedUnderneathLeavesTheCacheInMemory) {
  StoreMoreThanMemory();
  std::filesystem::remove_all(scratch_.path());
  RecallAll();
  ExpectItGoesOn();
  opened_.reset();
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == aquifer::kHoldFlag) {
    return aquifer::HoldDirectory(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  aquifer::WhyNoMounts() = aquifer::EnterPrivateMounts();
  return RUN_ALL_TESTS();
}
