// aquifer plan: how much DRAM and NVMe a fleet needs, and whether it pays at all.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/text/size_text.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/standard_output.h"
#include "plan/fleet.h"
#include "plan/planner.h"
#include "plan/report/report.h"
#include "trace/request_log.h"

namespace aquifer {
namespace {

constexpr uint64_t kRequestsBetweenLooks = 256;  // At the clock.
constexpr double kShowSeconds = 0.1;

struct PlanCommandOptions {
  std::vector<std::string> traces;
  FleetChoices fleet;
  std::string html;
  bool json = false;
  bool presets = false;
  uint64_t block_tokens = 0;
  std::string outputs = "auto";
  uint64_t max_blocks = LruStackOptions{}.max_tracked;
  uint32_t sample_one_in = 1;
};

constexpr const char* kFooter = R"(
A TRACE has one request a line, as JSON, plain or gzip: what `aquifer serve --record` writes,
Mooncake's form, token counts with hashes of blocks, or OpenAI-style requests with their prompts, which
are hashed here (docs/formats/trace.md). Several traces are read as one, in which each begins when the one
before it ends. A fleet file is documented in etc/fleet.toml; what it does not say is assumed, and the
report lists it.

Examples:
  aquifer plan trace.jsonl                              an H200 node with Llama 3 8B
  aquifer plan trace.jsonl --gpu l4 --model mistral-7b --dram 256GiB --nvme 4TB
  aquifer plan trace.jsonl --fleet fleet.toml --html plan.html
  aquifer plan trace.jsonl --json                       one JSON object, for programs
  aquifer plan --presets                                GPUs and models that have names)";

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int Fail(const Status& status) {
  fmt::print(stderr, "aquifer plan: {}\n", status.message());
  return kExitFailed;
}

int ShowPresets() {
  std::string text = fmt::format("{:<14}{:>9}{:>11}{:>13}{:>9}{:>9}\n", "gpu", "TFLOPS", "memory",
                                 "host link", "watts", "$/hour");
  for (const GpuKind& gpu : GpuPresets()) {
    text += fmt::format("{:<14}{:>9.0f}{:>8.0f} GB{:>8.1f} GB/s{:>9.0f}{:>9.2f}\n", gpu.name,
                        gpu.tflops, gpu.memory_bytes / 1e9, gpu.host_link_bytes_per_second / 1e9,
                        gpu.watts, gpu.dollars_per_hour);
  }
  text +=
      fmt::format("\n{:<14}{:>12}{:>12}{:>14}\n", "model", "parameters", "weights", "KV a token");
  for (const ModelShape& model : ModelPresets()) {
    text += fmt::format("{:<14}{:>10.1f} B{:>9.0f} GB{:>14}\n", model.name, model.parameters / 1e9,
                        model.weight_bytes / 1e9,
                        SizeText(static_cast<uint64_t>(model.kv_bytes_per_token)));
  }
  const Status printed = PrintOut(text);
  return printed.ok() ? kExitOk : Fail(printed);
}

// "[#####-----] 43 %  512000 requests, 2.1 million a minute"
class ReadingShown {
 public:
  void Show(const RequestLog& log, uint64_t requests) {
    const double seconds = SecondsSince(begin_);
    if (seconds - shown_ < kShowSeconds) return;
    shown_ = seconds;
    const double part = log.bytes_total() == 0 ? 0
                                               : static_cast<double>(log.bytes_read()) /
                                                     static_cast<double>(log.bytes_total());
    const auto filled = static_cast<size_t>(part * kBarWidth);
    const std::string bar = log.bytes_total() == 0
                                ? ""
                                : fmt::format("[{}{}] {:.0f} %  ", std::string(filled, '#'),
                                              std::string(kBarWidth - filled, '.'), 100 * part);
    progress_.Show(fmt::format("{}{} requests, {:.1f} million a minute", bar, requests,
                               static_cast<double>(requests) / seconds * 60 / 1e6));
  }
  void Clear() { progress_.Clear(); }

 private:
  static constexpr size_t kBarWidth = 30;

