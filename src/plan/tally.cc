#include "plan/tally.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "policy/cost/worth.h"

namespace aquifer {

std::string_view StageName(Stage stage) {
  constexpr std::string_view kNames[] = {"the engine itself", "DRAM", "NVMe", "peers", "durable"};
  return kNames[static_cast<size_t>(stage)];
}

TallyOptions TallyOptionsOf(const Fleet& fleet, uint64_t block_tokens) {
  TallyOptions options{.block_tokens = block_tokens,
                       .kv_bytes_per_token = fleet.model.kv_bytes_per_token,
                       .prefill = fleet.prefill};
  const double link = fleet.gpu.host_link_bytes_per_second * fleet.gpus_per_engine;
  // Whatever comes from further away goes over the host link as well; the slower of the two counts,
  // since copies overlap reads.
  const auto cost = [link](double latency_ms, double bytes_per_second) {
    return TierCost{.latency_ms = latency_ms,
                    .ms_per_byte = 1e3 / std::min(link, bytes_per_second),
                    .ms_per_op = 0};
  };
  options.costs = {TierCost{}, cost(fleet.dram.latency_ms, fleet.dram.bytes_per_second),
                   cost(fleet.nvme.latency_ms, fleet.nvme.bytes_per_second),
                   cost(fleet.peers.latency_ms, fleet.peers.bytes_per_second),
                   cost(fleet.durable.latency_ms, fleet.durable.bytes_per_second)};
  return options;
}

Tally::Tally(const TallyOptions& options, const TierSizes& sizes)
    : options_(options), sizes_(sizes), largest_local_(std::max(sizes.dram, sizes.nvme)) {
  AQ_CHECK(options.block_tokens > 0);
}

size_t Tally::StageOf(const RequestDepths& depths, size_t i) const {
  const double local = depths.local[i];
  if (local <= sizes_.engine) return static_cast<size_t>(Stage::kEngine);
  if (local <= sizes_.dram) return static_cast<size_t>(Stage::kDram);
  if (local <= sizes_.nvme) return static_cast<size_t>(Stage::kNvme);
  if (sizes_.peers && !depths.peer.empty() && depths.peer[i] <= largest_local_) {
    return static_cast<size_t>(Stage::kPeers);
  }
  if (depths.fleet[i] <= sizes_.durable) return static_cast<size_t>(Stage::kDurable);
  return kStages;
}

uint64_t Tally::TokensOf(const TraceRequest& request, size_t i) const {
  const uint64_t before = options_.block_tokens * i;
  if (before >= request.input_tokens) return 0;
  return std::min(options_.block_tokens, request.input_tokens - before);
}

// The prompt as far as it is anywhere, as runs of one stage and one size of block each.
void Tally::FindRuns(const TraceRequest& request, const RequestDepths& depths, double weight) {
  runs_.clear();
  engine_tokens_ = 0;
  for (size_t i = 0; i < request.block_ids.size(); ++i) {
    const size_t stage = StageOf(depths, i);
    const uint64_t tokens = TokensOf(request, i);
    if (stage == kStages || tokens == 0) return;
    totals_.blocks_found[stage] += weight;
    if (stage == 0) {
      engine_tokens_ += static_cast<double>(tokens);
      continue;
    }
    if (runs_.empty() || runs_.back().tier != stage || runs_.back().tokens_per_block != tokens) {
      runs_.push_back({.tier = static_cast<uint8_t>(stage),
                       .blocks = 0,
                       .tokens_per_block = static_cast<uint32_t>(tokens),
                       .bytes_per_block = static_cast<uint64_t>(static_cast<double>(tokens) *
                                                                options_.kv_bytes_per_token)});
    }
    ++runs_.back().blocks;
  }
}

void Tally::CountWrites(const RequestDepths& depths, double weight) {
  auto inserted = static_cast<double>(depths.output_blocks);
  double fresh = inserted;
  for (const double local : depths.local) inserted += local > largest_local_ ? 1 : 0;
  for (const double fleet : depths.fleet) fresh += fleet >= LruStack::kNever ? 1 : 0;
  totals_.inserted_blocks += weight * inserted;
  totals_.new_blocks += weight * fresh;
}

void Tally::Add(const TraceRequest& request, const RequestDepths& depths, double weight) {
  const auto tokens = static_cast<double>(request.input_tokens);
  totals_.requests += weight;
  totals_.tokens += weight * tokens;
  CountWrites(depths, weight);
  FindRuns(request, depths, weight);
  const WorthAnswer answer =
      WorthLoading({}, {.runs = runs_,
                        .tiers = options_.costs,
                        .tokens_before = static_cast<uint32_t>(engine_tokens_),
                        .tokens_total = static_cast<uint32_t>(request.input_tokens),
                        .prefill = options_.prefill});
  double loaded = 0;
  for (size_t i = 0; i < answer.runs; ++i) {
    const double run_tokens = static_cast<double>(runs_[i].blocks) * runs_[i].tokens_per_block;
    totals_.tokens_loaded[runs_[i].tier] += weight * run_tokens;
    totals_.loads[runs_[i].tier] += weight * runs_[i].blocks;
    loaded += run_tokens;
  }
  totals_.tokens_loaded[0] += weight * engine_tokens_;
  // The last token is always computed: its answer is what the engine goes on from.
  const auto prefill = [&](double there) {
    const double left = tokens > 0 ? std::max(tokens - there, 1.0) : 0;
    return options_.prefill.Milliseconds(left, tokens - left);
  };
  const double prefill_ms = prefill(engine_tokens_ + loaded);
  totals_.recompute_ms += weight * prefill(engine_tokens_);
  totals_.prefill_ms += weight * prefill_ms;
  totals_.load_ms += weight * answer.load_ms;
  totals_.first_token_ms.Add(prefill_ms + answer.load_ms, weight);
}

}  // namespace aquifer
