#include "cli/find_program.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

class FindProgramTest : public testing::Test {
 protected:
  // Makes PREFIX/`path`, with its folders.
  std::string Make(const std::string& path, mode_t mode = 0755) {
    const std::filesystem::path program = scratch_.Sub(path);
    std::filesystem::create_directories(program.parent_path());
    std::ofstream(program) << "#!/bin/sh\n";
    EXPECT_EQ(::chmod(program.c_str(), mode), 0);
    return program.string();
  }

  std::string Found(const std::string& own, const std::string& path = "") {
    return FindProgram("tool", {.own = scratch_.Sub(own), .path = path});
  }

  ScratchDirectory scratch_;
};

TEST_F(FindProgramTest, AProgramBesideIsTakenBeforeThoseInPath) {
  const std::string elsewhere = Make("elsewhere/tool");
  EXPECT_EQ(Found("bin", scratch_.Sub("nowhere") + "::" + scratch_.Sub("elsewhere")), elsewhere);
  const std::string beside = Make("bin/tool");
  EXPECT_EQ(Found("bin", scratch_.Sub("elsewhere")), beside);
}

TEST_F(FindProgramTest, AnInstallationIsCrossedInBothDirections) {
  const std::string in_libexec = Make("libexec/aquifer/tool");
  EXPECT_EQ(Found("bin"), in_libexec);
  const std::string in_bin = Make("bin/tool");
  std::filesystem::remove(in_libexec);
  EXPECT_EQ(Found("libexec/aquifer"), in_bin);
}

TEST_F(FindProgramTest, NoProgramIsFoundInAFolderOrWithoutTheRightToRunIt) {
  std::filesystem::create_directories(scratch_.Sub("bin/tool"));
  Make("path/tool", 0644);
  EXPECT_EQ(Found("bin", scratch_.Sub("path")), "");
  EXPECT_EQ(FindProgram("tool", {}), "");
}

}  // namespace
}  // namespace aquifer
