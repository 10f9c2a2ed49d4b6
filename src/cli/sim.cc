// aquifer sim: the whole cache on simulated time, drives and engines, from one seed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>

#include "base/check.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/sim_replay.h"
#include "cli/temporary_directory.h"
#include "sim/fuzz/fuzz.h"
#include "sim/fuzz/minimise.h"
#include "sim/fuzz/reduction.h"
#include "sim/world/run.h"
#include "sim/world/scenario.h"

namespace aquifer {
namespace {

constexpr uint64_t kDefaultSeeds = 1000;
constexpr double kShowSeconds = 0.2;  // Between two changes of the progress line.

struct SimOptions {
  uint64_t seed = 0;  // 0: not given.
  uint64_t seeds = 0;
  double minutes = 0;
  bool stores = false;
  Reduction reduction;
};

constexpr const char* kSimFooter = R"(
A seed decides everything: what the engines do, how the threads and drives interleave, and which
faults come when. The same seed does the same on every machine.

Examples:
  aquifer sim fuzz                   a thousand seeds, with the promises checked as they run
  aquifer sim fuzz --minutes 30      as many as half an hour allows
  aquifer sim trace --seed 7         all that happens in seed 7
  aquifer sim replay trace.jsonl     eviction policies, judged on a request trace)";

constexpr const char* kFuzzFooter = R"(
Ends at the first seed that breaks a promise: says which, shows what happened before, makes the seed
smaller, and says how to see it again. Ctrl-C ends with a summary. A block operation is one key in a
request, or one lease given back.

Examples:
  aquifer sim fuzz --seeds 100000
  aquifer sim fuzz --seed 70001 --seeds 5000     seeds 70001 to 75000
  aquifer sim fuzz --seed 7                      that one only)";

constexpr const char* kTraceFooter = R"(
The last line is a digest of every step: two runs that differ anywhere differ there.

Examples:
  aquifer sim trace --seed 7
  aquifer sim trace --seed 7 --leave-out-faults 0,2 --steps 900)";

std::atomic<bool> interrupted = false;

// CLI11's own validators speak of ranges of floating-point numbers.
std::string CheckCount(const std::string& text) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && end == text.data() + text.size() && count > 0) return "";
  return fmt::format("it is '{}': give a whole number from 1 to {}", text, UINT64_MAX);
}

std::string CheckMinutes(const std::string& text) {
  double minutes = 0;
  if (CLI::detail::lexical_cast(text, minutes) && minutes > 0) return "";
  return fmt::format("it is '{}': give a number above 0", text);
}

// A check of the product's own failed in mid-seed. The seed is worth more than the process.
void ShowSeedOfFailedCheck() {
  const Running* const running = RunUnderWay();
  if (running == nullptr) return;
  for (const std::string& line : running->Last(20)) fmt::print(stderr, "{}\n", line);
  fmt::print(stderr, "Next step: aquifer sim trace --seed {}\n", running->seed());
}

std::string SummaryOf(const FuzzReport& report) {
  const EngineCounts& counts = report.counts;
  return fmt::format(
      "{} seeds in {:.1f} s ({:.0f} a second), {:.1f} simulated hours, {} steps\n"
      "{} block operations ({:.0f} a second): {} stored, {} hits in DRAM, {} on NVMe,\n"
      "  {} in durable tiers, {} misses, {} late, {} corrupt, {} failed, {} refused, {} "
      "deleted\n{}\n",
      report.seeds, report.seconds, static_cast<double>(report.seeds) / report.seconds,
      report.simulated_seconds / 3600, report.steps, counts.block_operations,
      static_cast<double>(counts.block_operations) / report.seconds, counts.stored,
      counts.hits_dram, counts.hits_nvme, counts.hits_durable, counts.misses, counts.late,
      counts.corrupt, counts.failed, counts.refused, counts.evicted, TextOf(report.faults));
}

void ShowFailure(uint64_t seed, const RunOutcome& outcome, const Reduction& reduction) {
  for (const std::string& line : outcome.trace) fmt::print("{}\n", line);
  fmt::print("seed {} breaks a promise at step {}: {}\n", seed, outcome.steps, outcome.violation);
  fmt::print("Next step: aquifer sim trace --seed {}{}\n", seed, ArgumentsOf(reduction));
}

