#include "base/text/size_text.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

TEST(SizeTextTest, ReadsSizesAsPeopleWriteThem) {
  EXPECT_EQ(*ParseSize("4096"), 4096u);
  EXPECT_EQ(*ParseSize("64KiB"), 65536u);
  EXPECT_EQ(*ParseSize("64 kib"), 65536u);
  EXPECT_EQ(*ParseSize("64K"), 65536u);
  EXPECT_EQ(*ParseSize("2MB"), 2'000'000u);
  EXPECT_EQ(*ParseSize("1.5GiB"), uint64_t{3} << 29);
  EXPECT_EQ(*ParseSize("1TB"), 1'000'000'000'000u);
}

TEST(SizeTextTest, RefusesWhatIsNoSizeAndSaysHowOneLooks) {
  for (const char* text : {"", "MiB", "-1", "1XB", "nan", "inf", "1e30", "9999999TiB", "1 2"}) {
    const Result<uint64_t> size = ParseSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.status().code(), Code::kInvalid);
    EXPECT_NE(size.status().message().find("512MiB"), std::string::npos);
  }
}

TEST(SizeTextTest, WritesWholeUnitsExactly) {
  EXPECT_EQ(SizeText(0), "0B");
  EXPECT_EQ(SizeText(1000), "1000B");
  EXPECT_EQ(SizeText(64 << 10), "64KiB");
  EXPECT_EQ(SizeText(2 << 20), "2MiB");
  EXPECT_EQ(SizeText(1536 << 20), "1.5GiB");
}

}  // namespace
}  // namespace aquifer
