#include "store/store_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/memory_blob_store.h"

namespace aquifer {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class StoreCheckTest : public testing::Test {
 protected:
  StoreCheckTest() {
    options_.large_bytes = 256 << 10;
    options_.patience_nanos = 0;
  }

  StoreReport Check() { return CheckStore(&store_, options_, SystemClock(), SystemRandom()); }

  StoreCheckOptions options_;
  const std::shared_ptr<MemoryBlobs> blobs_ = std::make_shared<MemoryBlobs>();
  MemoryBlobStore store_{blobs_};
};

TEST_F(StoreCheckTest, AStoreThatWorksIsMeasuredAndLeftAsItWas) {
  const StoreReport report = Check();
  ASSERT_TRUE(report.status.ok()) << report.step << ": " << report.status.ToString();
  EXPECT_EQ(report.step, "");
  ASSERT_EQ(report.measures.size(), 8u);
  EXPECT_EQ(report.measures[0].kind, BlobKind::kWrite);
  EXPECT_EQ(report.measures[0].blob_bytes, 4096u);
  EXPECT_EQ(report.measures[0].count, 8u);
  EXPECT_EQ(report.measures[6].kind, BlobKind::kRead);
  EXPECT_EQ(report.measures[6].blob_bytes, 256u << 10);
  EXPECT_EQ(report.measures[6].at_once, 8u);
  for (const StoreMeasure& measure : report.measures) {
    EXPECT_GE(measure.worst_nanos, measure.median_nanos);
    EXPECT_GT(measure.bytes_per_second, 0);
  }
  EXPECT_THAT(blobs_->Names(), IsEmpty());
}

TEST_F(StoreCheckTest, WhatTheStoreSaysIsPassedOn) {
  store_.FailNext(BlobKind::kWrite, Code::kNoSpace);
  StoreReport report = Check();
  EXPECT_EQ(report.status.code(), Code::kNoSpace);
  EXPECT_EQ(report.step, "writing 4 KiB");
  store_.Fail(Code::kUnavailable, "the bucket is not there; make it");
  report = Check();
  EXPECT_THAT(report.status.message(), HasSubstr("the bucket is not there; make it"));
  EXPECT_THAT(report.measures, IsEmpty());
  store_.Fail(Code::kOk);
  store_.FailNext(BlobKind::kRemove, Code::kUnavailable);
  report = Check();
  EXPECT_EQ(report.step, "removing 4 KiB");
}

TEST_F(StoreCheckTest, AStoreThatIsStillConnectingIsWaitedFor) {
  options_.patience_nanos = 30'000'000'000;
  int asked = 0;
  store_.FailNext(BlobKind::kLook, Code::kUnavailable, 3);
  store_.OnRequest([&asked](const BlobRequest&) { ++asked; });
  EXPECT_TRUE(Check().status.ok());
  EXPECT_GT(asked, 3);
}

TEST_F(StoreCheckTest, WrongBytesAreFound) {
  store_.OnRequest([this](const BlobRequest& request) {
    if (request.kind == BlobKind::kRead) blobs_->FlipBit(request.name, 77);
  });
  const StoreReport report = Check();
  EXPECT_EQ(report.status.code(), Code::kCorrupt);
  EXPECT_EQ(report.step, "reading 4 KiB");
  EXPECT_THAT(blobs_->Names(), IsEmpty()) << "it removes what it wrote all the same";
  store_.OnRequest([this](const BlobRequest& request) {
    if (request.kind == BlobKind::kLook) blobs_->Truncate(request.name, 100);
  });
  EXPECT_THAT(Check().status.message(), HasSubstr("4096 bytes were written and 100 are there"));
}

TEST_F(StoreCheckTest, AStoreThatHoldsOnIsGivenUp) {
  options_.request_nanos = 1'000'000;
  options_.grace_nanos = 1'000'000;
  store_.Hang(true, true);
  const StoreReport report = Check();
  EXPECT_EQ(report.status.code(), Code::kLate);
  EXPECT_EQ(report.step, "writing 4 KiB");
  EXPECT_GT(store_.held(), 0u) << "its memory is still the store's";
  store_.Hang(false);
}

}  // namespace
}  // namespace aquifer
