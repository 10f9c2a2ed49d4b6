#include <fmt/format.h>

#include <iterator>
#include <string>
#include <vector>

#include "plan/advice.h"
#include "plan/report/report.h"
#include "plan/report/svg_plot.h"
#include "plan/report_words.h"

namespace aquifer {
namespace {

// Braces are doubled nowhere: this is not a format string.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Aquifer plan</title>
<style>
:root { color-scheme: light dark; --page: #ffffff; --ink: #1b2430; --soft: #5c6a7a; --rule: #dde3ea;
  --card: #f5f7fa; --good: #0a7f4f; --bad: #b3261e; --s0: #1f6fd1; --s1: #d9730d; --s2: #0a8f76; }
@media (prefers-color-scheme: dark) { :root { --page: #12171e; --ink: #e6ebf1; --soft: #9aa8b8;
  --rule: #2b3542; --card: #1a212b; --good: #4cc38a; --bad: #ff8a80; --s0: #6aa9ff; --s1: #ffab5e;
  --s2: #55d6be; } }
body { margin: 0 auto; max-width: 1360px; padding: 24px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; }
p { margin: 4px 0; } .soft { color: var(--soft); }
.verdict { background: var(--card); border-left: 5px solid var(--soft); padding: 12px 16px;
  margin: 20px 0; } .verdict b { font-size: 20px; }
.pays { border-color: var(--good); } .pays b { color: var(--good); }
.does-not-pay { border-color: var(--bad); } .does-not-pay b { color: var(--bad); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr));
  gap: 20px; } .plot { width: 100%; height: auto; background: var(--card); border-radius: 6px; }
.plot text { fill: var(--ink); font: 13px system-ui, sans-serif; } .plot .title { font-weight: 600; }
.plot .small { font-size: 11px; fill: var(--soft); } .plot .middle { text-anchor: middle; }
.plot .end { text-anchor: end; } .grid { stroke: var(--rule); } .tick { stroke: var(--soft); }
.mark { stroke: var(--soft); stroke-dasharray: 4 3; } .line { fill: none; stroke-width: 2; }
.series0 { stroke: var(--s0); } .series1 { stroke: var(--s1); } .series2 { stroke: var(--s2); }
.fill0 { fill: var(--s0); } .fill1 { fill: var(--s1); } .fill2 { fill: var(--s2); }
table { border-collapse: collapse; margin: 8px 0; } .wide { overflow-x: auto; }
th, td { text-align: right; padding: 4px 12px; border-bottom: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; } th { color: var(--soft); font-weight: 500; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
</style>
</head>
<body>
)";

void AddRow(const std::vector<std::string>& cells, bool head, std::string* out) {
  *out += "<tr>";
  for (const std::string& cell : cells) {
    fmt::format_to(std::back_inserter(*out), "<{0}>{1}</{0}>", head ? "th" : "td", Escaped(cell));
  }
  *out += "</tr>\n";
}

void AddTable(const std::vector<std::vector<std::string>>& rows, std::string* out) {
  *out += "<div class=\"wide\"><table>\n";
  for (size_t i = 0; i < rows.size(); ++i) AddRow(rows[i], i == 0, out);
  *out += "</table></div>\n";
}

void AddTop(const Plan& plan, std::string* out) {
  const TraceFacts& trace = plan.trace;
  const Fleet& fleet = plan.fleet;
  fmt::format_to(
      std::back_inserter(*out),
      "<h1>Aquifer plan</h1>\n<p class=\"soft\">{} requests over {}, {} prompt tokens, "
      "{} distinct blocks of {} tokens ({} of KV). {} node{} of {} × {} with {}: {}.</p>\n",
      trace.requests, DurationText(trace.seconds), CountText(trace.prompt_tokens),
      CountText(trace.distinct_blocks), trace.block_tokens,
      BytesText(trace.distinct_blocks * trace.block_bytes), fleet.nodes,
      fleet.nodes == 1 ? "" : "s", fleet.gpus_per_node, Escaped(fleet.gpu.name),
      Escaped(fleet.model.name), Escaped(ChoiceText(ChoiceOf(fleet))));
  constexpr std::string_view kClasses[] = {"pays", "does-not-pay", "unknown"};
  constexpr std::string_view kWords[] = {"It pays.", "It does not pay.",
                                         "Whether it pays cannot be said."};
  const auto verdict = static_cast<size_t>(plan.verdict);
  fmt::format_to(std::back_inserter(*out), "<div class=\"verdict {}\"><b>{}</b>\n",
                 kClasses[verdict], kWords[verdict]);
  for (const std::string& reason : plan.reasons) *out += "<p>" + Escaped(reason) + "</p>\n";
  const Purchase* const next = BuyNext(plan);
  if (next != nullptr) {
    fmt::format_to(std::back_inserter(*out),
                   "<p>Buy next: {}, which gains {} a month more than it costs.</p>\n",
                   Escaped(next->what), MoneyText(next->net_month));
  } else if (plan.verdict != Verdict::kUnknown) {
    *out += "<p>Buy next: nothing. Each further purchase would cost more than it saves.</p>\n";
  }
  *out += "</div>\n";
}

void AddComparison(const Plan& plan, std::string* out) {
  const Outcome& a = plan.without;
  const Outcome& b = plan.configured;
  *out += "<h2>With and without</h2>\n";
  std::vector<std::vector<std::string>> rows = {
      {"", "without", "with the tiers"},
      {"blocks hit", PercentText(a.hit_rate), PercentText(b.hit_rate)},
      {"time to first token, mean", TimeText(a.first_token_ms_mean),
       TimeText(b.first_token_ms_mean)},
      {"time to first token, median", TimeText(a.first_token_ms_p50),
       TimeText(b.first_token_ms_p50)},
      {"time to first token, 95 %", TimeText(a.first_token_ms_p95), TimeText(b.first_token_ms_p95)},
      {"GPU seconds of prefill", fmt::format("{:.0f}", a.gpu_seconds),
       fmt::format("{:.0f}", b.gpu_seconds)},
      {"watt-hours that GPUs save", "", fmt::format("{:.0f}", b.watt_hours_saved)},
      {"watt-hours that tiers use", "", fmt::format("{:.0f}", b.watt_hours_used)}};
  if (plan.learned.has_value()) {
    rows.insert(rows.begin() + 2, {plan.learned->whole ? "blocks hit, learned order"
                                                       : "blocks hit, learned order (begin)",
                                   "", PercentText(plan.learned->hit_rate)});
  }
  if (plan.trace.seconds > 0) {
    rows.push_back({"GPU time saved, a month", "", MoneyText(b.dollars_saved_month)});
    rows.push_back({"cost of the tiers, a month", "", MoneyText(b.dollars_cost_month)});
    rows.push_back({"cost per million of the tokens saved",
                    MoneyText(b.dollars_per_million_computed),
                    MoneyText(b.dollars_per_million_tokens)});
    rows.push_back({"NVMe drive writes a day", "", fmt::format("{:.2f}", b.nvme_drive_writes_day)});
  }
  AddTable(rows, out);
}

PlotSeries SeriesOf(const std::string& name, const std::vector<Outcome>& outcomes, bool nvme,
                    const std::function<double(const Outcome&)>& value) {
  PlotSeries series{.name = name, .points = {}};
  for (const Outcome& outcome : outcomes) {
    series.points.emplace_back(nvme ? outcome.choice.nvme_bytes : outcome.choice.dram_bytes,
                               value(outcome));
  }
  return series;
}

std::string MillisecondsAxis(double ms) { return TimeText(ms); }
std::string PercentAxis(double part) { return fmt::format("{:.0f} %", 100 * part); }

LinePlot HitPlot(const Plan& plan) {
  LinePlot plot{.id = "plot-hits",
                .title = "Hit rate by what a node keeps",
                .x_label = "kept in a node, leaf-first LRU",
                .y_label = "blocks hit",
                .x_text = &BytesText,
                .y_text = &PercentAxis,
                .series = {{.name = "hit rate", .points = {}}}};
  for (const HitPoint& point : plan.hits) {
    plot.series[0].points.emplace_back(point.bytes, point.hit_rate);
  }
  if (!plan.hits.empty()) plot.marks.push_back({plan.hits[plan.knee].bytes, "knee"});
  const TierChoice& choice = plan.configured.choice;
  if (choice.dram_bytes > 0) plot.marks.push_back({choice.dram_bytes, "your DRAM"});
  if (choice.nvme_bytes > 0) plot.marks.push_back({choice.nvme_bytes, "your NVMe"});
  return plot;
}

LinePlot FirstTokenPlot(const Plan& plan, bool nvme) {
  const std::vector<Outcome>& outcomes = nvme ? plan.by_nvme : plan.by_dram;
  LinePlot plot{.id = nvme ? "plot-ttft-nvme" : "plot-ttft-dram",
                .title = nvme ? "Time to first token by NVMe, behind the fleet's DRAM"
                              : "Time to first token by DRAM alone",
                .x_label = nvme ? "NVMe of a node" : "DRAM of a node",
                .y_label = "time to first token",
                .x_text = &BytesText,
                .y_text = &MillisecondsAxis,
                .series = {}};
  plot.series.push_back(
      SeriesOf("mean", outcomes, nvme, [](const Outcome& o) { return o.first_token_ms_mean; }));
  plot.series.push_back(
      SeriesOf("median", outcomes, nvme, [](const Outcome& o) { return o.first_token_ms_p50; }));
  plot.series.push_back(
      SeriesOf("95 %", outcomes, nvme, [](const Outcome& o) { return o.first_token_ms_p95; }));
  const double yours = nvme ? plan.configured.choice.nvme_bytes : plan.configured.choice.dram_bytes;
  if (yours > 0) plot.marks.push_back({yours, nvme ? "your NVMe" : "your DRAM"});
  return plot;
}

LinePlot GpuPlot(const Plan& plan) {
  const auto saved = [](const Outcome& o) { return o.gpu_seconds_saved; };
  return {.id = "plot-gpu",
          .title = "GPU seconds saved in the trace",
          .x_label = "size in a node",
          .y_label = "GPU seconds",
          .x_text = &BytesText,
          .y_text = [](double seconds) { return fmt::format("{:.0f}", seconds); },
          .series = {SeriesOf("DRAM alone", plan.by_dram, false, saved),
                     SeriesOf("NVMe behind the fleet's DRAM", plan.by_nvme, true, saved)}};
}

LinePlot MoneyPlot(const Plan& plan) {
  const auto net = [](const Outcome& o) { return o.net_month(); };
  return {.id = "plot-money",
          .title = "Net gain a month: GPU time saved less cost",
          .x_label = "size in a node",
          .y_label = "dollars a month",
          .x_text = &BytesText,
          .y_text = &MoneyText,
          .series = {SeriesOf("DRAM alone", plan.by_dram, false, net),
                     SeriesOf("NVMe behind the fleet's DRAM", plan.by_nvme, true, net)}};
}

BarPlot StagePlot(const Plan& plan) {
  BarPlot plot{.id = "plot-stages",
               .title = "What each stage adds a month",
               .y_label = "dollars a month",
               .y_text = &MoneyText,
               .names = {"saves", "costs"},
               .groups = {}};
  for (const StagePlan& stage : plan.stages) {
    std::string name(StageName(stage.stage));
    if (!stage.in_fleet) name += " (not yours)";
    plot.groups.push_back({std::move(name), {stage.saved_month, stage.cost_month}});
  }
  return plot;
}

void AddPlots(const Plan& plan, std::string* out) {
  *out += "<h2>By size</h2>\n<div class=\"plots\">\n";
  *out += SvgOf(HitPlot(plan)) + SvgOf(FirstTokenPlot(plan, false)) +
          SvgOf(FirstTokenPlot(plan, true)) + SvgOf(GpuPlot(plan)) + SvgOf(MoneyPlot(plan)) +
          SvgOf(StagePlot(plan));
  *out += "</div>\n";
  const HitPoint& knee = plan.hits[plan.knee];
  fmt::format_to(
      std::back_inserter(*out),
      "<p>The knee is at {} a node ({} of the distinct blocks): {} of the {} that can be "
      "hit.</p>\n",
      BytesText(knee.bytes), PercentText(knee.share), PercentText(knee.hit_rate),
      PercentText(plan.hit_rate_most));
}

void AddStages(const Plan& plan, std::string* out) {
  *out += "<h2>Which stage pays</h2>\n<p class=\"soft\">Each with those above it.</p>\n";
  std::vector<std::vector<std::string>> rows = {
      {"stage", "blocks hit", "first token", "saves a month", "costs a month", ""}};
  for (const StagePlan& stage : plan.stages) {
    if (!stage.possible) {
      rows.push_back({std::string(StageName(stage.stage)), "", "", "", "", "none"});
      continue;
    }
    rows.push_back({std::string(StageName(stage.stage)), PercentText(stage.outcome.hit_rate),
                    TimeText(stage.outcome.first_token_ms_mean), MoneyText(stage.saved_month),
                    MoneyText(stage.cost_month),
                    plan.trace.seconds <= 0 ? ""
                    : stage.net_month() > 0 ? "pays"
                                            : "does not pay"});
  }
  AddTable(rows, out);
  *out += "<h2>What could be bought</h2>\n";
  rows = {{"", "blocks hit", "first token", "net gain a month"}};
  for (const Purchase& purchase : plan.purchases) {
    rows.push_back({purchase.what, PercentText(purchase.outcome.hit_rate),
                    TimeText(purchase.outcome.first_token_ms_mean), MoneyText(purchase.net_month)});
  }
  AddTable(rows, out);
}

void AddList(std::string_view title, const std::vector<std::string>& lines, std::string* out) {
  if (lines.empty()) return;
  fmt::format_to(std::back_inserter(*out), "<h2>{}</h2>\n<ul>\n", title);
  for (const std::string& line : lines) *out += "<li>" + Escaped(line) + "</li>\n";
  *out += "</ul>\n";
}

}  // namespace

std::string PlanHtml(const Plan& plan) {
  std::string out(kHead);
  AddTop(plan, &out);
  AddComparison(plan, &out);
  AddPlots(plan, &out);
  AddStages(plan, &out);
  AddList("Watch out", plan.warnings, &out);
  AddList("What is assumed", plan.assumptions, &out);
  out += "<p class=\"soft\">How each number is made: docs/operating/planning.md</p>\n";
  return out + "</body>\n</html>\n";
}

}  // namespace aquifer
