// A store that cannot fail tests nothing: each of its faults is seen here once.
#include "sim/world/simulated_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace aquifer {
namespace {

constexpr size_t kPage = 4096;
constexpr int64_t kSecond = 1'000'000'000;

class SimulatedStoreTest : public testing::Test {
 protected:
  void Make(const SimulatedStoreOptions& options) {
    store_ = std::make_unique<SimulatedStore>(options, &scheduler_);
    connection_ = store_->Connect(scheduler_.NewParty(), scheduler_.clock());
  }
  void RunFor(int64_t nanos) {
    bool over = false;
    scheduler_.At(scheduler_.now() + nanos, 0, [&over] { over = true; });
    while (!over) scheduler_.RunOne();
  }
  // Null: it was not answered within a minute.
  std::unique_ptr<BlobRequest> Ask(BlobKind kind, const std::string& name, char fill = 'x',
                                   int64_t timeout_nanos = 60 * kSecond) {
    auto request = std::make_unique<BlobRequest>();
    request->kind = kind;
    request->name = name;
    if (kind != BlobKind::kRemove) request->head = std::span(memory_).first(kPage);
    if (kind == BlobKind::kWrite || kind == BlobKind::kRead) {
      request->body = std::span(memory_).subspan(kPage, kPage);
      request->body_bytes = kind == BlobKind::kWrite ? kPage : 0;
    }
    if (kind == BlobKind::kWrite) std::memset(memory_.data(), fill, memory_.size());
    request->deadline_nanos = scheduler_.now() + timeout_nanos;
    bool done = false;
    request->on_done = [&done](BlobRequest&) { done = true; };
    connection_->Submit(request.get());
    for (int step = 0; step < 1000 && !done; ++step) {
      if (!scheduler_.RunOne()) break;
    }
    EXPECT_TRUE(done);
    return request;
  }
  Code Do(BlobKind kind, const std::string& name, char fill = 'x') {
    return Ask(kind, name, fill)->status.code();
  }
  size_t Listed() {
    size_t count = 0;
    bool done = false;
    connection_->List("", "", 100, [&](const Result<BlobStore::Names>& names) {
      done = true;
      count = names.ok() ? names->size() : 99;
    });
    while (!done) scheduler_.RunOne();
    return count;
  }

