// aquifer doctor: what this host can do, and what to change.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/doctor/doctor_checks.h"
#include "cli/progress.h"
#include "cli/temporary_directory.h"

namespace aquifer {
namespace {

struct DoctorOptions {
  bool json = false;
  std::string directory;
};

constexpr const char* kFooter = R"(
Each line is ok, warn (it works, and could work better) or bad (Aquifer cannot be used here), with
one line of advice. The disk and the memory are measured, which takes some seconds and 256MiB of the
disk. The exit status is 0 unless something is bad. `aquifer bench` measures more, and better.

Examples:
  aquifer doctor
  aquifer doctor --directory /mnt/nvme0    judge the drive that will hold blocks
  aquifer doctor --json                    for programs: one object, with lists "checks" and "features")";

std::string TextOf(const std::vector<Check>& checks) {
  std::string text;
  for (const Check& check : checks) {
    text += fmt::format("{:<5} {:<14} {}\n", VerdictName(check.verdict), check.name, check.value);
    if (!check.advice.empty()) text += fmt::format("{:<20} > {}\n", "", check.advice);
  }
  return text;
}

std::string JsonOf(const std::vector<Check>& checks, const HostFacts& facts, bool usable) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    list.push_back({{"name", check.name},
                    {"verdict", VerdictName(check.verdict)},
                    {"value", check.value},
                    {"advice", check.advice}});
  }
  nlohmann::ordered_json features = nlohmann::ordered_json::array();
  for (const BuildFeature& feature : facts.features) {
    features.push_back(
        {{"name", feature.name}, {"on", feature.why_not.empty()}, {"why_not", feature.why_not}});
  }
  const nlohmann::ordered_json report = {
      {"usable", usable}, {"checks", list}, {"features", features}};
  return report.dump(2) + "\n";
}

int RunDoctor(const DoctorOptions& options) {
  const auto scratch = TemporaryDirectory::New(options.directory, "aquifer-doctor-");
  if (!scratch.ok()) {
    fmt::print(stderr, "aquifer doctor: {}\n", scratch.status().message());
    return kExitFailed;
  }
  const std::filesystem::path path = (*scratch)->path();
  HostFacts facts = GatherFacts(path.parent_path().string());
  {
    Progress progress;
    progress.Show("measuring memory");
    MeasureMemory(&facts);
    progress.Show("measuring the disk");
    MeasureDisk(path.string(), &facts);
  }
  const std::vector<Check> checks = JudgeHost(facts);
  const bool usable = std::none_of(checks.begin(), checks.end(), [](const Check& check) {
    return check.verdict == Verdict::kBad;
  });
  fmt::print("{}", options.json ? JsonOf(checks, facts, usable) : TextOf(checks));
  return usable ? kExitOk : kExitFailed;
}

}  // namespace

void AddDoctorCommand(CLI::App* app, int* exit_status) {
  CLI::App* const command =
      app->add_subcommand("doctor", "Say what this host can do, and what to change");
  const auto options = std::make_shared<DoctorOptions>();  // The callback's, and CLI11's targets.
  command->add_flag("--json", options->json, "One JSON object and nothing else");
  command
      ->add_option("--directory", options->directory,
                   "A directory on the disk to be judged (default: /var/tmp)")
      ->type_name("DIR");
  command->footer(kFooter);
  command->callback([options, exit_status] { *exit_status = RunDoctor(*options); });
}

}  // namespace aquifer
