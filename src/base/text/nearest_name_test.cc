#include "base/text/nearest_name.h"

#include <gtest/gtest.h>

#include <vector>

namespace aquifer {
namespace {

const std::vector<std::string>& Names() {
  static const auto* const names = new std::vector<std::string>{"demo", "bench", "serve"};
  return *names;
}

TEST(NearestNameTest, FindsWhatWasMeant) {
  EXPECT_EQ(NearestName("bnech", Names()), "bench");
  EXPECT_EQ(NearestName("benchmark", std::vector<std::string>{"bench"}), "");
  EXPECT_EQ(NearestName("dem", Names()), "demo");
  EXPECT_EQ(NearestName("s", Names()), "serve");
}

TEST(NearestNameTest, SuggestsNothingForSomethingElse) {
  EXPECT_EQ(NearestName("frobnicate", Names()), "");
  EXPECT_EQ(NearestName("xy", Names()), "");
  EXPECT_EQ(NearestName("", Names()), "");
  EXPECT_EQ(NearestName("demo", {}), "");
}

}  // namespace
}  // namespace aquifer
