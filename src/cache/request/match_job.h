// Answers how much of a chain the cache has: the longest prefix, as runs with their tier and
// estimated time, and up to where loading beats computing. What this host does not have, the
// durable tiers are asked for, as long as that may pay. Behind the answer the eviction orders hear
// what was asked for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cache/request/cache_job.h"
#include "cache/request/chain_inquiry.h"
#include "cache/residency/residency.h"
#include "index/index.h"
#include "policy/cost/prefill_model.h"
#include "policy/cost/tier_speed.h"
#include "policy/cost/worth.h"

namespace aquifer {

class MatchJob final : public RequestJob<MatchRequest, 0> {
 public:
  explicit MatchJob(CacheContext* cache) : RequestJob(cache) {}

  void Reset() override;
  void Run() override;
  void OnTimer() override;
  void Cancel() override;

 private:
  // `cost` is the tier's place in costs_. False: there are too many runs.
  bool AddRun(size_t first, uint8_t cost, RunState state);
  void AddFillingRun(size_t first);
  void EndHere();
  // The durable tiers.
  bool WorthAsking();
  void LookFurther();
  DurablePlace PlaceOf(size_t i);
  void WaitForAnswer();
  void EstimateUpTo(size_t runs);
  void Finish();
  // Tells the eviction orders what was asked for; false when that was all.
  bool AskSlice();
  void TouchSlice();

  size_t matched_ = 0;
  std::vector<BlockRef> refs_;   // Of those, what is on this host.
  std::vector<uint64_t> names_;  // All that was asked for: the request may be gone by then.
  uint32_t tokens_per_block_ = 0;
  ChainSaving saving_;  // Of its blocks in DRAM.
  Residency::AskedOrders asked_orders_;
  std::array<TierCost, kMaxTiers> costs_;  // By the index's numbers for tiers.
  std::vector<uint8_t> run_costs_;         // Which of those, by run.
  ChainInquiry inquiry_;
  bool further_ = false;      // The durable tiers are being asked.
  bool waiting_ = false;      // For their answer.
  size_t further_begin_ = 0;  // Where that began.
  int64_t until_nanos_ = 0;   // So long it may take; 0: not asked yet.
  uint64_t timer_run_ = 0;    // The run that has asked to be woken.
  std::optional<PrefillCoefficients> prefill_;
  std::optional<WorthScan> worth_;
  size_t estimated_ = 0;   // Of the runs.
  bool touching_ = false;  // Answered; only recency is left to record.
};

}  // namespace aquifer
