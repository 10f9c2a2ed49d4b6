// Up to which point of a matched chain loading beats recomputing.
//
// A chain comes as runs of blocks that lie in one tier. Loading its first k blocks and prefilling
// the rest takes load(k) + prefill(rest on top of k); the cut-off is the k for which that is least.
// Loads are taken to happen one after the other, within a tier and across tiers: the truth lies
// between that and their maximum, and a load that pays under this sum pays under any overlap. A
// tier's latency is counted once, at its first run.
//
// The cut-off is exact to the block although only the ends of runs are looked at: along a run the
// load grows in a straight line and the prefill of the rest falls ever faster (with n tokens left
// of T, n * (T - n + n / 2) is concave), so their sum is least at one of its ends.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/cost/prefill_model.h"
#include "policy/cost/tier_speed.h"

namespace aquifer {

struct LoadRun {
  uint8_t tier = 0;  // Index into WorthQuery::tiers.
  uint32_t blocks = 0;
  uint32_t tokens_per_block = 0;
  uint64_t bytes_per_block = 0;
};

struct WorthOptions {
  // Used while an engine's prefill times are unknown; 0: everything is taken to pay then.
  double default_prefill_tokens_per_second = 0;
  // Loading must take at most this part of what it saves: below 1 leans to recomputing.
  double max_load_part = 1;
};

struct WorthQuery {
  std::span<const LoadRun> runs{};    // In chain order.
  std::span<const TierCost> tiers{};  // By tier.
  uint32_t tokens_before = 0;         // What the engine has already, in front of the runs.
  uint32_t tokens_total = 0;          // Of the whole prompt; at least those before and in the runs.
  std::optional<PrefillCoefficients> prefill{};  // None: unknown.
};

struct WorthAnswer {
  uint64_t blocks = 0;      // Load so many from the front.
  size_t runs = 0;          // They are so many whole runs.
  double load_ms = 0;       // For those.
  double prefill_ms = 0;    // For what then remains; 0 when unknown.
  double recompute_ms = 0;  // Without loading anything; 0 when unknown.
};

// The same, for runs that come one after the other: long chains are looked at in slices.
class WorthScan {
 public:
  // Of the query's runs nothing is read; its tiers outlive the scan.
  WorthScan(const WorthOptions& options, const WorthQuery& query);

  // Returns how long the run takes to load, by itself after those before it.
  double Add(const LoadRun& run);
  // Of the runs so far.
  const WorthAnswer& best() const { return best_; }

 private:
  double PrefillAfter(double tokens) const;

  std::span<const TierCost> tiers_;
  std::optional<PrefillCoefficients> prefill_;
  double total_tokens_ = 0;
  double load_weight_ = 1;
  WorthAnswer best_;
  double least_ = 0;
  std::bitset<256> seen_;  // Tiers.
  double load_ms_ = 0;
  double tokens_ = 0;
  uint64_t blocks_ = 0;
  size_t runs_ = 0;
};

// `run_ms`, as long as the runs (or empty), gets the time to load each by itself after those before
// it. O(runs).
WorthAnswer WorthLoading(const WorthOptions& options, const WorthQuery& query,
                         std::span<double> run_ms = {});

// The prefill that WorthLoading() calculates with: the fitted one, else the default, else none.
std::optional<PrefillCoefficients> PrefillOrDefault(
    const WorthOptions& options, const std::optional<PrefillCoefficients>& prefill);

}  // namespace aquifer
