// aquifer sim replay: eviction policies, judged on a request trace.
#pragma once

#include <CLI/CLI.hpp>

namespace aquifer {

// A subcommand of `aquifer sim`.
void AddSimReplayCommand(CLI::App* sim, int* exit_status);

}  // namespace aquifer
