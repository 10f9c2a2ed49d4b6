// Tests a drive that hangs, fails or comes back, under the whole cache and step by step. Every
// request is answered in time by the clock. Memory is served as if nothing had happened.
#include <gtest/gtest.h>

#include <memory>

#include "testing/cache/stepped_cache.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/memory_disk.h"

namespace aquifer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int64_t kMillisecond = 1'000'000;

class HangingDriveTest : public testing::Test {
 protected:
  HangingDriveTest() { Mount(); }

  void Mount() {
    SteppedCacheOptions options;
    options.cache.dram_bytes = 4 * kMiB;
    options.cache.nvme_directories = {"memory"};
    options.cache.nvme_bytes = 32 * kMiB;
    options.cache.nvme_segment_bytes = kMiB;
    cache_ = std::make_unique<SteppedCache>(media_, options);
    engine_ = std::make_unique<TestEngine>(cache_.get(), layout_);
  }

  void Restart() {
    engine_.reset();
    cache_.reset();
    Mount();
  }

  Chain MakeChain(uint64_t seed, size_t blocks) const {
    return Chain(layout_, {.seed = seed, .blocks = blocks});
  }

  // A chain on the drive and one in memory.
  void StoreBoth() {
    ASSERT_EQ(engine_->Store(on_drive_), 8u);
    ASSERT_TRUE(engine_->Flush().ok());
    Restart();
    ASSERT_EQ(engine_->Store(in_memory_), 8u);
  }

  // Submits and waits, and returns how long it took by the cache's own clock.
  int64_t FetchNanos(FetchRequest* fetch, const Chain& chain, int64_t timeout_nanos) {
    fetch->chain = engine_->Slice(chain);
    fetch->timeout_nanos = timeout_nanos;
    const int64_t start = cache_->clock()->NowNanos();
    cache_->Fetch(fetch);
    EXPECT_TRUE(cache_->Wait(*fetch, 10 * timeout_nanos));
    return cache_->clock()->NowNanos() - start;
  }

  const Layout layout_ = LayoutOfBytes(64 << 10);
  const std::shared_ptr<MemoryMedia> media_ = std::make_shared<MemoryMedia>();
  std::unique_ptr<SteppedCache> cache_;
  std::unique_ptr<TestEngine> engine_;
  const Chain on_drive_ = MakeChain(1, 8);
  const Chain in_memory_ = MakeChain(2, 8);
};

TEST_F(HangingDriveTest, AFetchIsLateAtItsDeadlineAndNotAfter) {
  StoreBoth();
  cache_->disk()->Hang(true);
  FetchRequest fetch;
  EXPECT_EQ(FetchNanos(&fetch, on_drive_, 30 * kMillisecond), 30 * kMillisecond);
  EXPECT_EQ(engine_->CheckAndRelease(on_drive_, {}, fetch), Recalled{.late = 8});
  cache_->disk()->Hang(false);
  EXPECT_EQ(engine_->Recall(on_drive_), Recalled{.right = 8});
}

TEST_F(HangingDriveTest, MemoryIsServedAtOnce) {
  StoreBoth();
  cache_->disk()->Hang(true);
  FetchRequest late;
  late.chain = engine_->Slice(on_drive_);
  cache_->Fetch(&late);
  FetchRequest fetch;
  EXPECT_EQ(FetchNanos(&fetch, in_memory_, 30 * kMillisecond), 0);
  EXPECT_EQ(engine_->CheckAndRelease(in_memory_, {}, fetch), Recalled{.right = 8});
  EXPECT_EQ(engine_->Store(MakeChain(3, 8)), 8u);
  EXPECT_FALSE(late.done());
  engine_->Finish(late);
  EXPECT_EQ(engine_->CheckAndRelease(on_drive_, {}, late), Recalled{.late = 8});
}

TEST_F(HangingDriveTest, AFlushIsLateAtItsDeadline) {
  ASSERT_EQ(engine_->Store(on_drive_), 8u);
  ASSERT_TRUE(engine_->Flush().ok());
  cache_->disk()->Hang(true);
  ASSERT_EQ(engine_->Store(in_memory_), 8u);
  FlushRequest flush;
  flush.timeout_nanos = 50 * kMillisecond;
  const int64_t start = cache_->clock()->NowNanos();
  cache_->Flush(&flush);
  engine_->Finish(flush);
  EXPECT_EQ(flush.status.code(), Code::kLate);
  EXPECT_EQ(cache_->clock()->NowNanos() - start, 50 * kMillisecond);
}

TEST_F(HangingDriveTest, ADeletionIsAnsweredAndNotSaidToBeDone) {
  StoreBoth();
  cache_->disk()->Hang(true);
  EvictRequest evict;
  evict.chain = engine_->Slice(on_drive_);
  cache_->Evict(&evict);
  const bool answered = cache_->Wait(evict, 60 * kDefaultTimeoutNanos);
  EXPECT_TRUE(answered);
  if (answered) {
    EXPECT_FALSE(evict.status.ok());
  }
  EXPECT_EQ(engine_->Recall(on_drive_), Recalled{.missed = 8});

  cache_->disk()->Hang(false);  // The request is done after all.
  cache_->Advance(10 * kDefaultTimeoutNanos);
  engine_->Finish(evict);
  EXPECT_EQ(engine_->Recall(on_drive_), Recalled{.missed = 8});
  EXPECT_EQ(engine_->Counter("pending_erasures"), 0u);
  Restart();
  EXPECT_EQ(engine_->Recall(on_drive_), Recalled{.missed = 8});
}

