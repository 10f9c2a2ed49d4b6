#include "cli/sim_replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/standard_output.h"
#include "cli/temporary_directory.h"
#include "sim/replay/replay.h"
#include "sim/replay/replay_trace.h"
#include "trace/trace_reader.h"

namespace aquifer {
namespace {

constexpr const char* kFooter = R"(
A hit is a block that is there with all blocks before it; the rate is over all blocks that were asked for.
A capacity is a share of the trace's different blocks (5%) or a number of blocks. The trace is JSON lines as
docs/formats/trace.md has them, plain or gzip: public ones, or what aquifer serve --record writes.

lru-leaf and learned are what a node runs; lru is plain LRU, and the others are there to compare with. belady
knows the future. With --nvme there is a second tier below, and the writes to it are told. All that is stored
is written, as in a node; with --written-part, learned writes that part of it, what is likeliest to return.

Examples:
  aquifer sim replay trace.jsonl.gz --policy lru,learned,belady --capacity 1%,5%,10%
  aquifer sim replay trace.jsonl --policy lru,learned --capacity 1% --nvme 10% --json)";

std::atomic<bool> interrupted = false;

struct ReplayOptions {
  std::string trace;
  std::vector<std::string> policies = {"lru", "learned"};
  std::vector<std::string> capacities = {"1%", "5%", "10%"};
  std::string nvme;
  double written_part = 1;
  double hint_accuracy = 0;
  bool hint_returns = false;
  bool json = false;
};

// A share of all blocks, or a number of them.
bool ParseCapacity(const std::string& text, uint32_t distinct, uint32_t* blocks) {
  const bool share = text.ends_with('%');
  const char* const end = text.data() + text.size() - (share ? 1 : 0);
  double number = 0;
  const auto [last, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || last != end || !(number > 0)) return false;
  if (share && number > 100) return false;
  if (!share &&
      (number > UINT32_MAX - 1 || number != static_cast<double>(static_cast<uint32_t>(number)))) {
    return false;
  }
  const double count = share ? number / 100 * distinct : number;
  *blocks = std::max(static_cast<uint32_t>(count), 1u);
  return true;
}

std::string CheckCapacity(const std::string& text) {
  uint32_t ignored = 0;
  if (ParseCapacity(text, 1, &ignored)) return "";
  return fmt::format("it is '{}': give a share such as 5%, or a whole number of blocks", text);
}

std::string CheckPolicy(const std::string& text) {
  const auto& names = ReplayPolicies();
  if (std::find(names.begin(), names.end(), text) != names.end()) return "";
  return fmt::format("there is no policy '{}': they are {}", text, fmt::join(names, ", "));
}

std::string CheckAccuracy(const std::string& text) {
  double accuracy = 0;
  if (CLI::detail::lexical_cast(text, accuracy) && accuracy > 0 && accuracy <= 1) return "";
  return fmt::format("it is '{}': give a number above 0 and at most 1", text);
}

int Fail(const Status& status, int exit_status = kExitFailed) {
  fmt::print(stderr, "aquifer sim replay: {}\n", status.message());
  return exit_status;
}

Result<ReplayTrace> Load(const ReplayOptions& options, Progress* progress) {
  AQ_ASSIGN_OR_RETURN(const auto reader, TraceReader::Open(options.trace));
  AQ_ASSIGN_OR_RETURN(ReplayTrace trace, LoadReplayTrace(reader.get(), [&] {
                        const uint64_t total = std::max<uint64_t>(reader->bytes_total(), 1);
                        progress->Show(fmt::format(
                            "reading {}: {} requests, {}%", options.trace, reader->requests(),
                            std::min<uint64_t>(100 * reader->bytes_read() / total, 100)));
                        return !interrupted;
                      }));
  progress->Clear();
  if (trace.blocks.empty()) {
    return Status(Code::kUnavailable,
                  fmt::format("'{}' has no request with a block. Next step: name a trace as "
                              "docs/formats/trace.md has it",
                              options.trace));
  }
  if (reader->last_line_cut()) {
    fmt::print(stderr, kLastLineCut, options.trace);
  }
  return trace;
}

std::string LineOf(const ReplayOptions& options, const ReplayTrace& trace, const ReplaySetup& setup,
                   const ReplayOutcome& outcome) {
  if (options.json) {
    nlohmann::ordered_json line = {{"trace", options.trace},
                                   {"policy", setup.policy},
                                   {"capacity_blocks", setup.capacity_blocks},
                                   {"hit_rate", outcome.hit_rate()}};
    if (setup.nvme_blocks > 0) {
      line["nvme_blocks"] = setup.nvme_blocks;
      line["writes_per_insert"] = outcome.writes_per_insert();
      if (setup.written_part < 1) line["written_part"] = setup.written_part;
    }
    if (setup.hint_accuracy > 0) line["hint_accuracy"] = setup.hint_accuracy;
    if (setup.hint_returns) line["hint_returns"] = true;
    line["requests"] = trace.requests.size();
    line["blocks"] = outcome.blocks;
    using Handler = nlohmann::ordered_json::error_handler_t;
    return line.dump(-1, ' ', false, Handler::replace) + "\n";
  }
  std::string line = fmt::format("{:<10} {:>10} {:>9.2f} %", setup.policy, setup.capacity_blocks,
                                 100 * outcome.hit_rate());
  if (setup.nvme_blocks > 0) line += fmt::format(" {:>14.3f}", outcome.writes_per_insert());
  return line + "\n";
}

int RunReplay(const ReplayOptions& options) {
  for (const std::string& policy : options.policies) {
    const Status possible = CheckSetup({.policy = policy,
                                        .capacity_blocks = 1,
                                        .nvme_blocks = options.nvme.empty() ? 0u : 1u,
                                        .written_part = options.written_part});
    if (!possible.ok()) return Fail(possible, kExitUsage);
  }
  SetOnNextInterrupt(&interrupted);
  Progress progress;
  const Result<ReplayTrace> trace = Load(options, &progress);
  if (!trace.ok()) return Fail(trace.status());
  uint32_t nvme_blocks = 0;
  if (!options.nvme.empty()) ParseCapacity(options.nvme, trace->distinct, &nvme_blocks);
  if (!options.json) {
    const Status printed = PrintOut(
        fmt::format("{} requests for {} blocks, {} different ones\n{:<10} {:>10} {:>11}{}\n",
                    trace->requests.size(), trace->blocks.size(), trace->distinct, "policy",
                    "capacity", "hits", nvme_blocks > 0 ? "  writes/stored" : ""));
    if (!printed.ok()) return Fail(printed);
  }
  for (const std::string& policy : options.policies) {
    for (const std::string& capacity : options.capacities) {
      ReplaySetup setup = {.policy = policy,
                           .nvme_blocks = nvme_blocks,
                           .written_part = options.written_part,
                           .hint_accuracy = options.hint_accuracy,
                           .hint_returns = options.hint_returns};
      ParseCapacity(capacity, trace->distinct, &setup.capacity_blocks);
      const auto outcome = Replay(*trace, setup, [&](uint64_t requests) {
        progress.Show(fmt::format("{} at {}: {} of {} requests", policy, capacity, requests,
                                  trace->requests.size()));
        return !interrupted;
      });
      progress.Clear();
      if (!outcome.ok()) return Fail(outcome.status());
      const Status printed = PrintOut(LineOf(options, *trace, setup, *outcome));
      if (!printed.ok()) return Fail(printed);
    }
  }
  return kExitOk;
}

}  // namespace

