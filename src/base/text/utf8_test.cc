#include "base/text/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace aquifer {
namespace {

TEST(Utf8Test, ACharacterHasItsBytes) {
  EXPECT_EQ(CharacterBytes(""), 0u);
  EXPECT_EQ(CharacterBytes("ab"), 1u);
  EXPECT_EQ(CharacterBytes("\xC3\xBCx"), 2u);
  EXPECT_EQ(CharacterBytes("\xE2\x82\xAC"), 3u);
  EXPECT_EQ(CharacterBytes("\xF0\x9F\x98\x80"), 4u);
  EXPECT_EQ(CharacterBytes("\xF4\x8F\xBF\xBF"), 4u);
}

TEST(Utf8Test, CutOffOverlongAndTooLargeSequencesAreNoCharacters) {
  for (const std::string_view bad :
       {"\xFF", "\xC3", "\x80", "\xC0\x80", "\xC1\xBF", "\xC3(", "\xE2\x82", "\xE0\x80\x80",
        "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"}) {
    EXPECT_EQ(CharacterBytes(bad), 0u) << bad;
    EXPECT_FALSE(IsPrintable("a" + std::string(bad))) << bad;
  }
}

TEST(Utf8Test, ControlCharactersAreNotPrintable) {
  for (char low = 0; low < 0x20; ++low) EXPECT_FALSE(IsPrintable(std::string("a") + low));
  EXPECT_FALSE(IsPrintable("\x7F"));
  for (int high = 0x80; high < 0xA0; ++high) {
    const std::string control = {'\xC2', static_cast<char>(high)};
    EXPECT_EQ(CharacterBytes(control), 2u);
    EXPECT_EQ(PrintableBytes(control), 0u);
  }
  EXPECT_TRUE(IsPrintable(""));
  EXPECT_TRUE(IsPrintable("chat 7~ \xC2\xA0\xC3\xBC\xE2\x82\xAC\xF0\x9F\x98\x80"));
}

}  // namespace
}  // namespace aquifer
