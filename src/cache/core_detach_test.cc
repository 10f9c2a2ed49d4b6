// A drive that is out of service for a minute is detached: engines store its blocks again, on other
// drives, and it brings the rest back when it returns.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "testing/cache/core_absent_drive_fixture.h"

namespace aquifer {
namespace {

class CoreDetachTest : public CoreAbsentDriveFixture {
 protected:
  static constexpr size_t kLong = 32;

  // The chain is on both drives; then one of them is out of service, and after a minute detached.
  // Returns how many blocks it had.
  size_t StoreOnTwoAndDetachOne() {
    CoreOptions options = SmallCache(128);
    options.cache.nvme_bytes = 128 << 20;
    options.cache.nvme_directories = {kDrive, "other"};
    Make(options);
    EXPECT_EQ(Store(long_), kLong);
    EXPECT_TRUE(Flush().ok());
    Restart();
    world_->disk(kDrive).Hang(true);
    Recall(long_);
    world_->Advance(10 * kSecond);
    const size_t missing = kLong - Recall(long_);
    EXPECT_GT(missing, 0u);
    EXPECT_LT(missing, kLong);
    world_->Advance(60 * kSecond);
    return missing;
  }

  const Chain long_{layout_, {.seed = 3, .blocks = kLong}};
};

TEST_F(CoreDetachTest, BlocksOfADriveThatIsAwayForAMomentCountAsStored) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
  ASSERT_EQ(Recall(chain_), 0u);
  EXPECT_EQ(Count(*Reserve(chain_, client_.get()), ReserveOutcome::kHave), kBlocks);
  BringDriveBack();
  EXPECT_EQ(Recall(chain_), kBlocks);
}

TEST_F(CoreDetachTest, BlocksOfADetachedDriveAreStoredAgainOnAnother) {
  const size_t missing = StoreOnTwoAndDetachOne();
  EXPECT_EQ(Store(long_), missing);
  EXPECT_EQ(Recall(long_), kLong);
  EXPECT_TRUE(Flush().ok());
  EXPECT_EQ(Counter("nvme_live_blocks"), kLong);
  EXPECT_EQ(Counter("blocks_only_in_dram"), 0u);
  ASSERT_NO_FATAL_FAILURE(ExpectNoDamage());
  // A crash before the drive is back leaves two records of each; the later one counts.
  for (const bool back : {false, true}) {
    SCOPED_TRACE(back);
    if (back) {
      world_->disk(kDrive).Hang(false);
      world_->Advance(5 * kSecond);
    }
    Restart();
    EXPECT_EQ(Recall(long_), kLong);
    EXPECT_EQ(Counter("nvme_live_blocks"), kLong);
  }
  EXPECT_TRUE(Evict(long_)->status.ok());
  Restart();
  EXPECT_EQ(Recall(long_), 0u);
  EXPECT_EQ(Counter("blocks"), 0u);
}

TEST_F(CoreDetachTest, OtherBytesStoredAgainCountWhenTheDriveIsBack) {
  const size_t missing = StoreOnTwoAndDetachOne();
  std::vector<Code> before;
  Recall(long_, &before);
  EXPECT_EQ(Store(long_, client_.get(), 1), missing);
  EXPECT_TRUE(Flush().ok());
  world_->disk(kDrive).Hang(false);
  world_->Advance(5 * kSecond);
  Restart();
  const auto fetch = Fetch(long_);
  for (size_t i = 0; i < kLong; ++i) {
    ASSERT_TRUE(fetch->ops[i].status.ok());
    const uint16_t computation = before[i] == Code::kOk ? 0 : 1;
    EXPECT_TRUE(IsPayload(long_[i], computation, fetch->ops[i].bytes)) << i;
  }
  Release(*fetch);
  ExpectNoDamage();
}

TEST_F(CoreDetachTest, ADetachedDriveBringsItsBlocksBack) {
  for (const bool reading : {false, true}) {
    SCOPED_TRACE(reading ? "its reads hang" : "it was not read");
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), reading));
    world_->Advance(60 * kSecond);
    EXPECT_EQ(Counter("blocks"), reading ? kBlocks : other_.size()) << "gone, but for their reads";
    EXPECT_EQ(Bytes(1), 0u);
    EXPECT_EQ(Counter("dropped_by_tier"), kBlocks + 1);
    BringDriveBack();
    EXPECT_EQ(Recall(chain_), kBlocks);
    EXPECT_TRUE(Flush().ok());
    EXPECT_EQ(Counter("blocks"), kBlocks + 1);
    EXPECT_EQ(Counter("quarantined_bytes"), 0u);
    ExpectNoDamage();
  }
}

