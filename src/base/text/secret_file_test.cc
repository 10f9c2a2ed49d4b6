#include "base/text/secret_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class SecretFileTest : public testing::Test {
 protected:
  std::string File(const std::string& text, mode_t mode = 0600) {
    const std::string path = scratch_.Sub("secret");
    std::ofstream(path, std::ios::trunc) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  static std::string Refusal(const std::string& path) {
    const auto text = ReadSecretLine(path, ::geteuid());
    EXPECT_EQ(text.status().code(), Code::kInvalid);
    return text.status().message();
  }

  const ScratchDirectory scratch_;
};

TEST_F(SecretFileTest, AFileIsReadWholeAndALineWithoutItsEnd) {
  EXPECT_EQ(*ReadSecretFile(File("a\nb\n"), ::geteuid()), "a\nb\n");
  EXPECT_EQ(*ReadSecretLine(File("pass word\r\n"), ::geteuid()), "pass word");
  EXPECT_EQ(*ReadSecretLine(File("password"), ::geteuid()), "password");
}

TEST_F(SecretFileTest, AMistakeIsToldWithoutTheSecret) {
  EXPECT_THAT(Refusal(File("one\ntwo\n")), AllOf(HasSubstr("one line"), Not(HasSubstr("two"))));
  EXPECT_THAT(Refusal(File("\n")), HasSubstr("one line"));
  EXPECT_THAT(Refusal(File("hunter2", 0644)),
              AllOf(HasSubstr("chmod 600"), Not(HasSubstr("hunter2"))));
  EXPECT_THAT(Refusal(File(std::string(20'000, 'x'))), HasSubstr("larger than 16KiB"));
  EXPECT_THAT(Refusal(scratch_.path()), HasSubstr("no regular file"));
  EXPECT_THAT(Refusal(scratch_.Sub("absent")), HasSubstr("No such file"));
}

TEST_F(SecretFileTest, WhoseFileMayHoldASecret) {
  const auto fine = [](uid_t owner, mode_t mode, uid_t self) {
    return CheckSecretFileMode("f", owner, mode, self).ok();
  };
  EXPECT_TRUE(fine(7, 0400, 7));
  EXPECT_FALSE(fine(7, 0440, 7));
  EXPECT_FALSE(fine(7, 0404, 7));
  EXPECT_FALSE(fine(8, 0600, 7));
  EXPECT_TRUE(fine(0, 0440, 7));
  EXPECT_FALSE(fine(0, 0460, 7));
  EXPECT_FALSE(fine(0, 0444, 7));
  EXPECT_FALSE(fine(0, 0440, 0));
}

}  // namespace
}  // namespace aquifer
