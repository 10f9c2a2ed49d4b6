#include "cli/temporary_directory.h"

#include <gtest/gtest.h>

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

TEST(TemporaryDirectoryTest, AParentThatIsNotThereIsNamedTogetherWithTheNextStep) {
  const auto temporary = TemporaryDirectory::New("/nowhere/at/all", "x-");
  ASSERT_FALSE(temporary.ok());
  EXPECT_EQ(temporary.status().code(), Code::kUnavailable);
  EXPECT_NE(temporary.status().message().find("/nowhere/at/all"), std::string::npos);
  EXPECT_NE(temporary.status().message().find("--directory"), std::string::npos);
}

}  // namespace
}  // namespace aquifer
