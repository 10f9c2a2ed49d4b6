#include "net/local/default_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::ElementsAre;

TEST(DefaultSocketTest, TheSystemsPlaceComesFirstThenTheUsers) {
  EXPECT_THAT(DefaultSockets({.runtime_directory = "/run/user/7"}, 7),
              ElementsAre("/run/aquifer/node.sock", "/run/user/7/aquifer.sock",
                          "/tmp/aquifer-7/node.sock"));
  EXPECT_THAT(DefaultSockets({}, 7),
              ElementsAre("/run/aquifer/node.sock", "/tmp/aquifer-7/node.sock"));
}

class SafePlaceTest : public testing::Test {
 protected:
  // A directory in which any user may make directories, as in /tmp.
  void SetUp() override {
    ASSERT_EQ(::chmod(scratch_.path().c_str(), 01777), 0);
    ASSERT_EQ(::mkdir(directory_.c_str(), 0700), 0);
  }

  ScratchDirectory scratch_;
  const std::string directory_ = scratch_.Sub("aquifer-7");
  const std::string socket_ = directory_ + "/node.sock";
};

TEST_F(SafePlaceTest, IsOneThatThisUserAloneMade) {
  EXPECT_TRUE(IsSafePlace(socket_, ::geteuid()));
  EXPECT_FALSE(IsSafePlace(socket_, ::geteuid() + 1)) << "somebody else has made it";
  EXPECT_FALSE(IsSafePlace(scratch_.Sub("none/node.sock"), ::geteuid()));
}

TEST_F(SafePlaceTest, IsNotOneThatOthersCanWriteTo) {
  ASSERT_EQ(::chmod(directory_.c_str(), 0770), 0);
  EXPECT_FALSE(IsSafePlace(socket_, ::geteuid()));
}

TEST_F(SafePlaceTest, IsNotOneWhereAnybodyMayListen) {
  EXPECT_FALSE(IsSafePlace(scratch_.Sub("aquifer.sock"), ::geteuid()));
}

TEST_F(SafePlaceTest, IsNotTheTargetOfALink) {
  ASSERT_EQ(::symlink(directory_.c_str(), scratch_.Sub("link").c_str()), 0);
  EXPECT_FALSE(IsSafePlace(scratch_.Sub("link/node.sock"), ::geteuid()));
}

TEST_F(SafePlaceTest, IsOneWhoseOwnerDecidesWhoWritesThere) {
  ASSERT_EQ(::chmod(scratch_.path().c_str(), 0755), 0);
  EXPECT_TRUE(IsSafePlace(socket_, ::geteuid() + 1)) << "as /run, which is root's";
}

}  // namespace
}  // namespace aquifer
