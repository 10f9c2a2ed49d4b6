// The options and the help of `aquifer bench`, and its rows.
#pragma once

namespace CLI {  // NOLINT(readability-identifier-naming): it is theirs.
class App;
}  // namespace CLI

namespace aquifer {

// Declares the subcommand; when it is chosen, it measures and sets `*exit_status`.
void AddBenchCommand(CLI::App* app, int* exit_status);

}  // namespace aquifer
