// aquifer bench: a program of its own (src/bench), which takes the place of this one.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/find_program.h"

namespace aquifer {

void DeclareBenchCommand(CLI::App* app) {
  app->add_subcommand("bench", "Measure this host's limits and how much of them we reach");
}

int StartBench(std::vector<std::string> arguments) {
  constexpr const char* kProgram = "aquifer-bench";
  std::string program = FindProgram(kProgram);
  if (program.empty()) {
    fmt::print(stderr,
               "aquifer bench: the program {0} is neither beside this one, nor in libexec/aquifer, "
               "nor in PATH. Next step: build its target, aquifer_bench_program, or install {0}\n",
               kProgram);
    return kExitFailed;
  }
  arguments.insert(arguments.begin(), kProgram);
  std::vector<char*> words;
  words.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  ::execv(program.c_str(), words.data());
  fmt::print(stderr, "aquifer bench: {} cannot be started: {}. Next step: install it again\n",
             program, std::strerror(errno));
  return kExitFailed;
}

}  // namespace aquifer