  Progress progress_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double shown_ = 0;
};

// Begins where the trace before it ended.
Status ReadTrace(const std::string& path, Planner* planner, ReadingShown* shown) {
  AQ_ASSIGN_OR_RETURN(const auto log, RequestLog::Open(path));
  const uint64_t begin_ms = planner->end_ms();
  TraceRequest request;
  while (true) {
    AQ_ASSIGN_OR_RETURN(const bool more, log->Next(&request));
    if (!more) {
      shown->Clear();
      if (log->last_line_cut()) fmt::print(stderr, kLastLineCut, path);
      return Status();
    }
    request.timestamp_ms = std::min(request.timestamp_ms + begin_ms, kMaxTimestampMs);
    const bool text = log->form() == LogForm::kPrompts;
    Status added = planner->SetTextBlocks(text ? kPromptBlockTokens : 0);
    if (added.ok()) added = planner->Add(request);
    if (!added.ok()) return log->Explain(added);
    if (planner->requests() % kRequestsBetweenLooks == 0) shown->Show(*log, planner->requests());
  }
}

Status CannotWrite(const std::string& path, int error) {
  return Status(
      Code::kUnavailable,
      fmt::format("--html: {} cannot be written: {}. Next step: name a file in a directory "
                  "of yours",
                  path, std::generic_category().message(error)));
}

constexpr int kMostLinks = 40;  // As the kernel has it.

// Where a page is written first: beside its file, so that a page that was there is replaced by a
// whole one or not at all. A link is followed; a device or a pipe is written to as it is.
struct PageFile {
  std::string path;
  std::string beside;  // Empty: there is nothing to replace.

  explicit PageFile(const std::string& named) : path(named) {
    std::error_code error;
    for (int links = 0; links < kMostLinks && std::filesystem::is_symlink(path, error); ++links) {
      const auto target = std::filesystem::read_symlink(path, error);
      path = (std::filesystem::path(path).parent_path() / target).string();
    }
    const auto kind = std::filesystem::status(path, error).type();
    const bool special = kind != std::filesystem::file_type::regular &&
                         kind != std::filesystem::file_type::not_found;
    if (!special) beside = fmt::format("{}.{}.tmp", path, ::getpid());
  }
};

// Before hours of trace are read for nothing.
Status TryWriting(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return CannotWrite(path, EISDIR);
  const PageFile page(path);
  if (page.beside.empty()) return Status();
  std::ofstream file(page.beside, std::ios::binary | std::ios::trunc);
  if (file.fail()) return CannotWrite(path, errno);
  file.close();
  std::remove(page.beside.c_str());
  return Status();
}

Status WriteFile(const std::string& path, const std::string& text) {
  const PageFile page(path);
  const std::string& target = page.beside.empty() ? page.path : page.beside;
  std::ofstream file(target, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (page.beside.empty()) return file.fail() ? CannotWrite(path, errno) : Status();
  if (file.fail() || std::rename(page.beside.c_str(), page.path.c_str()) != 0) {
    const int error = errno;
    std::remove(page.beside.c_str());
    return CannotWrite(path, error);
  }
  return Status();
}

Result<PlannerOptions> PlannerOptionsOf(const PlanCommandOptions& options) {
  PlannerOptions planner;
  AQ_ASSIGN_OR_RETURN(planner.fleet, LoadFleet(options.fleet));
  planner.block_tokens = options.block_tokens;
  planner.outputs = options.outputs == "stored"    ? OutputRule::kStored
                    : options.outputs == "ignored" ? OutputRule::kIgnored
                                                   : OutputRule::kAuto;
  planner.stack.max_tracked = options.max_blocks;
  while ((uint32_t{1} << planner.stack.first_rate_shift) < options.sample_one_in) {
    ++planner.stack.first_rate_shift;
  }
  return planner;
}

bool IsSameFile(const std::string& one, const std::string& other) {
  std::error_code error;
  return std::filesystem::equivalent(one, other, error) && !error;
}

int RunPlan(const PlanCommandOptions& options) {
  if (options.presets) return ShowPresets();
  if (options.traces.empty()) {
    fmt::print(stderr,
               "aquifer plan: there is no trace. Next step: name one, as in aquifer plan "
               "trace.jsonl; aquifer serve --record FILE makes one\n");
    return kExitUsage;
  }
  const Result<PlannerOptions> planner_options = PlannerOptionsOf(options);
  if (!planner_options.ok()) {
    fmt::print(stderr, "aquifer plan: {}\n", planner_options.status().message());
    return kExitUsage;
  }
  for (const std::string& path : options.traces) {
    if (options.html.empty() || !IsSameFile(path, options.html)) continue;
    return Fail(Status(
        Code::kInvalid,
        fmt::format("--html: {} is the trace itself. Next step: name another file", options.html)));
  }
  if (!options.html.empty()) {
    const Status writable = TryWriting(options.html);
    if (!writable.ok()) return Fail(writable);
  }
  Planner planner(*planner_options);
  ReadingShown shown;
  for (const std::string& path : options.traces) {
    const Status read = ReadTrace(path, &planner, &shown);
    shown.Clear();
    if (!read.ok()) return Fail(read);
  }
  const Result<Plan> plan = planner.Finish();
  if (!plan.ok()) {
    return Fail(Status(Code::kInvalid,
                       fmt::format("{}: {}", options.traces.front(), plan.status().message())));
  }
  if (!options.html.empty()) {
    const Status written = WriteFile(options.html, PlanHtml(*plan));
    if (!written.ok()) return Fail(written);
  }
  std::string report = options.json ? PlanJson(*plan) : PlanText(*plan);
  if (!options.html.empty() && !options.json) report += fmt::format("The page: {}\n", options.html);
  const Status printed = PrintOut(report);
  return printed.ok() ? kExitOk : Fail(printed);
}

// From 1 on, and said so: CLI11's own check speaks of floating-point ranges.
std::string CheckCount(const std::string& text) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && end == text.data() + text.size() && count > 0 &&
      count <= uint64_t{1} << 31) {
    return "";
  }
  return fmt::format("it is '{}': give a whole number from 1 to {}", text, uint64_t{1} << 31);
}

