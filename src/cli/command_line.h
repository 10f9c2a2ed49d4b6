// From words on a command line to what CLI11 knows of them, for the programs that we install. A
// mistake is answered with what was probably meant and the next step.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace aquifer {

// The names of the subcommands right below `app`.
std::vector<std::string> CommandNames(const CLI::App& app);

// Parses `arguments`, without the program's name, as `app` declares them; the command that they
// choose runs. A shell's question (completion.h) is answered. Returns what the program ends with:
// `*exit_status`, which that command sets, or 0 after --help, or kExitUsage.
int RunCommandLine(const std::vector<std::string>& arguments, CLI::App* app,
                   const int* exit_status);

}  // namespace aquifer