TEST_F(HangingDriveTest, ADeletionOfABlockBeingWrittenIsAnswered) {
  ASSERT_EQ(engine_->Store(in_memory_), 8u);
  ASSERT_TRUE(engine_->Flush().ok());
  cache_->disk()->Hang(true);
  ASSERT_EQ(engine_->Store(on_drive_), 8u);  // The drive's writes hang.
  EvictRequest evict;
  evict.chain = engine_->Slice(on_drive_);
  cache_->Evict(&evict);
  EXPECT_TRUE(cache_->Wait(evict, 60 * kDefaultTimeoutNanos));
  cache_->disk()->Hang(false);
  cache_->Advance(10 * kDefaultTimeoutNanos);
  engine_->Finish(evict);
  Restart();
  EXPECT_EQ(engine_->Recall(on_drive_), Recalled{.missed = 8});
}

TEST_F(HangingDriveTest, ADriveThatHangsForLongIsOutOfServiceAndComesBack) {
  StoreBoth();
  cache_->disk()->Hang(true);
  FetchRequest fetch;
  FetchNanos(&fetch, on_drive_, 30 * kMillisecond);
  engine_->Release(fetch);
  cache_->Advance(20 * kDefaultTimeoutNanos);
  EXPECT_FALSE(engine_->StatsOf(TierKind::kNvme).in_service);
  // The cache waits for the drive no longer: it answers at once, and promises no blocks.
  EXPECT_EQ(FetchNanos(&fetch, on_drive_, 30 * kMillisecond), 0);
  EXPECT_EQ(engine_->CheckAndRelease(on_drive_, {}, fetch).right, 0u);
  EXPECT_EQ(engine_->Matched(on_drive_), 0u);
  EXPECT_EQ(engine_->Recall(in_memory_), Recalled{.right = 8});

  cache_->disk()->Hang(false);
  cache_->Advance(20 * kDefaultTimeoutNanos);
  EXPECT_TRUE(engine_->StatsOf(TierKind::kNvme).in_service);
  EXPECT_EQ(engine_->Matched(on_drive_), 8u);
  EXPECT_EQ(engine_->Recall(on_drive_), Recalled{.right = 8});
  EXPECT_TRUE(engine_->Flush().ok());
}

TEST_F(HangingDriveTest, ASlotUnderAHangingReadIsNobodyElses) {
  StoreBoth();
  cache_->disk()->Hang(true);
  FetchRequest fetch;
  FetchNanos(&fetch, on_drive_, 30 * kMillisecond);
  engine_->Release(fetch);
  // The device may still write to its buffers. All other memory is used meanwhile.
  const Chain others = MakeChain(3, 64);
  engine_->Store(others);
  cache_->disk()->Hang(false);
  cache_->Advance(kDefaultTimeoutNanos);
  EXPECT_EQ(engine_->Recall(others).wrong, 0u);
  EXPECT_EQ(engine_->Recall(on_drive_).wrong, 0u);
  EXPECT_EQ(engine_->Counter("corrupt_blocks"), 0u);
}

TEST_F(HangingDriveTest, ReadsThatFailAreAnsweredBeforeTheDeadline) {
  StoreBoth();
  cache_->disk()->FailAll(IoKind::kRead, Code::kUnavailable);
  FetchRequest fetch;
  EXPECT_LT(FetchNanos(&fetch, on_drive_, 500 * kMillisecond), 500 * kMillisecond);
  const Recalled recalled = engine_->CheckAndRelease(on_drive_, {}, fetch);
  EXPECT_EQ(recalled.right + recalled.wrong + recalled.late, 0u) << recalled;
  EXPECT_EQ(engine_->Recall(in_memory_), Recalled{.right = 8});

  cache_->disk()->FailAll(IoKind::kRead, Code::kOk);
  cache_->Advance(20 * kDefaultTimeoutNanos);
  const Recalled later = engine_->Recall(on_drive_);
  EXPECT_EQ(later.right + later.missed, 8u) << later;
}

TEST_F(HangingDriveTest, WritesThatFailLeaveTheCacheInMemoryUntilTheyWorkAgain) {
  StoreBoth();
  cache_->disk()->FailAll(IoKind::kWrite, Code::kUnavailable);
  const Chain chain = MakeChain(3, 8);
  EXPECT_EQ(engine_->Store(chain), 8u);
  EXPECT_FALSE(engine_->Flush(2 * kDefaultTimeoutNanos).ok());
  EXPECT_EQ(engine_->Recall(chain), Recalled{.right = 8});

  cache_->disk()->FailAll(IoKind::kWrite, Code::kOk);
  cache_->Advance(20 * kDefaultTimeoutNanos);
  EXPECT_TRUE(engine_->Flush().ok());
  Restart();
  EXPECT_EQ(engine_->Recall(on_drive_), Recalled{.right = 8});
  EXPECT_EQ(engine_->Recall(chain), Recalled{.right = 8});
}

TEST_F(HangingDriveTest, AClientMayLeaveWhileItsReadsHang) {
  StoreBoth();
  cache_->disk()->Hang(true);
  auto fetch = std::make_unique<FetchRequest>();
  fetch->chain = engine_->Slice(on_drive_);
  cache_->Fetch(fetch.get());
  cache_->Advance(kMillisecond);
  engine_.reset();
  cache_.reset();  // The disk's destructor completes the reads: none may touch freed memory.
  fetch.reset();
  Mount();
  EXPECT_EQ(engine_->Recall(on_drive_), Recalled{.right = 8});
}

}  // namespace
}  // namespace aquifer
