// The contract of tier.h, over a durable tier: plain, made smaller, sealed, and both.
#include "tier/durable/durable_harness.h"
#include "tier/tier_contract.h"

namespace aquifer {
namespace {

TierContractParam Param(const std::string& name, bool seal, LosslessUse lossless) {
  return {
      .name = name,
      .make = [seal, lossless](const TierContractOptions& options) -> std::unique_ptr<TierHarness> {
        DurableHarnessOptions harness;
        harness.seal = seal;
        harness.tier.lossless = lossless;
        harness.tier.max_queued_ops = options.max_queued_ops;
        harness.tier.max_block_bytes = options.max_block_bytes;
        harness.store.capacity_bytes = options.capacity_bytes;
        return std::make_unique<DurableHarness>(harness);
      },
      .enumerates = false};
}

INSTANTIATE_TEST_SUITE_P(Durable, TierContract,
                         testing::Values(Param("Plain", false, LosslessUse::kNever),
                                         Param("Lossless", false, LosslessUse::kAlways),
                                         Param("Sealed", true, LosslessUse::kNever),
                                         Param("SealedLossless", true, LosslessUse::kAlways)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace aquifer
