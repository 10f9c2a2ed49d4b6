#include "cache/transfer/unwritten.h"

#include <gtest/gtest.h>

#include <set>

namespace aquifer {
namespace {

constexpr uint16_t kTenant = 3;
constexpr uint16_t kOther = 4;

FlushWaits::Wait Of(uint16_t tenant) { return {.tenant = tenant, .client = 0, .on_done = {}}; }

TEST(UnwrittenTest, TheOldestIsTheFirstThatIsNotWrittenOfATenantOrOfAll) {
  Unwritten unwritten;
  EXPECT_EQ(unwritten.Oldest(kTenant), 1u);  // One that nothing has.
  for (int i = 0; i < 2; ++i) unwritten.Add(kTenant, unwritten.NextSequence());
  unwritten.Add(kOther, unwritten.NextSequence());
  EXPECT_EQ(unwritten.last(), 3u);
  EXPECT_EQ(unwritten.Oldest(kTenant), 1u);
  EXPECT_EQ(unwritten.Oldest(kOther), 3u);
  unwritten.Remove(kTenant, 1);
  unwritten.Remove(kTenant, 1);
  EXPECT_EQ(unwritten.Oldest(kTenant), 2u);
  EXPECT_EQ(unwritten.Oldest(FlushWaits::kEveryone), 2u);
  unwritten.Remove(kTenant, 2);
  EXPECT_EQ(unwritten.Oldest(kTenant), 4u);
  EXPECT_EQ(unwritten.Oldest(FlushWaits::kEveryone), 3u);
}

TEST(UnwrittenTest, TheNextThatAFlushWaitsForIsQueuedAndNotBehindTheFlush) {
  Unwritten unwritten;
  for (int i = 0; i < 6; ++i) {
    unwritten.Add(i % 2 == 0 ? kTenant : kOther, unwritten.NextSequence());  // 1, 3, 5 and 2, 4, 6.
  }
  std::set<uint64_t> queue = {1, 2, 3, 4, 5, 6};
  const auto queued = [&queue](uint64_t sequence) { return queue.contains(sequence); };
  FlushWaits flushes;
  EXPECT_EQ(unwritten.NextFlushed(flushes, 0, queued), 0u);
  flushes.Add(kOther, 4, Of(kOther));
  EXPECT_TRUE(flushes.WaitsFor(kOther, 4));
  EXPECT_FALSE(flushes.WaitsFor(kOther, 5));
  EXPECT_FALSE(flushes.WaitsFor(kTenant, 1));
  EXPECT_EQ(unwritten.NextFlushed(flushes, 1, queued), 2u);
  EXPECT_EQ(unwritten.NextFlushed(flushes, 2, queued), 4u);
  EXPECT_EQ(unwritten.NextFlushed(flushes, 4, queued), 0u);
  queue.erase(2);  // At the tier.
  EXPECT_EQ(unwritten.NextFlushed(flushes, 1, queued), 4u);
  flushes.Add(kTenant, 6, Of(kTenant));
  EXPECT_EQ(unwritten.NextFlushed(flushes, 2, queued), 3u);
}

TEST(LossesTest, EachClientIsToldOfEachLossOnce) {
  Losses losses;
  losses.AddRefused(kTenant);
  losses.AddClient(7, kTenant, 10);  // That was before it came.
  EXPECT_EQ(losses.TellNew(7, kTenant, 10), 0u);
  EXPECT_EQ(losses.TellNew(8, kTenant, 10), 11u);
  losses.AddRefused(kTenant);
  losses.AddRefused(kOther);
  EXPECT_EQ(losses.TellNew(7, kTenant, 12), 3u);
  EXPECT_EQ(losses.TellNew(7, kTenant, 12), 0u);
  EXPECT_EQ(losses.TellNew(8, kTenant, 12), 3u);
}

}  // namespace
}  // namespace aquifer
