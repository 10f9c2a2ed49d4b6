// Kills a process that stores, flushes and deletes, at random moments. The next process on its
// directory must find every block that was acknowledged as durable, must not find any that was
// acknowledged as deleted, and must never be served a wrong byte.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "aquifer/cache.h"
#include "base/check.h"
#include "testing/cache/test_engine.h"
#include "testing/chain.h"
#include "testing/child_process.h"
#include "testing/scratch_directory.h"
#include "testing/seeded_random.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr const char* kChildFlag = "--crash-child";

struct Workload {
  uint64_t nvme_bytes = 0;
  uint64_t chains_per_run = 0;  // The most that one child stores.
};
// Every directory sees a few runs, and all their blocks fit into a part of the cap. No space has to
// be reclaimed, so no block may be missing.
constexpr Workload kUnderTheCap{.nvme_bytes = 512 * kMiB, .chains_per_run = 24};
constexpr int kRunsPerDirectory = 6;
// The log wraps around many times.
constexpr Workload kOverTheCap{.nvme_bytes = 48 * kMiB, .chains_per_run = 400};

CacheOptions OptionsFor(const std::string& directory, const Workload& workload) {
  CacheOptions options;
  options.dram_bytes = 64 * kMiB;
  options.nvme_directories = {directory};
  options.nvme_bytes = workload.nvme_bytes;
  options.nvme_segment_bytes = 4 * kMiB;
  return options;
}

// A chain follows from its number alone, in both processes.
Chain NumberedChain(const Layout& layout, uint64_t number) {
  return Chain(layout, {.seed = number, .blocks = 4 + number % 9});
}

// Stores chains from `first` on, flushes now and then, deletes some, and prints each step.
int RunChild(const std::string& directory, const Workload& workload, uint64_t first) {
  DieWithParent();
  auto cache = Open(OptionsFor(directory, workload), {});
  AQ_CHECK(cache.ok());
  TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
  TellParent("ready");
  SeededRandom random(first);
  for (uint64_t number = first; number < first + workload.chains_per_run; ++number) {
    TellParent(fmt::format("storing {}", number));
    engine.StorePatiently(NumberedChain(engine.layout(), number));
    if (random.Below(3) == 0 && engine.Flush().ok()) TellParent(fmt::format("flushed {}", number));
    if (random.Below(4) == 0) {
      const uint64_t victim = first + random.Below(number - first + 1);
      TellParent(fmt::format("deleting {}", victim));
      if (engine.Evict(NumberedChain(engine.layout(), victim))->status.ok()) {
        TellParent(fmt::format("deleted {}", victim));
      }
    }
  }
  if (engine.Flush().ok()) {
    TellParent(fmt::format("flushed {}", first + workload.chains_per_run - 1));
  }
  TellParent("end");
  WaitForParent();
  return 0;
}

// The known state of the chains of one directory.
class Ledger {
 public:
  void Note(const std::string& line, uint64_t first) {
    if (line == "ready" || line == "end") return;
    const size_t space = line.find(' ');
    AQ_CHECK(space != std::string::npos);
    const std::string what = line.substr(0, space);
    const uint64_t number = std::strtoull(line.c_str() + space + 1, nullptr, 10);
    if (what == "storing") chains_[number] = State::kStored;
    if (what == "deleting" && chains_[number] != State::kDeleted) {
      chains_[number] = State::kUncertain;
    }
    if (what == "deleted") chains_[number] = State::kDeleted;
    if (what == "flushed") {
      for (auto it = chains_.lower_bound(first); it != chains_.end() && it->first <= number; ++it) {
        if (it->second == State::kStored) it->second = State::kDurable;
      }
    }
  }

  // With `all_fits`, every durable block must be there. Returns how many blocks were served.
  size_t Check(TestEngine* engine, bool all_fits) const {
    size_t served = 0;
    for (const auto& [number, state] : chains_) {
      SCOPED_TRACE(number);
      const Chain chain = NumberedChain(engine->layout(), number);
      const Recalled recalled = engine->Recall(chain);
      EXPECT_EQ(recalled.right + recalled.missed, chain.size()) << recalled;
      if (state == State::kDeleted) {
        EXPECT_EQ(recalled.missed, chain.size()) << "it came back";
      }
      if (state == State::kDurable && all_fits) {
        EXPECT_EQ(recalled.right, chain.size()) << "it was durable";
      }
      served += recalled.right;
    }
    return served;
  }

