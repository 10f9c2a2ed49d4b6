// Promises that a fault, or an unusual neighbour, once broke.
#include <gtest/gtest.h>

#include <memory>

#include "cache/core.h"
#include "testing/cache/stepped_cache.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = 16 << 10;
constexpr int64_t kSecond = 1'000'000'000;

SteppedCacheOptions SmallCache() {
  SteppedCacheOptions options;
  options.cache.dram_bytes = 4 << 20;
  options.cache.keep_available_bytes = 0;
  options.cache.nvme_directories = {"drive"};
  options.cache.nvme_bytes = 64 << 20;
  options.cache.nvme_segment_bytes = 4 << 20;
  return options;
}

// A drive may write a page and fail all the same.
TEST(CoreFaultsTest, ABlockWhoseWriteFailedIsGoneForGoodOnceItIsDeleted) {
  const auto media = std::make_shared<MemoryMedia>();
  const Layout layout = LayoutOfBytes(kBlockBytes);
  const Chain chain(layout, {.seed = 1, .blocks = 4});
  {
    SteppedCache cache(media, SmallCache());
    TestEngine engine(&cache, layout);
    cache.disk()->SetFault([&media](const IoRequest& request) {
      const bool names_blocks = request.kind == IoKind::kWrite &&
                                request.data.size() == kPageBytes && request.offset > kPageBytes;
      if (!names_blocks) return Status();
      media->SetBytes(request.file, request.offset, request.data);
      return Status(Code::kUnavailable, "written, but not acknowledged");
    });
    ASSERT_EQ(engine.Store(chain), 4u);
    cache.Advance(kSecond / 10);
    ASSERT_GT(engine.Counter("write_down_retries"), 0u);
    EXPECT_FALSE(engine.Evict(chain)->status.ok());
    cache.disk()->SetFault(nullptr);
    cache.Advance(5 * kSecond);
    EXPECT_TRUE(engine.Evict(chain)->status.ok());
  }
  SteppedCache cache(media, SmallCache());
  EXPECT_EQ(TestEngine(&cache, layout).Matched(chain), 0u);
}

TEST(CoreFaultsTest, ADeletionThatHangsIsNotAcknowledgedWhenItIsAskedForAgain) {
  const Layout layout = LayoutOfBytes(kBlockBytes);
  const Chain chain(layout, {.seed = 1, .blocks = 4});
  SteppedCache cache(std::make_shared<MemoryMedia>(), SmallCache());
  TestEngine engine(&cache, layout);
  ASSERT_EQ(engine.Store(chain), 4u);
  ASSERT_TRUE(engine.Flush().ok());
  cache.disk()->Hang(true);
  EXPECT_FALSE(engine.Evict(chain)->status.ok());  // Out of service after five seconds.
  cache.Advance(kSecond);                          // It is tried again meanwhile.
  EXPECT_FALSE(engine.Evict(chain)->status.ok());
  cache.disk()->Hang(false);
  cache.Advance(5 * kSecond);
  EXPECT_TRUE(engine.Evict(chain)->status.ok());
}

TEST(CoreFaultsTest, ATenantAtItsCeilingMakesRoomFromBlocksOfAnotherSize) {
  SteppedCacheOptions options = SmallCache();
  TenantOptions tenant;
  tenant.name = "local";
  tenant.dram_ceiling_bytes = 8 * kBlockBytes;
  options.cache.tenants = {tenant};
  SteppedCache cache(std::make_shared<MemoryMedia>(), options);
  const Layout small = LayoutOfBytes(kBlockBytes);
  const Layout large = LayoutOfBytes(2 * kBlockBytes);
  TestEngine first(&cache, small);
  ASSERT_EQ(first.Store(Chain(small, {.seed = 1, .blocks = 8})), 8u);
  ASSERT_TRUE(first.Flush().ok());
  TestEngine second(&cache, large);
  EXPECT_EQ(second.Store(Chain(large, {.seed = 2, .blocks = 2})), 2u);
}

// More is written at once than may be held for it; what was not held is at the drive when its
// extent is to be emptied for blocks of another size.
TEST(CoreFaultsTest, AnExtentThatIsEmptiedWhileItsBlocksAreBeingWrittenDoesNotStayHalfFull) {
  SteppedCacheOptions options = SmallCache();
  options.cache.dram_bytes = options.extent_bytes;
  SteppedCache cache(std::make_shared<MemoryMedia>(), options);
  const Layout small = LayoutOfBytes(kBlockBytes);
  const Layout large = LayoutOfBytes(2 * kBlockBytes);
  TestEngine first(&cache, small);
  TestEngine second(&cache, large);
  ASSERT_EQ(first.Store(Chain(small, {.seed = 1, .blocks = 4})), 4u);
  ASSERT_TRUE(first.Flush().ok());
  cache.disk()->Hang(true);
  ASSERT_EQ(first.Store(Chain(small, {.seed = 2, .blocks = 60})), 60u);
  const Chain wanted(large, {.seed = 3, .blocks = 1});
  EXPECT_EQ(second.Store(wanted), 0u);
  cache.disk()->Hang(false);
  cache.Advance(kSecond);
  for (int i = 0; i < 3 && second.Store(wanted) == 0; ++i) cache.Advance(kSecond);
  EXPECT_EQ(second.Matched(wanted), 1u);
}

TEST(CoreFaultsTest, WhatHangsBelowABlockThatWasLostOutlivesAStoreThatIsGivenUp) {
  SteppedCache cache(std::make_shared<MemoryMedia>(), SmallCache());
  const Layout layout = LayoutOfBytes(kBlockBytes);
  const Chain chain(layout, {.seed = 1, .blocks = 4});
  TestEngine engine(&cache, layout);
  ASSERT_EQ(engine.Store(chain), 4u);
  const auto fetch = engine.Fetch(chain, {.first = 1, .count = 1});
  const ReleaseOp corrupt{.lease = fetch->ops[0].lease, .corrupt = true};
  cache.Release(std::span(&corrupt, 1));
  const auto reserve = engine.Reserve(chain, {.first = 1, .count = 1});
  cache.Abort(std::span(&reserve->ops[0].reservation, 1));
  cache.Advance(kSecond);
  EXPECT_EQ(engine.Matched(chain), 1u);
  ASSERT_EQ(engine.Store(chain, {.first = 1, .count = 1}), 1u);
  EXPECT_EQ(engine.Matched(chain), 4u);
}

TEST(CoreFaultsTest, ATimeToLiveOfCenturiesIsNotOver) {
  SteppedCacheOptions options = SmallCache();
  TenantOptions tenant;
  tenant.name = "local";
  tenant.ttl_seconds = INT64_MAX;
  options.cache.tenants = {tenant};
  SteppedCache cache(std::make_shared<MemoryMedia>(), options);
  const Layout layout = LayoutOfBytes(kBlockBytes);
  const Chain chain(layout, {.seed = 1, .blocks = 4});
  TestEngine engine(&cache, layout);
  ASSERT_EQ(engine.Store(chain), 4u);
  EXPECT_EQ(engine.Matched(chain), 4u);
}

}  // namespace
}  // namespace aquifer
