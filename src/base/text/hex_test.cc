#include "base/text/hex.h"

#include <gtest/gtest.h>

#include <array>

namespace aquifer {
namespace {

TEST(HexTest, BytesComeBackAndNothingElseIsTaken) {
  const std::array bytes = {std::byte{0x00}, std::byte{0x9a}, std::byte{0xff}};
  EXPECT_EQ(HexOf(bytes), "009aff");
  std::array<std::byte, 3> back{};
  EXPECT_TRUE(FromHex("009aff", back));
  EXPECT_EQ(back, bytes);
  for (const char* wrong : {"", "009af", "009aff0", "009aFF", "009ag0", "00 9aff", "-09aff"}) {
    EXPECT_FALSE(FromHex(wrong, back)) << wrong;
  }
  EXPECT_EQ(HexOf({}), "");
}

}  // namespace
}  // namespace aquifer
