#include "policy/cost/worth.h"

#include "base/check.h"

namespace aquifer {

std::optional<PrefillCoefficients> PrefillOrDefault(
    const WorthOptions& options, const std::optional<PrefillCoefficients>& prefill) {
  if (prefill.has_value() || options.default_prefill_tokens_per_second <= 0) return prefill;
  return PrefillCoefficients{.step_ms = 0,
                             .ms_per_token = 1e3 / options.default_prefill_tokens_per_second,
                             .ms_per_token_pair = 0};
}

WorthScan::WorthScan(const WorthOptions& options, const WorthQuery& query)
    : tiers_(query.tiers),
      prefill_(PrefillOrDefault(options, query.prefill)),
      total_tokens_(query.tokens_total),
      // A load that may take only a part of what it saves is one that takes so much longer.
      load_weight_(options.max_load_part > 0 ? 1 / options.max_load_part : 1),
      tokens_(query.tokens_before) {
  best_.recompute_ms = best_.prefill_ms = least_ = PrefillAfter(tokens_);
}

double WorthScan::PrefillAfter(double tokens) const {
  return prefill_.has_value() ? prefill_->Milliseconds(total_tokens_ - tokens, tokens) : 0;
}

double WorthScan::Add(const LoadRun& run) {
  AQ_CHECK(run.tier < tiers_.size());
  const TierCost& tier = tiers_[run.tier];
  const double block_ms =
      static_cast<double>(run.bytes_per_block) * tier.ms_per_byte + tier.ms_per_op;
  const double run_ms = run.blocks * block_ms + (seen_[run.tier] ? 0 : tier.latency_ms);
  seen_.set(run.tier);
  load_ms_ += run_ms;
  tokens_ += static_cast<double>(run.blocks) * run.tokens_per_block;
  blocks_ += run.blocks;
  ++runs_;
  const double rest_ms = PrefillAfter(tokens_);
  const double cost = load_ms_ * load_weight_ + rest_ms;
  if (prefill_.has_value() && !(cost < least_)) return run_ms;
  least_ = cost;
  best_.blocks = blocks_;
  best_.runs = runs_;
  best_.load_ms = load_ms_;
  best_.prefill_ms = rest_ms;
  return run_ms;
}

WorthAnswer WorthLoading(const WorthOptions& options, const WorthQuery& query,
                         std::span<double> run_ms) {
  AQ_CHECK(run_ms.empty() || run_ms.size() >= query.runs.size());
  WorthScan scan(options, query);
  for (size_t i = 0; i < query.runs.size(); ++i) {
    const double ms = scan.Add(query.runs[i]);
    if (!run_ms.empty()) run_ms[i] = ms;
  }
  return scan.best();
}

}  // namespace aquifer
