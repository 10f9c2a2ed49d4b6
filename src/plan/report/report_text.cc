#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <vector>

#include "plan/advice.h"
#include "plan/report/report.h"
#include "plan/report_words.h"

namespace aquifer {
namespace {

constexpr size_t kBarWidth = 40;
constexpr size_t kWidth = 98;
constexpr std::array kShares = {0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0};

// Sentences, broken between words.
void AddWrapped(std::string_view first, std::string_view text, std::string* out) {
  std::string line(first);
  const std::string indent(first.size(), ' ');
  size_t begin = 0;
  bool fresh = true;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (!fresh && line.size() + 1 + word.size() > kWidth) {
      *out += line + "\n";
      line = indent;
      fresh = true;
    }
    if (!fresh) line += ' ';
    line += word;
    fresh = false;
    begin = end + 1;
  }
  *out += line + "\n";
}

std::string Bar(double part) {
  const auto filled = static_cast<size_t>(std::clamp(part, 0.0, 1.0) * kBarWidth + 0.5);
  return std::string(filled, '#') + std::string(kBarWidth - filled, '.');
}

std::string VerdictText(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPays:
      return "It pays.";
    case Verdict::kDoesNotPay:
      return "It does not pay.";
    case Verdict::kUnknown:
      break;
  }
  return "Whether it pays cannot be said.";
}

void AddTrace(const Plan& plan, std::string* out) {
  const TraceFacts& trace = plan.trace;
  const Fleet& fleet = plan.fleet;
  fmt::format_to(std::back_inserter(*out),
                 "trace   {} requests over {}, {} prompt tokens, blocks of {} tokens\n"
                 "        {} block references, {} distinct: {} of KV\n",
                 trace.requests, DurationText(trace.seconds), CountText(trace.prompt_tokens),
                 trace.block_tokens, CountText(trace.block_references),
                 CountText(trace.distinct_blocks),
                 BytesText(trace.distinct_blocks * trace.block_bytes));
  fmt::format_to(std::back_inserter(*out),
                 "fleet   {} node{} of {} x {}, {} with {} of KV a token, {} GPU{} an engine\n"
                 "        {}\n\n",
                 fleet.nodes, fleet.nodes == 1 ? "" : "s", fleet.gpus_per_node, fleet.gpu.name,
                 fleet.model.name, BytesText(fleet.model.kv_bytes_per_token), fleet.gpus_per_engine,
                 fleet.gpus_per_engine == 1 ? "" : "s", ChoiceText(ChoiceOf(fleet)));
}

void AddVerdict(const Plan& plan, std::string* out) {
  *out += VerdictText(plan.verdict) + "\n";
  for (const std::string& reason : plan.reasons) AddWrapped("  ", reason, out);
  const Purchase* const next = BuyNext(plan);
  if (next != nullptr) {
    AddWrapped("  ",
               fmt::format("Buy next: {}, which gains {} a month more than it costs.", next->what,
                           MoneyText(next->net_month)),
               out);
  } else if (plan.verdict != Verdict::kUnknown) {
    AddWrapped("  ", "Buy next: nothing. Each further purchase would cost more than it saves.",
               out);
  }
  *out += "\n";
}

void AddComparison(const Plan& plan, std::string* out) {
  const Outcome& before = plan.without;
  const Outcome& after = plan.configured;
  const auto row = [out](std::string_view name, const std::string& without,
                         const std::string& with) {
    fmt::format_to(std::back_inserter(*out), "  {:<38}{:>16}{:>16}\n", name, without, with);
  };
  row("", "without", "with the tiers");
  row("blocks hit", PercentText(before.hit_rate), PercentText(after.hit_rate));
  if (plan.learned.has_value()) {
    row(plan.learned->whole ? "blocks hit, learned order" : "blocks hit, learned order (begin)", "",
        PercentText(plan.learned->hit_rate));
  }
  row("time to first token, mean", TimeText(before.first_token_ms_mean),
      TimeText(after.first_token_ms_mean));
  row("time to first token, median", TimeText(before.first_token_ms_p50),
      TimeText(after.first_token_ms_p50));
  row("time to first token, 95 %", TimeText(before.first_token_ms_p95),
      TimeText(after.first_token_ms_p95));
  row("GPU seconds of prefill", fmt::format("{:.0f}", before.gpu_seconds),
      fmt::format("{:.0f}", after.gpu_seconds));
  row("watt-hours saved / used by tiers", "",
      fmt::format("{:.0f} / {:.0f}", after.watt_hours_saved, after.watt_hours_used));
  if (plan.trace.seconds > 0) {
    row("GPU time saved, a month", "", MoneyText(after.dollars_saved_month));
    row("cost of the tiers, a month", "", MoneyText(after.dollars_cost_month));
    row("cost per million of the tokens saved", MoneyText(after.dollars_per_million_computed),
        MoneyText(after.dollars_per_million_tokens));
    if (after.choice.nvme_bytes > 0) {
      row("NVMe drive writes a day (rated)", "",
          fmt::format("{:.2f} ({:.2f})", after.nvme_drive_writes_day,
                      plan.fleet.nvme.drive_writes_per_day));
    }
  }
  *out += "\n";
}

