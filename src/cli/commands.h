// The subcommands. Each Add...Command() declares one on `app`, with its options and help; when it
// is chosen and the command line was right, it runs and sets `*exit_status`.
#pragma once

#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): it is theirs.
class App;
}  // namespace CLI

namespace aquifer {

// Exit statuses of the program.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // It was asked the right thing and could not do it.
inline constexpr int kExitUsage = 2;   // The command line is wrong.

void DeclareBenchCommand(CLI::App* app);  // For the help: StartBench() runs it.
// Replaces this process by aquifer-bench, which has the options of `aquifer bench`. Returns only
// where that cannot be started, after it said why.
int StartBench(std::vector<std::string> arguments);
void AddSimCommand(CLI::App* app, int* exit_status);
void AddDoctorCommand(CLI::App* app, int* exit_status);
void AddCompletionCommand(CLI::App* app, int* exit_status);
void AddServeCommand(CLI::App* app, int* exit_status);
void AddReferenceCommand(CLI::App* app, int* exit_status);
void AddDemoCommand(CLI::App* app, int* exit_status);
void AddCtlCommand(CLI::App* app, int* exit_status);
void AddTopCommand(CLI::App* app, int* exit_status);
void AddPlanCommand(CLI::App* app, int* exit_status);

// --socket, --http and --token-file, for the commands that ask a node.
struct NodeClientOptions;
void AddNodeOptions(CLI::App* command, NodeClientOptions* options);

}  // namespace aquifer
