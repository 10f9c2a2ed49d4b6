#include "aquifer/status.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/check.h"

namespace aquifer {
namespace {

TEST(StatusTest, ADefaultStatusIsOkAndSaysNothing) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.ToString(), "ok");
}

TEST(StatusTest, TheTextHasTheCodeAndTheMessage) {
  EXPECT_EQ(Status(Code::kNotFound).ToString(), "not found");
  EXPECT_EQ(Status(Code::kNoSpace, "the pool is full").ToString(), "no space: the pool is full");
}

TEST(StatusTest, EveryCodeHasAName) {
  for (int code = 0; code <= static_cast<int>(Code::kInvalid); ++code) {
    EXPECT_NE(CodeName(static_cast<Code>(code)), "unknown") << code;
  }
  EXPECT_EQ(CodeName(static_cast<Code>(200)), "unknown");
}

Result<int> Half(int value) {
  if (value % 2 != 0) return Status(Code::kInvalid, "odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  AQ_ASSIGN_OR_RETURN(const int half, Half(value));
  return Half(half);
}

Status CheckQuarter(int value) {
  AQ_RETURN_IF_ERROR(Quarter(value).status());
  return Status();
}

TEST(ResultTest, ASuccessCarriesItsValueThroughTheMacros) {
  const Result<int> result = Quarter(12);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  EXPECT_EQ(*result, 3);
  EXPECT_TRUE(CheckQuarter(12).ok());
}

TEST(ResultTest, TheFirstFailureIsTheOneReturned) {
  EXPECT_EQ(Quarter(3).status().ToString(), "invalid: odd");
  EXPECT_EQ(CheckQuarter(6).ToString(), "invalid: odd");
}

TEST(ResultTest, AValueThatCannotBeCopiedCanBeMovedOut) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  EXPECT_EQ(**result, 7);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 7);
}

TEST(CheckDeathTest, AFailedCheckEndsTheProcessAndSaysWhere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  AQ_CHECK(1 + 1 == 2);
  EXPECT_DEATH(AQ_CHECK(1 + 1 == 3), "check failed: 1 \\+ 1 == 3 .*status_test.cc");
}

}  // namespace
}  // namespace aquifer
