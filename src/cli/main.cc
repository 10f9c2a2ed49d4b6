// The `aquifer` program. What a subcommand does is in the file of its name.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/nearest_name.h"
#include "cli/commands.h"
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

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// Says what is wrong with the command line, and what to type instead.
int RefuseUsage(const std::string& what, const std::string& command, const std::string& meant) {
  fmt::print(stderr, "aquifer: {}\n", what);
  if (!meant.empty()) fmt::print(stderr, "Did you mean '{}'?\n", meant);
  fmt::print(stderr, "Next step: {} --help\n", command);
  return kExitUsage;
}

int RefuseParse(CLI::App& app, const CLI::ParseError& error,
                const std::vector<std::string>& arguments) {
  const CLI::App* chosen = &app;
  std::string command = "aquifer";
  while (!chosen->get_subcommands().empty()) {
    chosen = chosen->get_subcommands().front();
    command += " " + chosen->get_name();
  }
  const std::vector<std::string> below = CommandNames(*chosen);
  const auto depth = static_cast<size_t>(std::count(command.begin(), command.end(), ' '));
  if (!below.empty() && arguments.size() > depth && !arguments[depth].starts_with("-")) {
    return RefuseUsage(fmt::format("there is no command '{}'; there are: {}", arguments[depth],
                                   fmt::join(below, ", ")),
                       command, NearestName(arguments[depth], below));
  }
  // CLI11 reports what it did not expect without saying what it would have.
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--") || argument == "--") continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (chosen->get_option_no_throw(name) != nullptr) continue;
    return RefuseUsage(fmt::format("there is no option '{}'", name), command,
                       NearestName(name, OptionNames(*chosen)));
  }
  return RefuseUsage(error.what(), command, "");
}

int Main(int argc, char** argv) {
  // These take their signals themselves.
  const std::string_view first = argc > 1 ? argv[1] : "";
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
  AddBenchCommand(&app, &exit_status);
  AddSimCommand(&app, &exit_status);
  AddDoctorCommand(&app, &exit_status);
  AddCompletionCommand(&app, &exit_status);

  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.empty()) {
    fmt::print("{}", app.help());
    return kExitUsage;
  }
  const std::vector<std::string> commands = CommandNames(app);
  if (!arguments[0].starts_with("-") &&
      std::find(commands.begin(), commands.end(), arguments[0]) == commands.end()) {
    return RefuseUsage(fmt::format("there is no command '{}'; there are: {}", arguments[0],
                                   fmt::join(commands, ", ")),
                       "aquifer", NearestName(arguments[0], commands));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return RefuseParse(app, error, arguments);
  }
  return exit_status;
}

}  // namespace
}  // namespace aquifer

int main(int argc, char** argv) { return aquifer::Main(argc, argv); }