// What DRAM has of them may go to any other drive.
TEST_F(CoreDetachTest, BlocksThatMemoryHasAreWrittenToAnotherDrive) {
  CoreOptions options = SmallCache(128);
  options.cache.nvme_bytes = 128 << 20;
  options.cache.nvme_directories = {kDrive, "other"};
  Make(options);
  ASSERT_EQ(Store(long_), kLong);
  ASSERT_TRUE(Flush().ok());
  const uint64_t written = Counter("write_down_blocks");
  world_->disk(kDrive).Hang(true);
  ASSERT_EQ(Store(other_), other_.size());
  for (uint64_t seed = 10; seed < 14; ++seed) {
    ASSERT_EQ(Store(Chain(layout_, {.seed = seed, .blocks = 4})), 4u);
  }
  world_->Advance(75 * kSecond);
  ASSERT_FALSE(InService());
  EXPECT_EQ(Recall(long_), kLong);
  EXPECT_TRUE(Flush().ok());
  EXPECT_GT(Counter("write_down_blocks"), written + other_.size() + 16);
  EXPECT_EQ(Counter("blocks_only_in_dram"), 0u);
}

TEST_F(CoreDetachTest, ADeletionReachesTheDriveWhenItIsBack) {
  for (const bool everything : {false, true}) {
    for (const bool stored_again : {false, true}) {
      SCOPED_TRACE(std::to_string(everything) + std::to_string(stored_again));
      ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache()));
      world_->Advance(60 * kSecond);
      if (stored_again) {
        ASSERT_EQ(Store(chain_, client_.get(), 1), kBlocks);
      }
      EvictRequest evict;
      if (everything) evict.everything = true;
      if (!everything) evict.chain = Slice(chain_);
      client_->Do(&Core::Evict, &evict);
      EXPECT_EQ(evict.status.code(), Code::kUnavailable) << "the drive has it";
      EXPECT_EQ(evict.evicted, stored_again ? kBlocks : 0);
      BringDriveBack();
      EXPECT_EQ(Recall(chain_), 0u);
      EXPECT_TRUE(Evict(chain_)->status.ok());
      EXPECT_TRUE(Evict(other_)->status.ok());
      ExpectNothingLeft();
      Restart();
      EXPECT_EQ(Counter("blocks"), 0u);
    }
  }
}

TEST_F(CoreDetachTest, ADeletedSessionStaysDeletedWhenTheDriveIsBack) {
  ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(SmallCache(), /*reading=*/false, /*ttl_seconds=*/3600));
  Hint(chain_, 3600);
  world_->Run();
  world_->Advance(60 * kSecond);
  EvictRequest evict;
  evict.session = "session";
  client_->Do(&Core::Evict, &evict);
  EXPECT_EQ(evict.status.code(), Code::kUnavailable);
  BringDriveBack();
  EXPECT_EQ(Recall(chain_), 0u);
}

TEST_F(CoreDetachTest, ADriveThatIsBackInTheMiddleOfItKeepsTheRest) {
  CoreOptions options = SmallCache();
  options.detach_nanos = 20 * kSecond;
  for (int64_t tenths = 0; tenths < 40; ++tenths) {
    SCOPED_TRACE(tenths);
    ASSERT_NO_FATAL_FAILURE(StoreAndLoseDrive(options));
    world_->Advance(8 * kSecond + tenths * kSecond / 10);
    BringDriveBack();
    EXPECT_EQ(Recall(chain_), kBlocks);
    EXPECT_EQ(Counter("blocks"), kBlocks + 1);
    EXPECT_TRUE(Evict(chain_)->status.ok());
  }
}

}  // namespace
}  // namespace aquifer
