#include "base/bytes.h"

#include <gtest/gtest.h>

#include <array>

namespace aquifer {
namespace {

TEST(BytesTest, TheLowestByteComesFirst) {
  std::array<std::byte, 14> bytes{};
  std::byte* end = PutU16(bytes.data(), 0x0102);
  end = PutU32(end, 0x03040506);
  end = PutU64(end, 0x0708090a0b0c0d0e);
  EXPECT_EQ(end, bytes.data() + bytes.size());
  const std::array<int, 14> expected = {2, 1, 6, 5, 4, 3, 14, 13, 12, 11, 10, 9, 8, 7};
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(std::to_integer<int>(bytes[i]), expected[i]) << i;
  }
}

TEST(BytesTest, NumbersAreReadBackAsWrittenAtAnyAlignment) {
  std::array<std::byte, 24> bytes{};
  for (size_t at = 0; at < 16; ++at) {
    PutU64(bytes.data() + at, 0x8123456789abcdef);
    EXPECT_EQ(GetU64(bytes.data() + at), 0x8123456789abcdef);
    EXPECT_EQ(GetU32(bytes.data() + at), 0x89abcdef);
    EXPECT_EQ(GetU16(bytes.data() + at), 0xcdef);
    EXPECT_EQ(GetLe<int8_t>(bytes.data() + at), static_cast<int8_t>(0xef));
  }
}

TEST(BytesTest, NoBytesCanBePutFromNowhere) {
  std::byte target{7};
  EXPECT_EQ(PutBytes(&target, nullptr, 0), &target);
  EXPECT_EQ(target, std::byte{7});
}

}  // namespace
}  // namespace aquifer
