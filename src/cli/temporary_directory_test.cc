#include "cli/temporary_directory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

namespace aquifer {
namespace {

TEST(TemporaryDirectoryTest, IsGoneWithItsOwnerAndSoIsWhatItHolds) {
  std::string path;
  {
    auto temporary = TemporaryDirectory::New(testing::TempDir(), "temporary-test-");
    ASSERT_TRUE(temporary.ok()) << temporary.status().ToString();
    path = (*temporary)->path();
    std::filesystem::create_directories(path + "/a/b");
    std::ofstream(path + "/a/b/file") << "something";
    EXPECT_TRUE(std::filesystem::exists(path + "/a/b/file"));
    EXPECT_GT(FreeDiskBytes(path), 0u);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryDirectoryTest, DirectoriesOfTheDeadAreRemovedAndNoOthers) {
  namespace fs = std::filesystem;
  const auto parent = TemporaryDirectory::New(testing::TempDir(), "temporary-test-");
  ASSERT_TRUE(parent.ok());
  const fs::path where = (*parent)->path();
  const auto alive = TemporaryDirectory::New(where, "demo-");
  ASSERT_TRUE(alive.ok());
  std::ofstream((*alive)->path() + "/file") << "something";
  const auto leave = [&](const char* name) {
    fs::create_directories(where / name / "inner");
    std::ofstream(where / name / "inner" / "file") << "something";
  };
  for (const char* name : {"demo-dead01", "demo-young1", "demo-other-name", "other-dead01"}) {
    leave(name);
  }
  fs::create_directory_symlink(where / "other-dead01", where / "demo-link01");
  std::ofstream(where / "demo-file01") << "something";
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const auto& entry : fs::directory_iterator(where)) {
    if (entry.path().filename() != "demo-young1") fs::last_write_time(entry.path(), long_ago);
  }

  const auto next = TemporaryDirectory::New(where, "demo-");
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(fs::exists(where / "demo-dead01"));
  EXPECT_TRUE(fs::exists((*alive)->path() + "/file"));
  for (const char* name : {"demo-young1/inner/file", "demo-other-name/inner/file",
                           "other-dead01/inner/file", "demo-link01", "demo-file01"}) {
    EXPECT_TRUE(fs::exists(where / name)) << name;
  }
}

TEST(TemporaryDirectoryTest, AParentThatIsNotThereIsNamedTogetherWithTheNextStep) {
  const auto temporary = TemporaryDirectory::New("/nowhere/at/all", "x-");
  ASSERT_FALSE(temporary.ok());
  EXPECT_EQ(temporary.status().code(), Code::kUnavailable);
  EXPECT_NE(temporary.status().message().find("/nowhere/at/all"), std::string::npos);
  EXPECT_NE(temporary.status().message().find("--directory"), std::string::npos);
}

}  // namespace
}  // namespace aquifer
