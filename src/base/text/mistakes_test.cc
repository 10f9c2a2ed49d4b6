#include "base/text/mistakes.h"

#include <gtest/gtest.h>

#include <string>

namespace aquifer {
namespace {

TEST(MistakesTest, NoneIsOk) {
  Mistakes mistakes;
  mistakes.Add(Status());
  EXPECT_TRUE(mistakes.none());
  EXPECT_TRUE(mistakes.All().ok());
}

TEST(MistakesTest, EachHasALineAndTheFirstGivesTheCode) {
  Mistakes mistakes;
  mistakes.Add(Status(Code::kNoSpace, "a:1: one"));
  mistakes.Add(Status(Code::kInvalid, "a:2: two\na:3: three"));
  EXPECT_EQ(mistakes.All().code(), Code::kNoSpace);
  EXPECT_EQ(mistakes.All().message(), "a:1: one\na:2: two\na:3: three");
}

TEST(MistakesTest, ThoseBeyondTheBoundAreCounted) {
  Mistakes mistakes;
  for (size_t i = 0; i < Mistakes::kMostLines + 7; ++i) {
    mistakes.Add(Status(Code::kInvalid, "m" + std::to_string(i)));
  }
  const std::string text = mistakes.All().message();
  EXPECT_TRUE(text.ends_with("\nm19\nand 7 more")) << text;
}

}  // namespace
}  // namespace aquifer
