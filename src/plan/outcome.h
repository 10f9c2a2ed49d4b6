// The outcome of a choice of tiers for a fleet: times, GPU seconds, money, power and wear, from the
// tally over the trace. How each number is made: docs/operating/planning.md. Pure.
#pragma once

#include <array>
#include <string>

#include "plan/fleet.h"
#include "plan/tally.h"

namespace aquifer {

// Which tiers a fleet has, and how much of them in each node.
struct TierChoice {
  double dram_bytes = 0;
  double nvme_bytes = 0;
  bool peers = false;
  bool durable = false;

  bool operator==(const TierChoice&) const = default;
};
TierChoice ChoiceOf(const Fleet& fleet);
TierSizes SizesOf(const Fleet& fleet, const TierChoice& choice, double block_bytes);
// "1TiB of DRAM and 14TiB of NVMe a node, peers"; "no tiers".
std::string ChoiceText(const TierChoice& choice);

struct Outcome {
  TierChoice choice{};
  double hit_rate = 0;                      // Blocks in a usable prefix, of all blocks asked for.
  std::array<double, kStages> hit_share{};  // The same by stage.
  double tokens_loaded = 0;                 // In the trace, as all that follows without "month".
  double tokens_loaded_share = 0;           // Of the prompts' tokens.
  double first_token_ms_mean = 0;
  double first_token_ms_p50 = 0;
  double first_token_ms_p95 = 0;
  double gpu_seconds = 0;  // Spent on prefill.
  double gpu_seconds_saved = 0;
  double watt_hours_saved = 0;  // By GPUs.
  double watt_hours_used = 0;   // By the tiers.
  double dollars_saved_month = 0;
  double dollars_cost_month = 0;
  double dollars_per_million_tokens = 0;    // Of loading: the tiers' cost.
  double dollars_per_million_computed = 0;  // Of computing the same tokens.
  double nvme_bytes_written_day = 0;        // Of one node.
  double nvme_drive_writes_day = 0;
  double nvme_bytes_written_second = 0;
  double nvme_months = 0;  // That drives are paid off in: the fleet's, or until they are worn out.

  double net_month() const { return dollars_saved_month - dollars_cost_month; }
};

struct OutcomeScale {
  double seconds = 0;  // That the trace covers; 0: nothing by the month or the day can be said.
  double block_bytes = 0;
  double block_references = 0;  // Of the requests that were tallied.
  double distinct_blocks = 0;
  double weight = 1;  // Each tallied request stands for so many.
};

Outcome OutcomeOf(const Fleet& fleet, const TierChoice& choice, const Totals& totals,
                  const OutcomeScale& scale);

}  // namespace aquifer
