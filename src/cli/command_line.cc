#include "cli/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <span>

#include "base/text/nearest_name.h"
#include "cli/commands.h"
#include "cli/completion.h"

namespace aquifer {
namespace {

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

}  // namespace

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

int RunCommandLine(const std::vector<std::string>& arguments, CLI::App* app,
                   const int* exit_status) {
  if (arguments.empty()) {
    fmt::print("{}", app->help());
    return kExitUsage;
  }
  if (arguments[0] == kCompleteFlag) {
    fmt::print("{}", CompletionAnswer(*app, std::span(arguments).subspan(1)));
    return kExitOk;
  }
  const std::vector<std::string> commands = CommandNames(*app);
  if (!arguments[0].starts_with("-") &&
      std::find(commands.begin(), commands.end(), arguments[0]) == commands.end()) {
    return RefuseUsage(fmt::format("there is no command '{}'; there are: {}", arguments[0],
                                   fmt::join(commands, ", ")),
                       "aquifer", NearestName(arguments[0], commands));
  }
  try {
    // CLI11 takes them from the back.
    app->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& success) {  // --help, --version
    return app->exit(success);
  } catch (const CLI::ParseError& error) {
    return RefuseParse(*app, error, arguments);
  }
  return *exit_status;
}

}  // namespace aquifer
