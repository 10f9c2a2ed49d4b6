// Two processes at one grant, at the moments between system calls that a test with processes hits
// once in a million; and signs of life while there is much to look through.
#include "store/posix/posix_grants.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/crypto/random.h"
#include "store/posix/posix_label.h"
#include "store/posix/posix_member.h"
#include "store/posix/posix_paths.h"
#include "testing/scratch_directory.h"

namespace {

std::function<void()> before_lock;  // Once, whoever locks a file next.

}  // namespace

// In place of the C library's, in this program.
extern "C" int flock(int file, int operation) noexcept {
  if (before_lock) std::exchange(before_lock, nullptr)();
  return static_cast<int>(::syscall(SYS_flock, file, operation));
}

namespace aquifer {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kGrantBytes = uint64_t{1} << 20;

class PosixGrantsTest : public testing::Test {
 protected:
  PosixGrantsTest() {
    for (const std::string& folder : {paths_.Blobs(), paths_.Grants(), paths_.Processes()}) {
      fs::create_directories(folder);
    }
    EXPECT_TRUE(member_.Join().ok());
  }
  ~PosixGrantsTest() override { before_lock = nullptr; }

  // A file in a grant that nobody has any more, of which no blob came: its writer died.
  std::string LeaveBehind() const {
    const std::string folder = paths_.Grant(0) + "/0000000000000001-none";
    fs::create_directories(folder);
    BlobLabel label{.name = "a/b", .blob_bytes = kPageBytes, .file = std::string(32, '5')};
    label.id[0] = std::byte{1};
    std::array<std::byte, kPageBytes> page{};
    EncodeLabel(label, page);
    const std::string path = PathIn(folder, DataFileName(label));
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(page.data()), page.size());
    file.write(std::string(kPageBytes, 'x').data(), kPageBytes);
    return path;
  }
  // What another process does that takes the grant up and writes a blob to that file.
  std::string Adopt(const std::string& path) const {
    const std::string to = paths_.Grant(0) + "/0000000000000002-007-0123456789abcdef";
    fs::rename(fs::path(path).parent_path(), to);
    EXPECT_TRUE(MakeBlobFolders(paths_, "a/b", false).ok());
    std::string now = PathIn(to, fs::path(path).filename().string());
    fs::create_hard_link(now, paths_.Blob("a/b"));
    return now;
  }

  const ScratchDirectory scratch_;
  const PosixPaths paths_{scratch_.Sub("store")};
  PosixMember member_{{.root = paths_.root(),
                       .dead_after_nanos = 60'000'000'000,
                       .clock = SystemClock(),
                       .random = SystemRandom()}};
};

TEST_F(PosixGrantsTest, ACleanUpLeavesAloneWhatAnotherTookOverBeforeItHadTheLock) {
  for (const bool retire : {true, false}) {
    SCOPED_TRACE(retire ? "to be removed" : "to be written over");
    const std::string path = LeaveBehind();
    std::string now;
    before_lock = [&] { now = Adopt(path); };
    EXPECT_FALSE(retire ? RetireDataFile(paths_, path) : SpareDataFile(paths_, path));
    ASSERT_FALSE(now.empty()) << "nobody locked it";
    EXPECT_EQ(fs::file_size(now), 2 * kPageBytes);
    EXPECT_TRUE(fs::exists(paths_.Blob("a/b"))) << "the other one's blob is gone";
    fs::remove_all(paths_.Grant(0));
    fs::remove_all(paths_.Blobs() + "/a");
  }
}

TEST_F(PosixGrantsTest, WhatNobodyTookOverIsCleanedUp) {
  const std::string path = LeaveBehind();
  EXPECT_TRUE(RetireDataFile(paths_, path));
  EXPECT_FALSE(fs::exists(path));
}

// Others take a process for dead that gives no sign of life for long.
TEST_F(PosixGrantsTest, SignsOfLifeGoOnHoweverManyGrantsThereAreToLookThrough) {
  constexpr uint64_t kGrants = 50;
  uint64_t signs = 0;
  PosixGrants grants({.root = paths_.root(),
                      .capacity_bytes = kPosixOverheadBytes + kGrants * kGrantBytes,
                      .grant_bytes = kGrantBytes,
                      .member = &member_,
                      .meanwhile = [&signs] { ++signs; }});
  for (uint64_t i = 0; i < kGrants; ++i) {
    const auto grant = grants.Take(1);
    ASSERT_TRUE(grant.ok()) << grant.status().ToString();
    grants.GiveUp(*grant, /*full=*/true);
  }
  // Looking for a free number, ...
  signs = 0;
  ASSERT_TRUE(grants.MakeRoom().ok());
  // ... and, since there is none, for the grant that was used least recently.
  EXPECT_GE(signs, 2 * kGrants);
  signs = 0;
  grants.CleanUp();
  EXPECT_GE(signs, kGrants - 1);
}

}  // namespace
}  // namespace aquifer