int RunFuzz(const SimOptions& options) {
  SetOnNextInterrupt(&interrupted);
  if (options.seeds > 0 && options.seed > UINT64_MAX - (options.seeds - 1)) {
    fmt::print(
        stderr,
        "aquifer sim fuzz: there are no {} seeds from {} on; the last is {}. See aquifer sim "
        "fuzz --help\n",
        options.seeds, options.seed, UINT64_MAX);
    return kExitUsage;
  }
  FuzzOptions fuzz;
  fuzz.first_seed = options.seed == 0 ? 1 : options.seed;
  if (options.stores && !HasStores(fuzz.first_seed)) fuzz.first_seed += kStoreSeeds;
  fuzz.seconds = options.minutes * 60;
  if (options.seeds > 0) {
    fuzz.seeds = options.seeds;
  } else if (options.minutes == 0) {
    fuzz.seeds = options.seed == 0 ? kDefaultSeeds : 1;
  }
  Progress progress;
  double shown = 0;
  const FuzzReport report = Fuzz(fuzz, [&](const FuzzReport& so_far) {
    if (so_far.seconds - shown >= kShowSeconds) {
      shown = so_far.seconds;
      const std::string of = fuzz.seeds == UINT64_MAX
                                 ? fmt::format("{:.0f} of {:.0f} s", so_far.seconds, fuzz.seconds)
                                 : fmt::format("{} of {} seeds", so_far.seeds, fuzz.seeds);
      progress.Show(
          fmt::format("{}, {:.0f} seeds/s, {:.0f} block operations/s, {} of {} kinds of faults", of,
                      static_cast<double>(so_far.seeds) / so_far.seconds,
                      static_cast<double>(so_far.counts.block_operations) / so_far.seconds,
                      so_far.fault_kinds_seen(), PossibleFaultKinds(so_far.faults)));
    }
    return !interrupted;
  });
  progress.Clear();
  fmt::print("{}", SummaryOf(report));
  if (!report.failed_seed.has_value()) {
    fmt::print("no promise was broken\n");
    return kExitOk;
  }
  progress.Show("making it smaller");
  const Minimised small = Minimise(*report.failed_seed, report.failure);
  progress.Clear();
  ShowFailure(*report.failed_seed, small.outcome, small.reduction);
  return kExitFailed;
}

int RunTrace(const SimOptions& options) {
  const Result<Scenario> scenario = Reduce(options.seed, options.reduction);
  if (!scenario.ok()) {
    fmt::print(stderr, "aquifer sim trace: {}. See aquifer sim trace --help\n",
               scenario.status().message());
    return kExitUsage;
  }
  const RunOutcome outcome =
      RunScenario(*scenario, [](const std::string& line) { fmt::print("{}\n", line); });
  if (!outcome.ok()) fmt::print("broken at step {}: {}\n", outcome.steps, outcome.violation);
  fmt::print("digest {:016x} after {} steps\n", outcome.digest, outcome.steps);
  return outcome.ok() ? kExitOk : kExitFailed;
}

}  // namespace

void AddSimCommand(CLI::App* app, int* exit_status) {
  CLI::App* const command = app->add_subcommand(
      "sim", "Run the whole cache on simulated time, drives and engines; replay request traces");
  command->require_subcommand(1);
  command->footer(kSimFooter);
  const auto options = std::make_shared<SimOptions>();  // The callbacks', and CLI11's targets.
  SetCheckHandler(ShowSeedOfFailedCheck);

  CLI::App* const fuzz = command->add_subcommand("fuzz", "Seed after seed, until one fails");
  fuzz->add_option("--seeds", options->seeds, "How many (default: 1000)")->check(CheckCount);
  fuzz->add_option("--seed", options->seed, "The first; without --seeds or --minutes the only one")
      ->check(CheckCount);
  fuzz->add_option("--minutes", options->minutes, "End after so long")->check(CheckMinutes);
  fuzz->add_flag("--stores", options->stores,
                 "Seeds with durable tiers and mostly a second node that shares them");
  fuzz->footer(kFuzzFooter);
  fuzz->callback([options, exit_status] { *exit_status = RunFuzz(*options); });

  CLI::App* const trace = command->add_subcommand("trace", "Show all that happens in one seed");
  trace->add_option("--seed", options->seed, "Which")->required()->check(CheckCount);
  trace
      ->add_option("--leave-out-faults", options->reduction.left_out_faults,
                   "Without these of its faults, counted from 0")
      ->delimiter(',');
  trace
      ->add_option("--leave-out-engines", options->reduction.left_out_engines,
                   "Without these of its engines, counted from 0")
      ->delimiter(',');
  trace->add_option("--steps", options->reduction.steps, "End the faults after so many steps");
  trace->footer(kTraceFooter);
  trace->callback([options, exit_status] { *exit_status = RunTrace(*options); });

  AddSimReplayCommand(command, exit_status);
}

}  // namespace aquifer