void AddSimReplayCommand(CLI::App* sim, int* exit_status) {
  CLI::App* const replay =
      sim->add_subcommand("replay", "Judge eviction policies on a request trace");
  const auto options = std::make_shared<ReplayOptions>();  // The callback's, and CLI11's targets.
  replay->add_option("trace", options->trace, "The trace: JSON lines, plain or gzip")->required();
  replay->add_option("--policy", options->policies, "Which, with commas (default: lru,learned)")
      ->delimiter(',')
      ->check(CheckPolicy);
  replay
      ->add_option("--capacity", options->capacities,
                   "Shares or numbers of blocks, with commas (default: 1%,5%,10%)")
      ->delimiter(',')
      ->check(CheckCapacity);
  replay->add_option("--nvme", options->nvme, "A second tier of this size")->check(CheckCapacity);
  replay
      ->add_option("--written-part", options->written_part,
                   "As written_part in [nvme] of a node: learned writes so much of what is stored")
      ->check(CLI::Range(0.01, 1.0));
  replay
      ->add_option("--hint-accuracy", options->hint_accuracy,
                   "Callers say whether a conversation goes on, and are right so often")
      ->check(CheckAccuracy);
  replay
      ->add_flag("--hint-returns", options->hint_returns,
                 "They say when, too: within a factor of two where they are right")
      ->needs("--hint-accuracy");
  replay->add_flag("--json", options->json, "One JSON object a line");
  replay->footer(kFooter);
  replay->callback([options, exit_status] { *exit_status = RunReplay(*options); });
}

}  // namespace aquifer
