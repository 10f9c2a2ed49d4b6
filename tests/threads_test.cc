// Engines in four threads do everything at once to the same few chains, with far more data than
// memory. Every byte served must be right and every request answered; the test expects nothing
// else. The sanitizers watch the rest.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "aquifer/cache.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBlockBytes = uint64_t{256} << 10;
constexpr size_t kThreads = 4;
constexpr uint64_t kChains = 48;
constexpr size_t kBlocks = 16;  // Altogether 192 MiB.

int SoakSeconds() {
  const char* set = std::getenv("AQUIFER_SOAK_SECONDS");
  return set != nullptr ? std::atoi(set) : IsFullRun() ? 60 : ByTestLevel(5, 15, 60);
}

struct Totals {
  std::atomic<uint64_t> rounds{0};
  std::atomic<uint64_t> right{0};
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> lost{0};  // Operations without one of the answers they may have.
};

// The work of one thread. Half of the chains fork off a common one, so that threads share blocks.
class Worker {
 public:
  Worker(Cache* cache, const Layout& layout, uint64_t seed, Totals* totals)
      : engine_(cache, layout),
        random_(seed),
        totals_(totals),
        trunk_(layout, {.seed = 1, .blocks = 8}) {}

  void RunUntil(steady_clock::time_point end) {
    while (steady_clock::now() < end) {
      Step();
      ++totals_->rounds;
    }
  }

 private:
  Chain AnyChain() const {
    const uint64_t number = random_.Below(kChains);
    if (number % 2 == 0) return trunk_.Fork(8, 100 + number, kBlocks - 8);
    return Chain(engine_.layout(), {.seed = 100 + number, .blocks = kBlocks});
  }

  void Step() {
    const Chain chain = AnyChain();
    const uint64_t dice = random_.Below(100);
    if (dice < 35) {
      engine_.Store(chain);
    } else if (dice < 70) {
      Count(engine_.Recall(chain), chain.size());
    } else if (dice < 78) {
      FetchAndCancel(chain);
    } else if (dice < 83) {
      ReserveAndAbort(chain);
    } else if (dice < 87) {
      engine_.Evict(chain, {.first = random_.Below(kBlocks)});
    } else if (dice < 91) {
      engine_.Pin(chain, static_cast<int64_t>(random_.Below(2)), {.first = 0, .count = 4});
    } else if (dice < 95) {
      engine_.Prestage(chain);
    } else if (dice < 97) {
      HoldWhileOthersEvict(chain);
    } else if (dice < 98) {
      const std::string session = "session-" + std::to_string(random_.Below(8));
      engine_.NameSession(session, chain);
      if (random_.Below(4) == 0) engine_.EvictSession(session);
    } else if (dice < 99) {
      static_cast<void>(engine_.Flush());
    } else {
      engine_.Stats();
    }
  }

  void FetchAndCancel(const Chain& chain) {
    FetchRequest fetch;
    fetch.chain = engine_.Slice(chain);
    fetch.timeout_nanos = 1 + static_cast<int64_t>(random_.Below(20'000'000));
    engine_.cache()->Fetch(&fetch);
    if (random_.Below(2) == 0) engine_.cache()->Cancel(&fetch);
    engine_.Finish(fetch);
    Count(engine_.CheckAndRelease(chain, {}, fetch), fetch.ops.size());
  }

  void ReserveAndAbort(const Chain& chain) {
    const auto reserve = engine_.Reserve(chain, {.first = 0, .count = 4});
    std::vector<ReservationId> given;
    for (const ReserveOp& op : reserve->ops) {
      if (op.outcome != ReserveOutcome::kSlot) continue;
      std::fill(op.slot.begin(), op.slot.end(), std::byte{0xBB});
      given.push_back(op.reservation);
    }
    engine_.cache()->Abort(given);
  }

  void HoldWhileOthersEvict(const Chain& chain) {
    const auto fetch = engine_.Fetch(chain, {.first = 0, .count = 4});
    engine_.Evict(chain);
    engine_.Store(chain, {.first = 4});
    Count(engine_.CheckAndRelease(chain, {.first = 0, .count = 4}, *fetch), fetch->ops.size());
  }

  void Count(const Recalled& recalled, size_t expected) {
    totals_->right += recalled.right;
    totals_->wrong += recalled.wrong;
    totals_->lost += expected - (recalled.right + recalled.missed + recalled.late +
                                 recalled.failed + recalled.wrong);
  }

  TestEngine engine_;
  mutable SeededRandom random_;
  Totals* const totals_;
  const Chain trunk_;
};

void Soak(const CacheOptions& options) {
  auto cache = Open(options, {});
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  const Layout layout = LayoutOfBytes(kBlockBytes);
  const auto end = steady_clock::now() + std::chrono::seconds(SoakSeconds());
  Totals totals;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    auto client = (*cache)->Join({});  // An engine of its own.
    ASSERT_TRUE(client.ok());
    threads.emplace_back([&, i, client = std::move(*client)]() mutable {
      Worker(client.get(), layout, 7 + i, &totals).RunUntil(end);
      client.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();

  TestEngine engine(cache->get(), layout);
  EXPECT_EQ(totals.wrong, 0u);
  EXPECT_EQ(totals.lost, 0u);
  EXPECT_GT(totals.right, 0u);
  EXPECT_EQ(engine.Counter("corrupt_blocks"), 0u);
  EXPECT_LE(engine.StatsOf(TierKind::kDram).used_bytes, options.dram_bytes);
  // The cache is as good as new.
  EXPECT_TRUE(engine.EvictEverything()->status.ok());
  const Chain chain(layout, {.seed = 99, .blocks = kBlocks});
  EXPECT_TRUE(engine.Eventually([&] { return engine.Store(chain) == kBlocks; }));
  EXPECT_EQ(engine.Recall(chain), Recalled{.right = kBlocks});
  testing::Test::RecordProperty("rounds", static_cast<int>(totals.rounds));
}

TEST(ThreadsTest, FourEnginesSoakTheCacheInMemory) {
  CacheOptions options;
  options.dram_bytes = 64 * kMiB;
  Soak(options);
}

TEST(ThreadsTest, FourEnginesSoakTheCacheWithNvme) {
  ScratchDirectory directory;
  CacheOptions options;
  options.dram_bytes = 64 * kMiB;
  options.nvme_directories = {directory.path()};
  options.nvme_bytes = 128 * kMiB;  // Less than the data, so that the tier reclaims too.
  options.nvme_segment_bytes = 8 * kMiB;
  Soak(options);
}

}  // namespace
}  // namespace aquifer