  void Forget(uint64_t below) { chains_.erase(chains_.begin(), chains_.lower_bound(below)); }

 private:
  enum class State { kStored, kDurable, kUncertain, kDeleted };
  std::map<uint64_t, State> chains_;
};

class CrashTest : public testing::Test {
 protected:
  // Starts a child, kills it at a random moment, and records its output.
  void RunAndKill(const std::string& workload, const std::string& directory, uint64_t first) {
    auto child = ChildProcess::Start({kChildFlag, workload, directory, std::to_string(first)});
    // Some children die while they still open the directory, most in the middle of their work.
    // Progress is measured in steps, not in time: sanitizers slow them down tenfold.
    const bool while_opening = random_.Below(5) == 0;
    const uint64_t steps = random_.Below(120);
    const milliseconds pause(random_.Below(while_opening ? 60 : 8));
    for (uint64_t step = 0; !while_opening && step < steps; ++step) {
      const auto line = child->ReadLine(milliseconds(60'000));
      ASSERT_TRUE(line.has_value()) << "the child stopped by itself";
      if (*line == "end") break;
      ledger_.Note(*line, first);
    }
    const auto end = std::chrono::steady_clock::now() + pause;
    for (auto left = pause; left.count() > 0;
         left = std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now())) {
      const auto line = child->ReadLine(left);
      if (line) ledger_.Note(*line, first);
    }
    child->Kill();
    while (const auto line = child->ReadLine(milliseconds(20'000))) ledger_.Note(*line, first);
    EXPECT_EQ(child->Wait(), -SIGKILL);
  }

  // Opens the dead child's directory and checks everything.
  size_t Verify(const std::string& directory, const Workload& workload, bool all_fits) {
    auto cache = Open(OptionsFor(directory, workload), {});
    AQ_CHECK(cache.ok());
    TestEngine engine(cache->get(), LayoutOfBytes(kBlockBytes));
    // The kernel may take a moment to release the dead process's lock.
    EXPECT_TRUE(engine.Eventually([&] { return engine.StatsOf(TierKind::kNvme).in_service; }));
    const size_t served = ledger_.Check(&engine, all_fits);
    // A torn block is not corrupt: it was never there.
    EXPECT_EQ(engine.Counter("corrupt_blocks"), 0u);
    return served;
  }

  ScratchDirectory scratch_;
  SeededRandom random_{20240607};
  Ledger ledger_;
};

TEST_F(CrashTest, FlushedBlocksSurviveAKillAndDeletedOnesStayDeleted) {
  const int kills = ByTestLevel(5, 40, 500);
  size_t served = 0;
  std::optional<ScratchDirectory> directory;
  for (int kill = 0; kill < kills; ++kill) {
    SCOPED_TRACE(kill);
    if (kill % kRunsPerDirectory == 0) {
      directory.emplace();
      ledger_ = Ledger();
    }
    RunAndKill("under", directory->path(), 1 + static_cast<uint64_t>(kill) * 10'000);
    served += Verify(directory->path(), kUnderTheCap, true);
    if (HasFailure()) break;
  }
  EXPECT_GT(served, 0u);
}

TEST_F(CrashTest, WhileTheLogWrapsAroundNothingWrongIsServedAfterAKill) {
  const int kills = ByTestLevel(5, 40, 500);
  size_t served = 0;
  for (int kill = 0; kill < kills; ++kill) {
    SCOPED_TRACE(kill);
    const uint64_t first = 1 + static_cast<uint64_t>(kill) * 10'000;
    RunAndKill("over", scratch_.path(), first);
    served += Verify(scratch_.path(), kOverTheCap, false);
    if (first > 30'000) ledger_.Forget(first - 30'000);
    if (HasFailure()) break;
  }
  EXPECT_GT(served, 0u);
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) {
  if (argc == 5 && std::string_view(argv[1]) == aquifer::kChildFlag) {
    const bool under = std::string_view(argv[2]) == "under";
    return aquifer::RunChild(argv[3], under ? aquifer::kUnderTheCap : aquifer::kOverTheCap,
                             std::strtoull(argv[4], nullptr, 10));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
