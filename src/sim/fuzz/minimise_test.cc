#include "sim/fuzz/minimise.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace aquifer {
namespace {

// The first seed with several engines and faults.
uint64_t RichSeed() {
  for (uint64_t seed = 1;; ++seed) {
    const Scenario scenario = MakeScenario(seed);
    if (scenario.engines.size() >= 3 && scenario.faults.size() >= 5) return seed;
  }
}

TEST(MinimiseTest, OnlyWhatItTakesIsLeft) {
  const uint64_t seed = RichSeed();
  const Scenario whole = MakeScenario(seed);
  // Fails at step 100 if engine 1 is there and so is the third fault.
  const auto run = [&whole](const Scenario& scenario) {
    RunOutcome outcome;
    outcome.steps = std::min<uint64_t>(scenario.steps, 100);
    const bool has_fault =
        std::any_of(scenario.faults.begin(), scenario.faults.end(),
                    [&](const Fault& fault) { return fault.draw == whole.faults[2].draw; });
    if (scenario.steps >= 100 && scenario.engines[1].present && has_fault) {
      outcome.violation = "block 17 is wrong";
    }
    return outcome;
  };
  const Minimised small = Minimise(seed, run(whole), {.run = run});
  EXPECT_EQ(small.reduction.steps, 100u);
  EXPECT_EQ(small.reduction.left_out_engines.size(), whole.engines.size() - 1);
  EXPECT_EQ(small.reduction.left_out_faults.size(), whole.faults.size() - 1);
  EXPECT_FALSE(small.outcome.ok());
}

TEST(MinimiseTest, AnotherFailureIsNotTakenForTheSame) {
  const uint64_t seed = RichSeed();
  const size_t engines = MakeScenario(seed).engines.size();
  const auto run = [engines](const Scenario& scenario) {
    RunOutcome outcome;
    const auto present =
        static_cast<size_t>(std::count_if(scenario.engines.begin(), scenario.engines.end(),
                                          [](const EnginePlan& engine) { return engine.present; }));
    outcome.violation = present == engines ? "block 1 is wrong" : "the node does not come back";
    outcome.steps = scenario.steps;
    return outcome;
  };
  const Minimised small = Minimise(seed, run(MakeScenario(seed)), {.run = run});
  EXPECT_TRUE(small.reduction.left_out_engines.empty());
  EXPECT_EQ(small.outcome.violation, "block 1 is wrong");
}

TEST(MinimiseTest, ItKeepsToItsNumberOfRuns) {
  size_t runs = 0;
  const auto run = [&runs](const Scenario&) {
    ++runs;
    RunOutcome outcome;
    outcome.violation = "wrong";
    return outcome;
  };
  RunOutcome whole;
  whole.violation = "wrong";
  Minimise(RichSeed(), whole, {.most_runs = 5, .run = run});
  EXPECT_LE(runs, 5u);
}

TEST(MinimiseTest, FailuresThatDifferInNumbersOnlyAreOfOneKind) {
  EXPECT_EQ(KindOfViolation("block 17 is 3.5 ms late"), KindOfViolation("block 2 is 40 ms late"));
  EXPECT_NE(KindOfViolation("block 17 is late"), KindOfViolation("block 17 is lost"));
}

TEST(ReductionTest, WhatIsLeftOutIsSaidAndUnderstood) {
  const uint64_t seed = RichSeed();
  const Reduction reduction{.left_out_faults = {0, 2}, .left_out_engines = {1}, .steps = 50};
  EXPECT_EQ(ArgumentsOf(reduction), " --leave-out-faults 0,2 --leave-out-engines 1 --steps 50");
  EXPECT_EQ(ArgumentsOf({}), "");
  const Result<Scenario> reduced = Reduce(seed, reduction);
  ASSERT_TRUE(reduced.ok());
  EXPECT_EQ(reduced->faults.size(), MakeScenario(seed).faults.size() - 2);
  EXPECT_FALSE(reduced->engines[1].present);
  EXPECT_EQ(reduced->steps, 50u);
  EXPECT_FALSE(Reduce(seed, {.left_out_engines = {99}}).ok());
  EXPECT_FALSE(Reduce(seed, {.left_out_faults = {99}}).ok());
}

}  // namespace
}  // namespace aquifer
