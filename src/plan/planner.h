// `aquifer plan` without its command line: takes the requests of a trace one by one and says, at
// the end, what tiers of which size would have done for them and what that is worth.
//
// Nothing is kept of a request but its blocks' places in a few stacks: memory grows with the number
// of distinct blocks, up to the limit past which they are sampled, and with nothing else. One
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aquifer/status.h"
#include "plan/fleet.h"
#include "plan/fleet_stacks.h"
#include "plan/learned_tier.h"
#include "plan/log_histogram.h"
#include "plan/outcome.h"
#include "plan/tally.h"
#include "trace/trace_reader.h"

namespace aquifer {

// Whether blocks that were generated count as stored when a later prompt goes on from them. kAuto:
// where the trace's prompts are whole blocks, as a node records them: there the length of an output
// is what was stored.
enum class OutputRule : uint8_t { kAuto, kStored, kIgnored };

struct PlannerOptions {
  Fleet fleet{};
  uint64_t block_tokens = 0;  // 0: found out from the lengths.
  OutputRule outputs = OutputRule::kAuto;
  LruStackOptions stack{};
  // For how many blocks of the trace the node's learned order is run beside; 0: not at all.
  uint64_t learned_references = LearnedTierOptions{}.max_references;
};

struct TraceFacts {
  uint64_t requests = 0;
  double prompt_tokens = 0;
  double output_tokens = 0;
  double seconds = 0;  // From the first request to the last.
  uint64_t block_tokens = 0;
  double block_bytes = 0;
  double block_references = 0;
  double distinct_blocks = 0;  // Estimated when sampled.
  uint64_t blocks_cut = 0;     // Named past the end of their prompt, and left out.
  uint64_t misfits = 0;        // Requests with more or fewer blocks than their prompt fills.
  bool outputs_followed = false;
  bool prompts_are_texts = false;
  uint32_t sampled_one_in = 1;  // 1: every block was followed.
  size_t memory_bytes = 0;      // Of the stacks.

  double followed_blocks() const { return distinct_blocks / sampled_one_in; }
};

// How many blocks are hit where a node keeps so much, in the product's plain order (leaf-first
// LRU).
struct HitPoint {
  double blocks = 0;
  double bytes = 0;
  double share = 0;  // Of the distinct blocks.
  double hit_rate = 0;
};

// Having one stage more, in the order of their speed.
struct StagePlan {
  Stage stage = Stage::kDram;
  bool in_fleet = false;
  bool possible = true;    // Peers of a single node are not.
  Outcome outcome{};       // With it and those before it.
  double saved_month = 0;  // The stage adds so much.
  double cost_month = 0;

  double net_month() const { return saved_month - cost_month; }
};

struct Purchase {
  std::string what{};  // "1TiB more DRAM a node"
  Outcome outcome{};
  double net_month = 0;  // More than without it.
};

// The hits of the node's learned order in the largest tier of the fleet.
struct LearnedPlan {
  double hit_rate = 0;
  uint64_t references = 0;  // So many blocks of the trace were looked at,
  bool whole = false;       // which is all of them.
};

enum class Verdict : uint8_t { kPays, kDoesNotPay, kUnknown };

struct Plan {
  Fleet fleet{};
  TraceFacts trace{};
  double hit_rate_most = 0;  // Were there room for everything.
  std::vector<HitPoint> hits{};
  size_t knee = 0;    // Of `hits`.
  Outcome without{};  // The engine by itself.
  Outcome configured{};
  double tiers_hit_rate = 0;             // Of the same tiers, if the engine kept nothing by itself.
  std::optional<LearnedPlan> learned{};  // None: several nodes, or not asked for.
  std::vector<Outcome> by_dram{};        // DRAM alone, growing.
  std::vector<Outcome> by_nvme{};        // The fleet's DRAM, NVMe growing.
  std::vector<StagePlan> stages{};
  std::vector<Purchase> purchases{};  // The best first.
  Verdict verdict = Verdict::kUnknown;
  std::vector<std::string> reasons{};      // The verdict's grounds, in whole sentences.
  std::vector<std::string> warnings{};     // Oddities of trace or fleet.
  std::vector<std::string> assumptions{};  // Made where nothing was told.

  double HitRate(double blocks) const;
  // A node of this fleet should measure this hit rate.
  double PredictedHitRate() const {
    return learned.has_value() && learned->whole ? learned->hit_rate : tiers_hit_rate;
  }

  // For HitRate(): depths of the blocks that were there before, and how many were looked for.
  LogHistogram depths{};
  double depth_references = 0;
};

class Planner {
 public:
  explicit Planner(const PlannerOptions& options);
  ~Planner();

  // Before each request: whether its prompt was cut as a text, into blocks of so many tokens, by an
  // estimate that the report tells of; 0: it was not. kInvalid: the one before differs, and nobody
  // said how many tokens are in a block.
  Status SetTextBlocks(uint64_t block_tokens);
  // kInvalid: the request cannot be.
  Status Add(const TraceRequest& request);
  // Once, after the last request. kInvalid: there was none, or no block size fits.
  Result<Plan> Finish();

  uint64_t requests() const { return facts_.requests; }
  uint64_t end_ms() const { return last_ms_; }  // The latest time of a request.

 private:
  struct Variant;
  // A possible purchase, and the variants that have different sizes of it.
  struct PurchaseSizes {
    std::string what{};
    std::vector<size_t> variants{};
  };

  Status Begin();
  Status LearnBlockTokens();
  Status BeginLearned();
  void Use(const TraceRequest& request);
  TraceRequest Cut(const TraceRequest& request);
  size_t AddVariant(const TierChoice& choice, bool engine_keeps = true);
  void AddVariants();
  void AddPurchases(const TierChoice& configured);
  Outcome OutcomeOfVariant(size_t variant) const;
  std::vector<Outcome> Drawn(const std::vector<size_t>& variants, double TierChoice::* size) const;
  void FillHits(Plan* plan) const;
  void FillStages(Plan* plan) const;
  void FillPurchases(Plan* plan) const;

  const PlannerOptions options_;
  TraceFacts facts_;
  uint64_t text_block_tokens_ = 0;   // Of SetTextBlocks().
  std::vector<TraceRequest> first_;  // Held until the block size is known.
  size_t first_blocks_ = 0;
  bool begun_ = false;
  std::unique_ptr<FleetStacks> stacks_;
  std::unique_ptr<LearnedTier> learned_;  // Null: it is not asked for.
  RequestDepths depths_;
  TraceRequest cut_;
  std::vector<Variant> variants_;
  size_t configured_ = 0;
  size_t tiers_alone_ = 0;
  size_t without_ = 0;
  std::vector<size_t> by_dram_, by_nvme_, by_stage_;
  std::vector<PurchaseSizes> purchases_;
  LogHistogram histogram_;  // Depths of blocks that were there before.
  double followed_references_ = 0;
  uint64_t first_ms_ = 0;
  uint64_t last_ms_ = 0;
  std::array<double, 512> waiting_{};  // Requests not tallied yet, by classes of length.
  double tallied_references_ = 0;
  double tallied_tokens_ = 0;
};

}  // namespace aquifer
