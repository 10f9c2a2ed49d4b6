// Never worse than recompute: what engines load because they were told that it pays, beside how
// long that took in simulated time and what recomputing would have taken. No drive fails, and there
// is memory for what is loaded: waiting for either is what a fetch's deadline is for.
#include <gtest/gtest.h>

#include <cstdint>

#include "sim/world/run.h"
#include "sim/world/scenario.h"
#include "testing/test_level.h"

namespace aquifer {
namespace {

// So that there is something to load: a restart empties DRAM.
Scenario CalmScenario(uint64_t seed, double prefill_ms_per_token) {
  Scenario scenario = MakeScenario(seed);
  scenario.faults = {{.step = scenario.steps / 2, .kind = FaultKind::kCrash, .draw = seed}};
  CacheOptions& cache = scenario.node.core.cache;
  cache.assumed_prefill_ms_per_token = prefill_ms_per_token;
  cache.dram_bytes *= 8;
  for (TenantOptions& tenant : cache.tenants) {
    tenant.dram_ceiling_bytes = UINT64_MAX;
    tenant.dram_floor_bytes = 0;
  }
  return scenario;
}

AdvisedLoads LoadsOf(double prefill_ms_per_token) {
  AdvisedLoads sum;
  const auto seeds = ByTestLevel<uint64_t>(60, 120, 500);
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const RunOutcome outcome = RunScenario(CalmScenario(seed, prefill_ms_per_token));
    EXPECT_TRUE(outcome.ok()) << seed << ": " << outcome.violation;
    sum = sum + outcome.counts.advised;
  }
  return sum;
}

// From prefills that any load beats to those that beat every drive.
TEST(AdviceTest, WhatIsSaidToPayDoes) {
  for (const double prefill_ms_per_token : {0.25, 0.02, 0.005, 0.001}) {
    SCOPED_TRACE(prefill_ms_per_token);
    const AdvisedLoads loads = LoadsOf(prefill_ms_per_token);
    EXPECT_GT(loads.loads, 300u);
    EXPECT_LE(loads.took_ms, loads.recompute_ms);
    // Drives jitter, and a worker is not scheduled at times: one in fifty is no rule.
    EXPECT_LE(50 * loads.worse, loads.loads);
  }
}

}  // namespace
}  // namespace aquifer