  Scheduler scheduler_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(2 * kPage);
  std::unique_ptr<SimulatedStore> store_;
  std::unique_ptr<SimulatedStore::Connection> connection_;
};

TEST_F(SimulatedStoreTest, WhatIsWrittenIsReadByAnotherConnection) {
  Make({});
  EXPECT_EQ(Do(BlobKind::kRead, "a"), Code::kNotFound);
  EXPECT_EQ(Do(BlobKind::kWrite, "a", 'q'), Code::kOk);
  connection_ = store_->Connect(scheduler_.NewParty(), scheduler_.clock());
  std::memset(memory_.data(), 0, memory_.size());
  EXPECT_EQ(Do(BlobKind::kRead, "a"), Code::kOk);
  EXPECT_EQ(memory_[2 * kPage - 1], static_cast<std::byte>('q'));
  EXPECT_EQ(Do(BlobKind::kRemove, "a"), Code::kOk);
  EXPECT_EQ(Do(BlobKind::kRemove, "a"), Code::kNotFound);
}

TEST_F(SimulatedStoreTest, AnAnswerThatIsLostSaysNothingOfWhatWasDone) {
  Make({});
  store_->LoseAnswers(1);
  EXPECT_EQ(Do(BlobKind::kWrite, "a"), Code::kUnavailable);
  EXPECT_EQ(Do(BlobKind::kLook, "a"), Code::kOk);
}

TEST_F(SimulatedStoreTest, AFailureDoesNothing) {
  Make({});
  store_->FailNext(1);
  EXPECT_EQ(Do(BlobKind::kWrite, "a"), Code::kUnavailable);
  EXPECT_EQ(Do(BlobKind::kLook, "a"), Code::kNotFound);
}

TEST_F(SimulatedStoreTest, AFullStoreRefusesAndForgetsNothing) {
  Make({.capacity_bytes = 3 * kPage});
  EXPECT_EQ(Do(BlobKind::kWrite, "a"), Code::kOk);
  EXPECT_EQ(Do(BlobKind::kWrite, "b"), Code::kNoSpace);
  EXPECT_EQ(Do(BlobKind::kRead, "a"), Code::kOk);
}

TEST_F(SimulatedStoreTest, AHangingStoreAnswersLateOrNotAtAll) {
  Make({});
  store_->Hang(true);
  EXPECT_EQ(Do(BlobKind::kWrite, "a"), Code::kLate);
  store_->Hang(false);
  EXPECT_EQ(Do(BlobKind::kLook, "a"), Code::kNotFound);
}

TEST_F(SimulatedStoreTest, AHangingDeviceKeepsTheMemoryPastTheDeadline) {
  Make({.holds_buffers = true});
  store_->Hang(true);
  scheduler_.At(scheduler_.now() + 90 * kSecond, 0, [this] { store_->Hang(false); });
  EXPECT_EQ(Ask(BlobKind::kWrite, "a", 'x', kSecond)->status.code(), Code::kOk);
  EXPECT_GE(scheduler_.now(), 90 * kSecond);
}

TEST_F(SimulatedStoreTest, AListingMayLag) {
  Make({.listing_lag_nanos = 10 * kSecond});
  EXPECT_EQ(Do(BlobKind::kWrite, "a"), Code::kOk);
  EXPECT_EQ(Listed(), 0u);
  RunFor(11 * kSecond);
  EXPECT_EQ(Listed(), 1u);
  EXPECT_EQ(Do(BlobKind::kRemove, "a"), Code::kOk);
  EXPECT_EQ(Listed(), 1u);
  RunFor(11 * kSecond);
  EXPECT_EQ(Listed(), 0u);
}

TEST_F(SimulatedStoreTest, OnlyTheVersionThatWasLookedAtIsRemoved) {
  Make({});
  EXPECT_EQ(Do(BlobKind::kWrite, "a"), Code::kOk);
  const std::string version = Ask(BlobKind::kLook, "a")->version;
  EXPECT_EQ(Do(BlobKind::kWrite, "a"), Code::kOk);
  BlobRequest removal{.kind = BlobKind::kRemove, .name = "a", .version = version};
  bool done = false;
  removal.on_done = [&done](BlobRequest&) { done = true; };
  connection_->Submit(&removal);
  while (!done) scheduler_.RunOne();
  EXPECT_EQ(removal.status.code(), Code::kNotFound);
  EXPECT_EQ(store_->blobs(), 1u);
}

TEST_F(SimulatedStoreTest, DamageAndAnAdministratorAreSeen) {
  Make({});
  EXPECT_EQ(Do(BlobKind::kWrite, "a"), Code::kOk);
  SeededRandom random(3);
  ASSERT_TRUE(store_->DamageOne(&random));
  std::vector<std::byte> before(2 * kPage, static_cast<std::byte>('x'));
  const Code code = Do(BlobKind::kRead, "a");
  EXPECT_TRUE(code == Code::kCorrupt || !std::ranges::equal(before, memory_));
  EXPECT_EQ(store_->Empty(), 1u);
  EXPECT_EQ(Do(BlobKind::kRead, "a"), Code::kNotFound);
}

TEST_F(SimulatedStoreTest, ANodeThatDiesHearsNoMore) {
  Make({});
  BlobRequest request{.kind = BlobKind::kLook, .name = "a"};
  int answers = 0;
  request.on_done = [&answers](BlobRequest&) { ++answers; };
  connection_->Submit(&request);
  connection_->Abandon();
  RunFor(10 * kSecond);
  EXPECT_EQ(answers, 0);
  connection_.reset();
  EXPECT_EQ(answers, 1);  // Only so that whoever holds the request can free it.
}

}  // namespace
}  // namespace aquifer
