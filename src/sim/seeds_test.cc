// Seed after seed, and each the same every time.
#include <gtest/gtest.h>

#include "sim/fuzz.h"
#include "sim/run.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

TEST(SeedsTest, NoSeedBreaksAPromise) {
  const FuzzReport report =
      Fuzz({.first_seed = 1, .seeds = ByTestLevel<uint64_t>(150, 2500, 60'000)});
  EXPECT_FALSE(report.failed_seed.has_value())
      << report.failure.violation << "\nNext step: aquifer sim fuzz --seed "
      << report.failed_seed.value_or(0);
  EXPECT_EQ(report.fault_kinds_seen(), kFaultKinds) << TextOf(report.faults);
  EXPECT_GT(report.counts.hits_dram, 0u);
  EXPECT_GT(report.counts.hits_nvme, 0u);
  EXPECT_GT(report.counts.late, 0u);
  EXPECT_GT(report.counts.corrupt, 0u);
  EXPECT_GT(report.counts.refused, 0u);
}

// Each broke a promise once. What was wrong has a test of its own beside the code.
TEST(SeedsTest, NoSeedThatFailedOnceFailsAgain) {
  for (const uint64_t seed :
       {120004332u,  170006929u,  230005279u,  1000017635u, 1010014722u, 1020024077u,
        1030027842u, 1050028052u, 1080013056u, 1090001240u, 1090004296u, 1090021228u,
        1100009685u, 1100022961u, 1110024953u, 1130027759u, 1150026977u, 2080015256u,
        2080021702u, 2120011239u, 4000516628u, 4000818458u, 4001403009u}) {
    EXPECT_EQ(RunScenario(MakeScenario(seed)).violation, "") << seed;
  }
}

TEST(SeedsTest, TheSameSeedDoesTheSameEveryTime) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::vector<std::string> lines;
    const Outcome first = RunScenario(MakeScenario(seed),
                                      [&lines](const std::string& line) { lines.push_back(line); });
    const Outcome second = RunScenario(MakeScenario(seed));
    EXPECT_EQ(first.digest, second.digest) << seed;
    EXPECT_EQ(first.steps, second.steps) << seed;
    EXPECT_FALSE(lines.empty());
  }
}

TEST(SeedsTest, DifferentSeedsDoDifferentThings) {
  EXPECT_NE(RunScenario(MakeScenario(1)).digest, RunScenario(MakeScenario(2)).digest);
}

}  // namespace
}  // namespace aquifer
