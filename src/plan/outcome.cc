#include "plan/outcome.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text/size_text.h"

namespace aquifer {
namespace {

constexpr double kGib = 1073741824.0;
constexpr double kDaySeconds = 86'400;
constexpr double kMonthSeconds = 365.25 / 12 * kDaySeconds;
constexpr double kMonthHours = kMonthSeconds / 3600;
constexpr double kWarrantyMonths = 60;  // For which drives are rated.

double TierWatts(const Fleet& fleet, const TierChoice& choice) {
  return fleet.nodes * (choice.dram_bytes / kGib * fleet.dram.watts_per_gib +
                        choice.nvme_bytes / 1e12 * fleet.nvme.watts_per_tb +
                        (choice.peers ? fleet.peers.watts_per_node : 0));
}

// Drives that are written more than they bear are bought again sooner.
double NvmeMonths(const Fleet& fleet, const Outcome& outcome) {
  const double rated = fleet.nvme.drive_writes_per_day;
  if (outcome.nvme_drive_writes_day <= rated) return fleet.months;
  return std::min(fleet.months, kWarrantyMonths * rated / outcome.nvme_drive_writes_day);
}

// The cost of a month: purchases paid off over their months, their power, and a store's charges.
double CostMonth(const Fleet& fleet, const Outcome& outcome, const Totals& totals,
                 const OutcomeScale& scale) {
  const TierChoice& choice = outcome.choice;
  const double dram = choice.dram_bytes / kGib * fleet.dram.dollars_per_gib;
  const double nvme = choice.nvme_bytes / 1e12 * fleet.nvme.dollars_per_tb;
  const double network = choice.peers ? fleet.peers.dollars_per_node : 0;
  double month = fleet.nodes * ((dram + network) / fleet.months + nvme / outcome.nvme_months) +
                 TierWatts(fleet, choice) / 1e3 * kMonthHours * fleet.dollars_per_kwh;
  if (!choice.durable || scale.seconds <= 0) return month;
  const double months = kMonthSeconds / scale.seconds * scale.weight;
  const double kept = fleet.durable.bytes > 0 ? std::min(static_cast<double>(fleet.durable.bytes),
                                                         scale.distinct_blocks * scale.block_bytes)
                                              : scale.distinct_blocks * scale.block_bytes;
  month += kept / kGib * fleet.durable.dollars_per_gib_month;
  month += totals.loads[static_cast<size_t>(Stage::kDurable)] * months / 1e6 *
           fleet.durable.dollars_per_million_reads;
  month += totals.new_blocks * months / 1e6 * fleet.durable.dollars_per_million_writes;
  return month;
}

void SetWear(const Fleet& fleet, const Totals& totals, const OutcomeScale& scale,
             Outcome* outcome) {
  outcome->nvme_months = fleet.months;
  if (outcome->choice.nvme_bytes <= 0 || scale.seconds <= 0) return;
  const double written = totals.inserted_blocks * scale.weight * scale.block_bytes / fleet.nodes;
  outcome->nvme_bytes_written_second = written / scale.seconds;
  outcome->nvme_bytes_written_day = written / scale.seconds * kDaySeconds;
  outcome->nvme_drive_writes_day = outcome->nvme_bytes_written_day / outcome->choice.nvme_bytes;
  outcome->nvme_months = NvmeMonths(fleet, *outcome);
}

}  // namespace

TierChoice ChoiceOf(const Fleet& fleet) {
  return {.dram_bytes = static_cast<double>(fleet.dram.bytes),
          .nvme_bytes = static_cast<double>(fleet.nvme.bytes),
          .peers = fleet.peers.enabled && fleet.nodes > 1,
          .durable = fleet.durable.enabled};
}

TierSizes SizesOf(const Fleet& fleet, const TierChoice& choice, double block_bytes) {
  const double durable = fleet.durable.bytes == 0
                             ? LruStack::kNever / 2
                             : static_cast<double>(fleet.durable.bytes) / block_bytes;
  return {.engine = fleet.engine_cache_per_node() / block_bytes,
          .dram = choice.dram_bytes / block_bytes,
          .nvme = choice.nvme_bytes / block_bytes,
          .peers = choice.peers,
          .durable = choice.durable ? durable : 0};
}

std::string ChoiceText(const TierChoice& choice) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += text.empty() ? part : ", " + part; };
  if (choice.dram_bytes > 0) {
    add(SizeText(static_cast<uint64_t>(choice.dram_bytes)) + " of DRAM a node");
  }
  if (choice.nvme_bytes > 0) {
    add(SizeText(static_cast<uint64_t>(choice.nvme_bytes)) + " of NVMe a node");
  }
  if (choice.peers) add("peers");
  if (choice.durable) add("a durable store");
  return text.empty() ? "no tiers" : text;
}

Outcome OutcomeOf(const Fleet& fleet, const TierChoice& choice, const Totals& totals,
                  const OutcomeScale& scale) {
  Outcome outcome{.choice = choice};
  for (size_t i = 0; i < kStages && scale.block_references > 0; ++i) {
    outcome.hit_share[i] = totals.blocks_found[i] / scale.block_references;
    outcome.hit_rate += outcome.hit_share[i];
  }
  outcome.tokens_loaded = totals.loaded_tokens() * scale.weight;
  if (totals.tokens > 0) outcome.tokens_loaded_share = totals.loaded_tokens() / totals.tokens;
  outcome.first_token_ms_mean = totals.mean_first_token_ms();
  outcome.first_token_ms_p50 = totals.first_token_ms.Quantile(0.5);
  outcome.first_token_ms_p95 = totals.first_token_ms.Quantile(0.95);
  const double gpu_seconds_per_ms = scale.weight * fleet.gpus_per_engine / 1e3;
  outcome.gpu_seconds = totals.prefill_ms * gpu_seconds_per_ms;
  outcome.gpu_seconds_saved = totals.saved_prefill_ms() * gpu_seconds_per_ms;
  outcome.watt_hours_saved =
      outcome.gpu_seconds_saved * (fleet.gpu.watts - fleet.gpu.idle_watts) / 3600;
  outcome.watt_hours_used = TierWatts(fleet, choice) * scale.seconds / 3600;
  SetWear(fleet, totals, scale, &outcome);
  outcome.dollars_cost_month = CostMonth(fleet, outcome, totals, scale);
  if (scale.seconds <= 0) return outcome;
  const double months = kMonthSeconds / scale.seconds;
  outcome.dollars_saved_month = outcome.gpu_seconds_saved * fleet.gpu_dollars_per_second() * months;
  if (outcome.tokens_loaded > 0) {
    const double millions = outcome.tokens_loaded * months / 1e6;
    outcome.dollars_per_million_tokens = outcome.dollars_cost_month / millions;
    outcome.dollars_per_million_computed = outcome.dollars_saved_month / millions;
  }
  return outcome;
}

}  // namespace aquifer
