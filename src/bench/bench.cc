#include "bench/bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_report.h"
#include "bench/bench_row.h"
#include "bench/bench_runner.h"
#include "bench/bench_vllm.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/progress.h"
#include "cli/temporary_directory.h"
#include "io/disk/disk.h"

namespace aquifer {
namespace {

// Slow disks need this long; where all is fast, every row has its rounds long before.
constexpr double kQuickRowSeconds = 8;
constexpr double kQuickLeastSeconds = 2.5;

struct BenchOptions {
  std::vector<std::string> names;
  bool list = false;
  bool quick = false;
  bool json = false;
  bool check = false;
  std::string directory;
};

constexpr const char* kFooter = R"(
A NAME is the beginning of a row's name: 'dram' measures all that begin with it. Limit, ours and
peers are measured in the same run, in turn, and their medians are compared. Throughput is in GB/s
(10^9 bytes). The exit status is 0 when every row was measured, whether it met its goal or not.

Examples:
  aquifer bench --list                       what there is
  aquifer bench                              everything: about a quarter of an hour
  aquifer bench --quick                      everything in fewer rounds: under five minutes
  aquifer bench nvme --directory /mnt/nvme0  the NVMe rows, on that drive
  aquifer bench dram.fetch/2MiB --check      fails when the goal is missed
  aquifer bench keys --json                  one JSON object a line, for programs
  aquifer bench vllm                         real vLLM engines with and without Aquifer: minutes, and
                                             only when asked for by name; needs the Python package)";

std::vector<Row> AllRows() {
  std::vector<Row> rows;
  AddDramRows(&rows);
#ifdef AQUIFER_HAS_NODE
  AddNodeRows(&rows);
#endif
  AddNvmeRows(&rows);
  AddRecoverRows(&rows);
  AddPosixRows(&rows);
  AddKeyRows(&rows);
  AddChecksumRows(&rows);
  AddCodecRows(&rows);
  AddSealRows(&rows);
  AddRedisRows(&rows);
#ifdef AQUIFER_HAS_S3
  AddObjectRows(&rows);
#endif
  AddIndexRows(&rows);
  AddPolicyRows(&rows);
  AddGpuRows(&rows);
#ifdef AQUIFER_HAS_NODE
  AddGpuNodeRows(&rows);
#endif
  return rows;
}

// "{dram,node,...}": what names begin with, for the help and for shells to offer.
std::string GroupsText() {
  std::vector<std::string> groups;
  for (const Row& row : AllRows()) {
    const std::string group = row.name.substr(0, row.name.find_first_of("./"));
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  groups.emplace_back("vllm");
  return fmt::format("{{{}}}", fmt::join(groups, ","));
}

std::string IoEngineText() {
  const Status uring = ProbeUring();
  if (uring.ok()) return "io_uring";
  return fmt::format("threads, because io_uring cannot be used: {}", uring.message());
}

// Standard output may be a pipe, and a run takes minutes: every line goes out at once.
void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

int Measure(const BenchOptions& options, const std::vector<const Row*>& rows) {
  const auto directory = TemporaryDirectory::New(options.directory, "aquifer-bench-");
  if (!directory.ok()) {
    fmt::print(stderr, "aquifer bench: {}\n", directory.status().message());
    return kExitFailed;
  }
  const Machine machine = DescribeMachine();
  const BenchEnvironment environment{.directory = (*directory)->path(),
                                     .memory_available_bytes = machine.memory_available_bytes,
                                     .quick = options.quick,
                                     .row_seconds = options.quick ? kQuickRowSeconds : 0,
                                     .least_seconds = options.quick ? kQuickLeastSeconds : 0};
  if (!options.json) {
    Print(MachineText(machine, environment.directory, IoEngineText()) + "\n" + TableHead());
  }

  Progress progress;
  std::vector<RowResult> results;
  bool all_measured = true;
  bool all_met = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = *rows[i];
    const Result<RowResult> result = MeasureRow(row, environment, [&](int done, int all) {
      progress.Show(done == 0 ? fmt::format("[{}/{}] {}: preparing", i + 1, rows.size(), row.name)
                              : fmt::format("[{}/{}] {}: round {} of {}", i + 1, rows.size(),
                                            row.name, done, all));
    });
    progress.Clear();
    if (!result.ok()) {
      all_measured = false;
      fmt::print(stderr, "aquifer bench: {}: {}\n", row.name, result.status().ToString());
      continue;
    }
    all_met = all_met && result->met();
    Print(options.json ? JsonLine(*result) + "\n" : TableRow(*result));
    results.push_back(*result);
  }
  if (!options.json && !results.empty()) Print("\n" + TableNotes(results));
  if (!all_measured) return kExitFailed;
  if (options.check && !all_met) {
    fmt::print(stderr, "aquifer bench: a goal was missed\n");
    return kExitFailed;
  }
  return kExitOk;
}

int RunOwnRows(const BenchOptions& options) {
  const std::vector<Row> rows = AllRows();
  const auto selected = SelectRows(rows, options.names);
  if (!selected.ok()) {
    fmt::print(stderr, "aquifer bench: {}\n", selected.status().message());
    return kExitUsage;
  }
  if (options.list) {
    std::vector<Row> listed;
    for (const Row* row : *selected) listed.push_back(*row);
    Print(options.json ? ListJson(listed) : ListText(listed));
    return kExitOk;
  }
  return Measure(options, *selected);
}

int RunVllmRows(const BenchOptions& options, std::vector<std::string> words) {
  if (options.list) words.emplace_back("--list");
  if (options.quick) words.emplace_back("--quick");
  if (options.json) words.emplace_back("--json");
  if (options.check) words.emplace_back("--check");
  return BenchVllm(std::move(words));
}

int RunBench(const BenchOptions& given) {
  BenchOptions options = given;
  options.names.clear();
  std::vector<std::string> vllm;
  for (const std::string& name : given.names)
    (IsVllmName(name) ? vllm : options.names).push_back(name);
  const bool only_vllm = !vllm.empty() && options.names.empty();
  const int own = only_vllm ? kExitOk : RunOwnRows(options);
  if (vllm.empty() || own == kExitUsage) return own;
  const int others = RunVllmRows(options, vllm);
  return own != kExitOk ? own : others;
}

}  // namespace

void AddBenchCommand(CLI::App* app, int* exit_status) {
  CLI::App* const command =
      app->add_subcommand("bench", "Measure this host's limits and how much of them we reach");
  const auto options = std::make_shared<BenchOptions>();  // The callback's, and CLI11's targets.
  command->add_option("NAME", options->names, "Beginnings of row names (default: every row)")
      ->type_name_fn(&GroupsText);
  command->add_flag("--list", options->list, "Say which rows there are and measure nothing");
  command->add_flag("--quick", options->quick, "Fewer rounds; ends within five minutes");
  command->add_flag("--json", options->json, "One JSON object a line and nothing else");
  command->add_flag("--check", options->check, "Fail when a row misses its goal");
  command
      ->add_option("--directory", options->directory,
                   "Where to make a temporary directory, on the disk to be measured (default: "
                   "/var/tmp)")
      ->type_name("DIR");
  command->footer(kFooter);
  command->callback([options, exit_status] { *exit_status = RunBench(*options); });
}

}  // namespace aquifer
