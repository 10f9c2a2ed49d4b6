// The protocol, with a small program in the place of a real peer.
#include "bench/peers/peer_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aquifer {
namespace {

using testing::HasSubstr;

constexpr const char* kPython = "python3";

TEST(PeerProgramTest, EachLineIsAnsweredWithANumber) {
  const auto peer = PeerProgram::Start(
      kPython, "import sys\nserve(sys.argv[1], lambda what, n: float(n) * float(sys.argv[2]))\n",
      {"2"});
  ASSERT_TRUE(peer.ok()) << peer.status().ToString();
  EXPECT_EQ(*(*peer)->Ask("twice 21"), 42);
  EXPECT_EQ(*(*peer)->Ask("twice 0.25"), 0.5);
}

TEST(PeerProgramTest, AProgramThatEndsIsAnErrorAtTheNextLine) {
  const auto peer = PeerProgram::Start(
      kPython, "import os, sys\nserve(sys.argv[1], lambda what: os._exit(1))\n", {});
  ASSERT_TRUE(peer.ok()) << peer.status().ToString();
  EXPECT_THAT((*peer)->Get().status().message(), HasSubstr("ended at 'get'"));
}

TEST(PeerProgramTest, AProgramThatCannotStartSaysWhy) {
  EXPECT_EQ(PeerProgram::Start("/nowhere/python", "", {}).status().code(), Code::kNotFound);
  EXPECT_THAT(
      PeerProgram::Start(kPython, "import sys\nsys.exit('no such package')", {}).status().message(),
      HasSubstr("no such package"));
}

// The texts of the real ones are whole, whatever their packages.
TEST(PeerProgramTest, EveryPeersTextIsPython) {
  for (const std::string_view text : {kMooncakePeer, kBotoPeer, kTorchPeer}) {
    EXPECT_THAT(text, HasSubstr("serve("));
    const auto compiled = PeerProgram::Start(
        kPython,
        "import sys\ncompile(sys.argv[2], 'peer', 'exec')\nserve(sys.argv[1], lambda what: 7)\n",
        {std::string(kPeerProtocol) + "\n" + std::string(text)});
    ASSERT_TRUE(compiled.ok()) << compiled.status().ToString();
    EXPECT_EQ(*(*compiled)->Get(), 7);
  }
}

}  // namespace
}  // namespace aquifer