void AddStages(const Plan& plan, std::string* out) {
  *out += "Which stage pays, each with those above it:\n";
  fmt::format_to(std::back_inserter(*out), "  {:<12}{:>10}{:>14}{:>14}{:>14}  {}\n", "stage",
                 "hits", "first token", "saves/month", "costs/month", "");
  for (const StagePlan& stage : plan.stages) {
    if (!stage.possible) {
      fmt::format_to(std::back_inserter(*out), "  {:<12}{:>10}\n", StageName(stage.stage), "none");
      continue;
    }
    std::string judged = plan.trace.seconds <= 0     ? ""
                         : stage.net_month() > 0     ? "pays"
                         : stage.saved_month < 0.005 ? "adds nothing"
                                                     : "does not pay";
    if (!stage.in_fleet) judged += judged.empty() ? "not in the fleet" : ", not in the fleet";
    fmt::format_to(std::back_inserter(*out), "  {:<12}{:>10}{:>14}{:>14}{:>14}  {}\n",
                   StageName(stage.stage), PercentText(stage.outcome.hit_rate),
                   TimeText(stage.outcome.first_token_ms_mean), MoneyText(stage.saved_month),
                   MoneyText(stage.cost_month), judged);
  }
  *out += "\n";
}

void AddHits(const Plan& plan, std::string* out) {
  const double nodes = plan.fleet.nodes;
  *out += "Hit rate by what a node keeps (leaf-first LRU):\n";
  for (const double share : kShares) {
    const double blocks = plan.trace.distinct_blocks * share / nodes;
    const double rate = plan.HitRate(blocks);
    fmt::format_to(std::back_inserter(*out), "  {:>10} {:>5.0f} %  {} {:>6.2f} %\n",
                   BytesText(blocks * plan.trace.block_bytes), 100 * share, Bar(rate), 100 * rate);
  }
  if (!plan.hits.empty()) {
    const HitPoint& knee = plan.hits[plan.knee];
    fmt::format_to(std::back_inserter(*out),
                   "  The knee is at {} a node ({} of the distinct blocks): {} of {} that can be "
                   "hit.\n",
                   BytesText(knee.bytes), PercentText(knee.share), PercentText(knee.hit_rate),
                   PercentText(plan.hit_rate_most));
  }
  *out += "\n";
}

void AddSizes(std::string_view title, const std::vector<Outcome>& outcomes, bool nvme,
              std::string* out) {
  *out += title;
  fmt::format_to(std::back_inserter(*out), "  {:>10}{:>10}{:>14}{:>16}{:>14}\n", "size", "hits",
                 "first token", "GPU s saved", "net/month");
  for (const Outcome& outcome : outcomes) {
    const double bytes = nvme ? outcome.choice.nvme_bytes : outcome.choice.dram_bytes;
    fmt::format_to(std::back_inserter(*out), "  {:>10}{:>10}{:>14}{:>16.0f}{:>14}\n",
                   BytesText(bytes), PercentText(outcome.hit_rate),
                   TimeText(outcome.first_token_ms_mean), outcome.gpu_seconds_saved,
                   MoneyText(outcome.net_month()));
  }
  *out += "\n";
}

void AddList(std::string_view title, const std::vector<std::string>& lines, std::string* out) {
  if (lines.empty()) return;
  *out += title;
  for (const std::string& line : lines) AddWrapped("  - ", line, out);
  *out += "\n";
}

}  // namespace

std::string PlanText(const Plan& plan) {
  std::string out;
  AddTrace(plan, &out);
  AddVerdict(plan, &out);
  AddComparison(plan, &out);
  AddStages(plan, &out);
  AddHits(plan, &out);
  AddSizes("DRAM alone, a node:\n", plan.by_dram, false, &out);
  AddSizes("NVMe behind the fleet's DRAM, a node:\n", plan.by_nvme, true, &out);
  AddList("Watch out:\n", plan.warnings, &out);
  AddList("Assumed:\n", plan.assumptions, &out);
  out += "How each number is made: docs/operating/planning.md\n";
  return out;
}

}  // namespace aquifer
