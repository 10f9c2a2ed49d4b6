#include "plan/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "plan/report_words.h"

namespace aquifer {
namespace {

constexpr double kLittle = 0.005;  // Of all blocks or tokens: nothing to speak of.
constexpr double kShortSeconds = 600;
constexpr double kFewFollowed = 1000;  // Blocks of a sample that say too little.

// The hit rate that tiers could add to the engine's own.
double MostToGain(const Plan& plan) { return plan.hit_rate_most - plan.without.hit_rate; }

bool TooFewFollowed(const TraceFacts& trace) {
  return trace.sampled_one_in > 1 && trace.followed_blocks() < kFewFollowed;
}

void SayWhyNot(Plan* plan) {
  const Outcome& ours = plan->configured;
  std::vector<std::string>& reasons = plan->reasons;
  if (MostToGain(*plan) < kLittle) {
    reasons.push_back(fmt::format(
        "There is almost nothing to gain: with room for everything {} of the blocks would be hits, "
        "and the engine's own cache has {} already.",
        PercentText(plan->hit_rate_most), PercentText(plan->without.hit_rate)));
    return;
  }
  if (ours.hit_rate - plan->without.hit_rate < kLittle) {
    reasons.push_back(fmt::format(
        "These tiers are too small to hold what comes back: {} of the blocks are hits beyond the "
        "engine's own, {} would be with room for everything.",
        PercentText(ours.hit_rate - plan->without.hit_rate), PercentText(MostToGain(*plan))));
  } else if (ours.tokens_loaded_share < kLittle) {
    reasons.push_back(fmt::format(
        "Recomputing is faster than loading: {} of the blocks are there, and {} of the tokens are "
        "worth loading. The tiers are too slow for this GPU and model.",
        PercentText(ours.hit_rate), PercentText(ours.tokens_loaded_share)));
  } else {
    reasons.push_back(fmt::format("The tiers cost {} a month and save {} of GPU time.",
                                  MoneyText(ours.dollars_cost_month),
                                  MoneyText(ours.dollars_saved_month)));
  }
  const Outcome* const best = BestDram(*plan);
  if (best != nullptr) {
    const bool smaller = best->choice.dram_bytes < ours.choice.dram_bytes + ours.choice.nvme_bytes;
    reasons.push_back(fmt::format(
        "{} would pay: {} of DRAM a node alone saves {} and costs {} a month.",
        smaller ? "A smaller fleet of tiers" : "Larger tiers", BytesText(best->choice.dram_bytes),
        MoneyText(best->dollars_saved_month), MoneyText(best->dollars_cost_month)));
  } else {
    reasons.push_back("No size of DRAM alone would pay either.");
  }
}

void SayWhy(Plan* plan) {
  const Outcome& ours = plan->configured;
  plan->reasons.push_back(fmt::format(
      "The tiers save {} of GPU time a month and cost {}: {} of all prompt tokens are loaded in "
      "place of computed.",
      MoneyText(ours.dollars_saved_month), MoneyText(ours.dollars_cost_month),
      PercentText(ours.tokens_loaded_share)));
  plan->reasons.push_back(fmt::format(
      "The mean time to the first token goes from {:.0f} ms to {:.0f} ms, queues not counted.",
      plan->without.first_token_ms_mean, ours.first_token_ms_mean));
}

// Names each tier of the fleet that costs more than it saves.
void SayWhatToLeaveOut(Plan* plan) {
  for (const StagePlan& stage : plan->stages) {
    if (!stage.in_fleet || !stage.possible || stage.net_month() >= 0) continue;
    std::string reason = fmt::format("Of them {} does not pay: it costs {} a month and adds {}.",
                                     StageName(stage.stage), MoneyText(stage.cost_month),
                                     MoneyText(stage.saved_month));
    if (stage.stage == Stage::kNvme && stage.outcome.nvme_months < plan->fleet.months) {
      reason += " Most of the cost is wear: drives that bear more writes would do.";
    }
    plan->reasons.push_back(std::move(reason));
  }
}

void Judge(Plan* plan) {
  if (plan->trace.seconds <= 0) {
    plan->verdict = Verdict::kUnknown;
    plan->reasons.emplace_back(
        "All requests of the trace have the same time, so nothing can be said by the month or the "
        "day. Hit rates and times hold.");
    return;
  }
  if (TooFewFollowed(plan->trace)) {
    plan->verdict = Verdict::kUnknown;
    plan->reasons.push_back(
        fmt::format("Of the trace's blocks only {:.0f} were followed, which are too few to judge "
                    "by. Follow more of them: a smaller --sample, a larger --max-blocks.",
                    plan->trace.followed_blocks()));
    return;
  }
  const bool pays =
      plan->configured.net_month() > 0 && plan->configured.tokens_loaded_share >= kLittle;
  plan->verdict = pays ? Verdict::kPays : Verdict::kDoesNotPay;
  if (pays) {
    SayWhy(plan);
    SayWhatToLeaveOut(plan);
  } else {
    SayWhyNot(plan);
  }
}

// As the error of a sample falls with its size; on Mooncake's conversation trace it was less.
double PointsOff(const TraceFacts& trace) {
  return std::clamp(100 / std::sqrt(std::max(trace.followed_blocks(), 1.0)), 0.1, 100.0);
}

void Warn(Plan* plan) {
  const Fleet& fleet = plan->fleet;
  const TraceFacts& trace = plan->trace;
  const auto warn = [plan](std::string text) { plan->warnings.push_back(std::move(text)); };
  if (trace.seconds > 0) {
    const double busy =
        (plan->without.gpu_seconds) / (trace.seconds * fleet.nodes * fleet.gpus_per_node);
    if (busy > 1) {
      warn(
          fmt::format("Prefill alone would keep these GPUs busy {} of the time without tiers and "
                      "{} with them: more than 100 % means queues, which are not counted here.",
                      PercentText(busy),
                      PercentText(plan->configured.gpu_seconds /
                                  (trace.seconds * fleet.nodes * fleet.gpus_per_node))));
    }
    if (trace.seconds < kShortSeconds) {
      warn(
          fmt::format("The trace covers {:.0f} s. What comes back after longer is not in it, and "
                      "by the month it may mislead.",
                      trace.seconds));
    }
  }
  const Outcome& ours = plan->configured;
  if (ours.nvme_drive_writes_day > fleet.nvme.drive_writes_per_day) {
    warn(fmt::format(
        "NVMe would be written {:.2f} times a day and is rated for {:.2f}: it wears out "
        "in {:.1f} months, which its cost counts. A write budget of {} a second "
        "(nvme.write_budget of the node) makes it last; then it holds less.",
        ours.nvme_drive_writes_day, fleet.nvme.drive_writes_per_day, ours.nvme_months,
        BytesText(fleet.nvme.drive_writes_per_day * ours.choice.nvme_bytes / 86'400)));
  }
  if (ours.nvme_bytes_written_second > fleet.nvme.write_bytes_per_second) {
    warn(fmt::format(
        "NVMe would have to write {} a second on average and can do {}: it would hold "
        "less than is said here.",
        BytesText(ours.nvme_bytes_written_second), BytesText(fleet.nvme.write_bytes_per_second)));
  }
  if (fleet.nvme.bytes > 0 && fleet.nvme.bytes <= fleet.dram.bytes) {
    warn(
        "NVMe is not larger than DRAM. It holds what DRAM holds, too, so it adds no hits; it only "
        "survives a restart.");
  }
  if (trace.blocks_cut > 0) {
    warn(fmt::format("{} blocks were named past the end of their prompts and left out.",
                     trace.blocks_cut));
  }
  if (trace.misfits > 0) {
    warn(fmt::format(
        "{} of {} requests name more or fewer blocks than their prompts fill with {} tokens in a "
        "block. If the trace is of several models or layouts, plan for each by itself: sizes and "
        "money are wrong here.",
        trace.misfits, trace.requests, trace.block_tokens));
  }
  if (trace.sampled_one_in > 1) {
    warn(fmt::format(
        "One block in {} was followed, {:.0f} in all: hit rates by size are good to about {:.1f} "
        "points. Those with and without the tiers, and what follows from them, may be four points "
        "low.",
        trace.sampled_one_in, trace.followed_blocks(), PointsOff(trace)));
  }
}

void ListAssumptions(Plan* plan) {
  const Fleet& fleet = plan->fleet;
  const auto assume = [plan](std::string text) { plan->assumptions.push_back(std::move(text)); };
  assume(
      "What is kept is what was used last, leaf first. The node's learned order usually keeps "
      "more of use.");
  if (fleet.prefill_told) {
    assume(fmt::format(
        "A prefill takes {:.3g} ms, {:.3g} ms a token and {:.3g} ms for a million "
        "pairs of tokens, as the fleet file says.",
        fleet.prefill.step_ms, fleet.prefill.ms_per_token, 1e6 * fleet.prefill.ms_per_token_pair));
  } else {
    assume(
        fmt::format("An engine of {} x {} reaches {:.0f} % of {:.0f} TFLOPS in prefill: {:.3g} ms "
                    "a token and {:.3g} ms for a million pairs of tokens. Measure yours and "
                    "write [prefill].",
                    fleet.gpus_per_engine, fleet.gpu.name, 100 * fleet.gpu.efficiency,
                    fleet.gpu.tflops * fleet.gpus_per_engine, fleet.prefill.ms_per_token,
                    1e6 * fleet.prefill.ms_per_token_pair));
  }
  if (!fleet.gpus_per_engine_told && fleet.gpus_per_engine > 1) {
    assume(fmt::format("An engine has {} GPUs, as few as hold the {:.0f} GB of weights.",
                       fleet.gpus_per_engine, fleet.model.weight_bytes / 1e9));
  }
  if (!fleet.engine_cache_told) {
    assume(
        fmt::format("Half of the GPU memory beside the weights, {} an engine, keeps prefixes by "
                    "itself, and the engines of a node share it.",
                    BytesText(fleet.engine_cache_bytes)));
  }
  assume(
      fmt::format("A GPU hour costs ${:.2f}, and a GPU second that is saved is worth as much: "
                  "that holds where GPUs are the bottleneck, or are given back.",
                  fleet.gpu.dollars_per_hour));
  assume(fmt::format(
      "What is bought is paid off in {:.0f} months: DRAM at ${:.2f} a GiB, NVMe at "
      "${:.0f} a TB, or sooner where writes wear it out before; power is ${:.2f} a kWh.",
      fleet.months, fleet.dram.dollars_per_gib, fleet.nvme.dollars_per_tb, fleet.dollars_per_kwh));
  assume(
      "Each load has its tier to itself and requests do not queue; only what loads faster than "
      "it computes is loaded, as the node decides it.");
  assume(
      "NVMe holds what DRAM holds as well, and every block that is new to a node is written "
      "once.");
  assume(plan->trace.outputs_followed
             ? "Outputs are stored behind their prompts, as the trace was recorded."
             : "Outputs are not stored until a later prompt has them.");
  if (plan->trace.prompts_are_texts) {
    assume("Prompts are texts, of which four bytes count as a token.");
  }
  if (fleet.nodes > 1) {
    assume(fleet.routing == Routing::kSticky
               ? "A request goes to the node that has its blocks, unless that has 1.25 times its "
                 "share of the tokens."
               : "A request goes to any node.");
  }
}

}  // namespace

size_t FindKnee(const std::vector<HitPoint>& hits) {
  if (hits.size() < 3 || hits.back().hit_rate <= hits.front().hit_rate) return 0;
  const auto x = [&hits](size_t i) { return std::log2(std::max(hits[i].blocks, 1.0)); };
  const double width = x(hits.size() - 1) - x(0);
  const double height = hits.back().hit_rate - hits.front().hit_rate;
  size_t knee = 0;
  double farthest = 0;
  for (size_t i = 0; i < hits.size() && width > 0; ++i) {
    const double above =
        (hits[i].hit_rate - hits.front().hit_rate) / height - (x(i) - x(0)) / width;
    if (above > farthest) {
      farthest = above;
      knee = i;
    }
  }
  return knee == 0 ? hits.size() - 1 : knee;
}

const Purchase* BuyNext(const Plan& plan) {
  if (plan.verdict == Verdict::kUnknown || plan.purchases.empty()) return nullptr;
  return plan.purchases.front().net_month > 0 ? &plan.purchases.front() : nullptr;
}

const Outcome* BestDram(const Plan& plan) {
  const auto best = std::max_element(
      plan.by_dram.begin(), plan.by_dram.end(),
      [](const Outcome& a, const Outcome& b) { return a.net_month() < b.net_month(); });
  return best == plan.by_dram.end() || best->net_month() <= 0 ? nullptr : &*best;
}

void Advise(Plan* plan) {
  Judge(plan);
  Warn(plan);
  ListAssumptions(plan);
}

}  // namespace aquifer