std::string CheckOutputs(const std::string& text) {
  if (text == "auto" || text == "stored" || text == "ignored") return "";
  return fmt::format("it is '{}': give auto, stored or ignored", text);
}

}  // namespace

void AddPlanCommand(CLI::App* app, int* exit_status) {
  CLI::App* const command = app->add_subcommand(
      "plan", "Say from a trace how much DRAM and NVMe a fleet needs, and whether it pays");
  const auto options = std::make_shared<PlanCommandOptions>();  // The callback's, CLI11's targets.
  command->add_option("TRACE", options->traces, "Files of requests, plain or gzip")
      ->type_name("FILE");
  command->add_option("--fleet", options->fleet.file, "What the fleet is (default: presets)")
      ->type_name("FILE");
  command->add_option("--gpu", options->fleet.gpu, "A preset, in place of the file's")
      ->type_name("NAME");
  command->add_option("--model", options->fleet.model, "A preset, in place of the file's")
      ->type_name("NAME");
  command->add_option("--nodes", options->fleet.nodes, "How many")->type_name("N");
  command->add_option("--dram", options->fleet.dram, "Of a node")->type_name("SIZE");
  command->add_option("--nvme", options->fleet.nvme, "Of a node; 0: none")->type_name("SIZE");
  command->add_option("--html", options->html, "Write the report with its plots to this file")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "One JSON object and nothing else");
  command->add_flag("--presets", options->presets, "List the GPUs and models that have names");
  command
      ->add_option("--block-tokens", options->block_tokens,
                   "Tokens in a block of the trace (default: found out)")
      ->check(CheckCount)
      ->type_name("N");
  command
      ->add_option("--outputs", options->outputs,
                   "Whether generated blocks count as stored (default: where the trace says so)")
      ->check(CheckOutputs)
      ->type_name("{auto,stored,ignored}");
  command
      ->add_option("--max-blocks", options->max_blocks,
                   "Follow at most so many blocks exactly, then a sample (default: 16 million)")
      ->check(CheckCount)
      ->type_name("N");
  command
      ->add_option("--sample", options->sample_one_in,
                   "Follow one block in so many from the start (rounded up to a power of two)")
      ->check(CheckCount)
      ->type_name("N");
  command->footer(kFooter);
  command->callback([options, exit_status] { *exit_status = RunPlan(*options); });
}

}  // namespace aquifer
