// Scripts that complete a command line in bash, zsh and fish. They are made from what the program
// declares for its help, so that they cannot differ from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace aquifer {

// What follows an option.
enum class ValueKind : uint8_t { kNone, kText, kFile, kDirectory };

struct CompletedOption {
  std::string name;  // "--json"
  std::string help;
  ValueKind value = ValueKind::kNone;
};

struct CompletedWord {
  std::string name;
  std::string help;
};

// A command as it is typed up to there, and what can come next.
struct CompletedCommand {
  std::string path;                  // "aquifer sim fuzz"
  std::vector<CompletedWord> words;  // Its subcommands, or what its argument may be.
  std::vector<CompletedOption> options;
};

// The first command is the program itself, without which there is nothing to complete.
std::string BashScript(std::span<const CompletedCommand> commands);
std::string ZshScript(std::span<const CompletedCommand> commands);
std::string FishScript(std::span<const CompletedCommand> commands);

}  // namespace aquifer
