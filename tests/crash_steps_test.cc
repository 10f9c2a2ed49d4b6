// Stops the whole cache after every single step of its I/O: once as if the process had died, once
// as if the machine had lost power. Every change that was acknowledged before must hold after the
// restart, even if the restart is interrupted itself.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "testing/cache/stepped_cache.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/memory_disk.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

constexpr uint64_t kBlockBytes = 16 << 10;
constexpr size_t kBlocks = 6;
constexpr uint64_t kChains = 8;
constexpr int64_t kTimeoutNanos = 20 * kDefaultTimeoutNanos;

enum class Fate { kUnknown, kDurable, kUncertain, kDeleted };

struct Facts {
  std::vector<Fate> chains = std::vector<Fate>(kChains, Fate::kUnknown);
  // These chains outlive the cache.
  std::deque<Chain> evicted;
  std::deque<EvictRequest> evictions;
};

class CrashStepsTest : public testing::TestWithParam<bool> {
 protected:
  static bool power_loss() { return GetParam(); }

  static SteppedCacheOptions Options(uint64_t stop_after) {
    SteppedCacheOptions options;
    options.cache.dram_bytes = uint64_t{4} << 20;
    options.cache.nvme_directories = {"memory"};
    options.cache.nvme_bytes = uint64_t{8} << 20;
    options.cache.nvme_segment_bytes = 256 << 10;
    options.cache.nvme_sync = power_loss();
    options.stop_disk_after = stop_after;
    return options;
  }

  static std::shared_ptr<MemoryMedia> NewMedia() {
    auto media = std::make_shared<MemoryMedia>();
    media->set_reorder_until_sync(power_loss());
    return media;
  }

  Chain NumberedChain(uint64_t number) const {
    return Chain(layout_, {.seed = number + 1, .blocks = kBlocks});
  }

  // Stores every chain, flushes some, deletes some; stops as soon as the disk has stopped.
  void Work(SteppedCache* cache, Facts* facts) const {
    TestEngine engine(cache, layout_);
    const auto flush = [&](uint64_t last) {
      if (!engine.Flush(kTimeoutNanos).ok()) return false;
      for (uint64_t i = 0; i <= last; ++i) {
        if (facts->chains[i] == Fate::kUnknown) facts->chains[i] = Fate::kDurable;
      }
      return true;
    };
    const auto erase = [&](uint64_t number) {
      facts->chains[number] = Fate::kUncertain;
      const Chain& chain = facts->evicted.emplace_back(NumberedChain(number));
      EvictRequest& evict = facts->evictions.emplace_back();
      evict.chain = engine.Slice(chain);
      cache->Evict(&evict);
      // A disk that has stopped may give no answer.
      if (!cache->Wait(evict, kTimeoutNanos) || !evict.status.ok()) return false;
      facts->chains[number] = Fate::kDeleted;
      return true;
    };
    for (uint64_t number = 0; number < kChains; ++number) {
      if (engine.Store(NumberedChain(number)) != kBlocks) return;
      if (number == 3 && !(flush(3) && erase(1))) return;
      if (number == 4 && !erase(4)) return;  // The chain may not be written yet.
      // Written again with another, far expiry: the chain stays durable all the while.
      if (number == 4) engine.NameSession("session", NumberedChain(2), /*ttl_seconds=*/1'000'000);
      if (number == 5 && !(flush(5) && erase(0) && erase(5))) return;
    }
    if (flush(kChains - 1)) erase(6);
  }

  void End(SteppedCache* cache, SeededRandom* random) const {
    if (cache->disk() == nullptr) return;
    if (power_loss()) {
      cache->disk()->PowerLoss(random);
    } else {
      cache->disk()->Crash(random);
    }
  }

  size_t Check(const std::shared_ptr<MemoryMedia>& media, const Facts& facts) const {
    SteppedCache cache(media, Options(UINT64_MAX));
    EXPECT_TRUE(cache.ready());
    TestEngine engine(&cache, layout_);
    EXPECT_TRUE(engine.StatsOf(TierKind::kNvme).in_service);
    size_t served = 0;
    for (uint64_t number = 0; number < kChains; ++number) {
      const Recalled recalled = engine.Recall(NumberedChain(number));
      EXPECT_EQ(recalled.right + recalled.missed, kBlocks)
          << "chain " << number << ": " << recalled;
      if (facts.chains[number] == Fate::kDurable) {
        EXPECT_EQ(recalled.right, kBlocks) << "chain " << number << " was durable";
      }
      if (facts.chains[number] == Fate::kDeleted) {
        EXPECT_EQ(recalled.missed, kBlocks) << "chain " << number << " came back";
      }
      served += recalled.right;
    }
    EXPECT_EQ(engine.Counter("corrupt_blocks"), 0u);
    // The cache takes new blocks, and keeps them.
    const Chain fresh(layout_, {.seed = 1000, .blocks = kBlocks});
    EXPECT_EQ(engine.Store(fresh), kBlocks);
    EXPECT_TRUE(engine.Flush(kTimeoutNanos).ok());
    return served;
  }

  const Layout layout_ = LayoutOfBytes(kBlockBytes);
};

TEST_P(CrashStepsTest, AcknowledgedChangesHoldWhereverTheDiskStops) {
  uint64_t steps = 0;
  {
    Facts facts;
    SteppedCache cache(NewMedia(), Options(UINT64_MAX));
    Work(&cache, &facts);
    ASSERT_EQ(facts.chains[kChains - 1], Fate::kDurable) << "the work was not done";
    steps = cache.disk()->requests_done();
  }
  ASSERT_GT(steps, 20u);

  const uint64_t rounds = ByTestLevel(3, 20, 100);
  size_t served = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (uint64_t step = 0; step <= steps; ++step) {
      SCOPED_TRACE(fmt::format("round {}, step {} of {}", round, step, steps));
      SeededRandom random(round * 100'000 + step);
      Facts facts;
      auto media = NewMedia();
      {
        SteppedCache cache(media, Options(step));
        Work(&cache, &facts);
        End(&cache, &random);
      }
      if (random.Below(3) == 0) {  // The restart does not get far either.
        SteppedCache cache(media, Options(random.Below(30)));
        End(&cache, &random);
      }
      served += Check(media, facts);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(served, 0u);
}

INSTANTIATE_TEST_SUITE_P(After, CrashStepsTest, testing::Bool(), [](const auto& info) {
  return info.param ? "APowerLoss" : "ACrashOfTheProcess";
});

}  // namespace
}  // namespace aquifer
