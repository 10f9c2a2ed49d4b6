#include "policy/worth.h"

#include <bitset>

#include "base/check.h"

namespace aquifer {

std::optional<PrefillCoefficients> PrefillOrDefault(
    const WorthOptions& options, const std::optional<PrefillCoefficients>& prefill) {
  if (prefill.has_value() || options.default_prefill_tokens_per_second <= 0) return prefill;
  return PrefillCoefficients{.step_ms = 0,
                             .ms_per_token = 1e3 / options.default_prefill_tokens_per_second,
                             .ms_per_token_pair = 0};
}

WorthAnswer WorthLoading(const WorthOptions& options, const WorthQuery& query,
                         std::span<double> run_ms) {
  AQ_CHECK(run_ms.empty() || run_ms.size() >= query.runs.size());
  const auto prefill = PrefillOrDefault(options, query.prefill);
  const double total = query.tokens_total;
  const auto prefill_after = [&](double there) {
    return prefill.has_value() ? prefill->Milliseconds(total - there, there) : 0;
  };
  // A load that may take only a part of what it saves is one that takes so much longer.
  const double load_weight = options.max_load_part > 0 ? 1 / options.max_load_part : 1;

  WorthAnswer best;
  best.recompute_ms = best.prefill_ms = prefill_after(query.tokens_before);
  double least = best.prefill_ms;
  std::bitset<256> seen;
  double load_ms = 0;
  double tokens = query.tokens_before;
  uint64_t blocks = 0;
  for (size_t i = 0; i < query.runs.size(); ++i) {
    const LoadRun& run = query.runs[i];
    AQ_CHECK(run.tier < query.tiers.size());
    const TierCost& tier = query.tiers[run.tier];
    const double block_ms =
        static_cast<double>(run.bytes_per_block) * tier.ms_per_byte + tier.ms_per_op;
    const double this_ms = run.blocks * block_ms + (seen[run.tier] ? 0 : tier.latency_ms);
    seen.set(run.tier);
    if (!run_ms.empty()) run_ms[i] = this_ms;
    load_ms += this_ms;
    tokens += static_cast<double>(run.blocks) * run.tokens_per_block;
    blocks += run.blocks;
    const double rest_ms = prefill_after(tokens);
    const double cost = load_ms * load_weight + rest_ms;
    if (prefill.has_value() && !(cost < least)) continue;
    least = cost;
    best.blocks = blocks;
    best.runs = i + 1;
    best.load_ms = load_ms;
    best.prefill_ms = rest_ms;
  }
  return best;
}

}  // namespace aquifer
