#include "base/text/duration_text.h"

#include <gtest/gtest.h>

namespace aquifer {
namespace {

TEST(DurationTextTest, ReadsTimesAsPeopleWriteThem) {
  EXPECT_EQ(*ParseSeconds("0"), 0);
  EXPECT_EQ(*ParseSeconds("90"), 90);
  EXPECT_EQ(*ParseSeconds("90s"), 90);
  EXPECT_EQ(*ParseSeconds("15 m"), 900);
  EXPECT_EQ(*ParseSeconds("12h"), 43'200);
  EXPECT_EQ(*ParseSeconds("7d"), 604'800);
}

TEST(DurationTextTest, RefusesWhatIsNoTimeAndSaysHowOneLooks) {
  for (const char* text : {"", "s", "-1s", "1w", "1.5h", "10 minutes", "99999999999999999999s",
                           "9223372036854775807d", "1000000d"}) {
    const Result<int64_t> seconds = ParseSeconds(text);
    ASSERT_FALSE(seconds.ok()) << text;
    EXPECT_EQ(seconds.status().code(), Code::kInvalid);
    EXPECT_NE(seconds.status().message().find("15m"), std::string::npos);
  }
}

TEST(DurationTextTest, WritesTheLargestUnitThatIsExact) {
  EXPECT_EQ(SecondsText(0), "0s");
  EXPECT_EQ(SecondsText(90), "90s");
  EXPECT_EQ(SecondsText(3'600), "1h");
  EXPECT_EQ(SecondsText(604'800), "7d");
}

}  // namespace
}  // namespace aquifer
