// The `aquifer` program. Each subcommand is in the file of its name.
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/temporary_directory.h"

namespace aquifer {
namespace {

constexpr const char* kFooter = R"(
Examples:
  aquifer demo                     two engines, a long document, a crash, the same answers
  aquifer bench --list             what can be measured
  aquifer bench dram --quick       the DRAM rows, in a few seconds
  aquifer sim fuzz                 check every promise, fault after fault, in simulated time
  aquifer serve                    run the node of this host
  aquifer ctl status               ask it how it is; aquifer top watches it
  aquifer plan trace.jsonl         how much DRAM and NVMe, and whether it pays at all
  aquifer doctor                   what this host can do, and what to change
  aquifer bench --help             all about one command)";

int Main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "bench") return StartBench({argv + 2, argv + argc});
  if (first == kCompleteFlag && argc > 3 && argv[2] == std::string_view("bench")) {
    std::vector<std::string> words(argv + 2, argv + argc);
    words[0] = first;
    return StartBench(std::move(words));
  }
  // These take their signals themselves.
  if (first != "serve" && first != "top" && first != "reference" && first != "demo") {
    RemoveTemporariesOnSignals();
  }
  int exit_status = kExitOk;
  CLI::App app("Aquifer keeps the KV caches of LLM inference engines in DRAM and on NVMe.",
               "aquifer");
  app.set_version_flag("--version", "aquifer " AQUIFER_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
#ifdef AQUIFER_HAS_NODE
  AddServeCommand(&app, &exit_status);
  AddCtlCommand(&app, &exit_status);
  AddTopCommand(&app, &exit_status);
  AddPlanCommand(&app, &exit_status);
  AddReferenceCommand(&app, &exit_status);
  AddDemoCommand(&app, &exit_status);
#endif
  DeclareBenchCommand(&app);
  AddSimCommand(&app, &exit_status);
  AddDoctorCommand(&app, &exit_status);
  AddCompletionCommand(&app, &exit_status);

  return RunCommandLine({argv + 1, argv + argc}, &app, &exit_status);
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) { return aquifer::Main(argc, argv); }
