#include "net/default_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace aquifer
