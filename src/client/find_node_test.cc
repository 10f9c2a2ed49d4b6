#include "client/find_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "net/local/frame_socket.h"
#include "testing/scratch_directory.h"

namespace aquifer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FindNodeTest : public testing::Test {
 protected:
  // Listens on `socket`, in a directory of its own.
  Descriptor Listen(const std::string& socket) {
    Result<Descriptor> listener = ListenOn(socket, /*private_to_user=*/true);
    EXPECT_TRUE(listener.ok()) << listener.status().message();
    return *std::move(listener);
  }

  ScratchDirectory scratch_;
  const std::string first_ = scratch_.Sub("first.sock");
  const std::string second_ = scratch_.Sub("second.sock");
};

TEST_F(FindNodeTest, AGivenSocketIsTheOnlyPlace) {
  EXPECT_THAT(NodeSockets("/here"), ElementsAre("/here"));
}

TEST_F(FindNodeTest, TheFirstThatAnswersIsTaken) {
  const Descriptor first = Listen(first_);
  const Descriptor second = Listen(second_);
  EXPECT_TRUE(ConnectToFirst(std::vector{first_, second_}).ok());
  EXPECT_TRUE(AcceptOn(first).ok());
  EXPECT_FALSE(AcceptOn(second).ok());
}

TEST_F(FindNodeTest, TheSocketOfAKilledNodeDoesNotHideTheNext) {
  Listen(first_);  // The socket's file stays.
  const Descriptor second = Listen(second_);
  EXPECT_TRUE(ConnectToFirst(std::vector{first_, second_}).ok());
  EXPECT_TRUE(AcceptOn(second).ok());
}

TEST_F(FindNodeTest, NobodyIsBelievedWhereAnybodyMayListen) {
  ASSERT_EQ(::chmod(scratch_.path().c_str(), 01777), 0);
  ASSERT_EQ(::mkdir(scratch_.Sub("theirs").c_str(), 0777), 0);
  ASSERT_EQ(::chmod(scratch_.Sub("theirs").c_str(), 0777), 0);
  const std::string trap = scratch_.Sub("theirs/node.sock");
  const Descriptor listener = Listen(trap);
  const Result<Descriptor> connected = ConnectToFirst(std::vector{first_, trap});
  EXPECT_THAT(connected.status().message(), HasSubstr("aquifer serve"));
  EXPECT_FALSE(AcceptOn(listener).ok()) << "it was not even asked";
}

}  // namespace
}  // namespace aquifer
