// The program aquifer-bench, which `aquifer bench` starts and which has its options.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/completion.h"
#include "cli/temporary_directory.h"

namespace aquifer {
namespace {

int Main(int argc, char** argv) {
  RemoveTemporariesOnSignals();
  int exit_status = kExitOk;
  CLI::App app("Measures this host's limits and how much of them Aquifer reaches.", "aquifer");
  AddBenchCommand(&app, &exit_status);
  // Help and messages speak of `aquifer bench`, as people type it.
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool asked = !arguments.empty() && arguments[0] == kCompleteFlag;
  arguments.insert(arguments.begin() + (asked ? 1 : 0), "bench");
  return RunCommandLine(arguments, &app, &exit_status);
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) { return aquifer::Main(argc, argv); }
