#include "io/disk/io_progress.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

namespace aquifer {
namespace {

std::string PathOf(uint32_t number) { return "dir/" + std::to_string(number); }

class IoProgressTest : public testing::Test {
 protected:
  IoProgressTest() : bytes_(8 * kPageBytes) {
    request_.file = 3;
    request_.data = bytes_;
  }

  IoStep Take(int64_t result) { return TakeResult(result, &request_, &done_, PathOf); }

  std::vector<std::byte> bytes_;
  IoRequest request_;
  size_t done_ = 0;
};

TEST_F(IoProgressTest, AWholeAnswerFinishes) {
  EXPECT_EQ(Take(8 * kPageBytes), IoStep::kFinished);
  EXPECT_TRUE(request_.status.ok());
  EXPECT_EQ(done_, 8 * kPageBytes);
}

TEST_F(IoProgressTest, AShortReadGoesOnWhereItStopped) {
  EXPECT_EQ(Take(3 * kPageBytes), IoStep::kContinue);
  EXPECT_EQ(done_, 3 * kPageBytes);
  EXPECT_EQ(Take(5 * kPageBytes), IoStep::kFinished);
  EXPECT_TRUE(request_.status.ok());
}

TEST_F(IoProgressTest, AShortWriteGoesOnAtAWholePage) {
  request_.kind = IoKind::kWrite;
  EXPECT_EQ(Take(3 * kPageBytes + 512), IoStep::kContinue);
  EXPECT_EQ(done_, 3 * kPageBytes);
  EXPECT_EQ(Take(5 * kPageBytes), IoStep::kFinished);
  EXPECT_TRUE(request_.status.ok());
}

TEST_F(IoProgressTest, AnInterruptedCallIsRepeated) {
  EXPECT_EQ(Take(-EINTR), IoStep::kContinue);
  EXPECT_EQ(Take(-EAGAIN), IoStep::kContinue);
  EXPECT_EQ(done_, 0u);
}

TEST_F(IoProgressTest, AReadThatReachesTheEndOfTheFileFindsNothing) {
  EXPECT_EQ(Take(2 * kPageBytes), IoStep::kContinue);
  EXPECT_EQ(Take(0), IoStep::kFinished);
  EXPECT_EQ(request_.status.code(), Code::kNotFound);
}

TEST_F(IoProgressTest, AReadThatEndsInThePageFindsNothing) {
  EXPECT_EQ(Take(kPageBytes + 100), IoStep::kFinished);
  EXPECT_EQ(request_.status.code(), Code::kNotFound);
}

TEST_F(IoProgressTest, AWriteThatMovesNothingIsAFailingDevice) {
  request_.kind = IoKind::kWrite;
  EXPECT_EQ(Take(512), IoStep::kFinished);
  EXPECT_EQ(request_.status.code(), Code::kUnavailable);
  EXPECT_EQ(request_.status.message(), "dir/3: wrote 512 of 32768 bytes");
}

TEST_F(IoProgressTest, AnErrorNamesTheFileAndTheReason) {
  request_.kind = IoKind::kWrite;
  EXPECT_EQ(Take(-EIO), IoStep::kFinished);
  EXPECT_EQ(request_.status.code(), Code::kUnavailable);
  EXPECT_EQ(request_.status.message(), "cannot write dir/3: Input/output error");
  EXPECT_EQ(Take(-ENOSPC), IoStep::kFinished);
  EXPECT_EQ(request_.status.code(), Code::kNoSpace);
  EXPECT_EQ(Take(-EDQUOT), IoStep::kFinished);
  EXPECT_EQ(request_.status.code(), Code::kNoSpace);
}

TEST_F(IoProgressTest, ASyncHasNothingToMove) {
  request_.kind = IoKind::kSync;
  EXPECT_EQ(Take(0), IoStep::kFinished);
  EXPECT_TRUE(request_.status.ok());
  EXPECT_EQ(Take(-EIO), IoStep::kFinished);
  EXPECT_EQ(request_.status.message(), "cannot sync dir/3: Input/output error");
}

TEST_F(IoProgressTest, ARequestMustLieWithinTheFile) {
  EXPECT_TRUE(CheckWithin(request_, 8 * kPageBytes, PathOf).ok());
  EXPECT_EQ(CheckWithin(request_, 7 * kPageBytes, PathOf).code(), Code::kNotFound);
  request_.offset = UINT64_MAX - kPageBytes + 1;
  EXPECT_EQ(CheckWithin(request_, 8 * kPageBytes, PathOf).code(), Code::kNotFound);
  request_.kind = IoKind::kWrite;
  EXPECT_EQ(CheckWithin(request_, 8 * kPageBytes, PathOf).code(), Code::kInvalid);
}

}  // namespace
}  // namespace aquifer
