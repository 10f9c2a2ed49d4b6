// Tallies one choice of tiers over the requests of a trace: how much each tier would have served,
// how long prefill would have taken, and how much would have been written. The product's own code
// (policy/cost/worth.h) decides request by request whether a load is worth its time. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "plan/fleet.h"
#include "plan/fleet_stacks.h"
#include "plan/log_histogram.h"
#include "policy/cost/tier_speed.h"
#include "policy/cost/worth.h"
#include "trace/trace_reader.h"

namespace aquifer {

// In the order in which they are asked. kEngine is what the engine keeps in GPU memory by itself,
// with or without us.
enum class Stage : uint8_t { kEngine, kDram, kNvme, kPeers, kDurable };
inline constexpr size_t kStages = 5;
std::string_view StageName(Stage stage);  // "DRAM"

// In blocks, of one node; 0: not there.
struct TierSizes {
  double engine = 0;
  double dram = 0;
  double nvme = 0;
  bool peers = false;
  double durable = 0;  // Of the fleet; LruStack::kNever / 2 and above: no limit.
};

struct Totals {
  double requests = 0;
  double tokens = 0;                            // Of prompts.
  std::array<double, kStages> blocks_found{};   // Where each block of a usable prefix lies.
  std::array<double, kStages> tokens_loaded{};  // Worth loading; of kEngine: all it had.
  std::array<double, kStages> loads{};
  double recompute_ms = 0;  // Prefill with what the engine keeps by itself.
  double prefill_ms = 0;    // Prefill of what is left after the loads.
  double load_ms = 0;
  double inserted_blocks = 0;  // New to their node: what NVMe has to write.
  double new_blocks = 0;       // New to the fleet: what a durable store has to take.
  LogHistogram first_token_ms;

  double loaded_tokens() const {
    double sum = 0;
    for (size_t i = 1; i < kStages; ++i) sum += tokens_loaded[i];
    return sum;
  }
  double saved_prefill_ms() const { return recompute_ms - prefill_ms; }
  double mean_first_token_ms() const {
    return requests == 0 ? 0 : (prefill_ms + load_ms) / requests;
  }
};

struct TallyOptions {
  uint64_t block_tokens = 0;
  double kv_bytes_per_token = 0;
  PrefillCoefficients prefill{};
  std::array<TierCost, kStages> costs{};  // By stage; the engine's is not used.
};
TallyOptions TallyOptionsOf(const Fleet& fleet, uint64_t block_tokens);

class Tally {
 public:
  Tally(const TallyOptions& options, const TierSizes& sizes);

  // The request stands for so many.
  void Add(const TraceRequest& request, const RequestDepths& depths, double weight = 1);

  const TierSizes& sizes() const { return sizes_; }
  const Totals& totals() const { return totals_; }

 private:
  // The stage that serves block `i`; kStages: none.
  size_t StageOf(const RequestDepths& depths, size_t i) const;
  uint64_t TokensOf(const TraceRequest& request, size_t i) const;
  void FindRuns(const TraceRequest& request, const RequestDepths& depths, double weight);
  void CountWrites(const RequestDepths& depths, double weight);

  const TallyOptions options_;
  const TierSizes sizes_;
  const double largest_local_;  // The blocks of a node's largest tier.
  Totals totals_;
  // Of the request at hand.
  std::vector<LoadRun> runs_;
  double engine_tokens_ = 0;
};

}  // namespace aquifer
