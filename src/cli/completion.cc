// aquifer completion: makes a shell complete our command line, from what --help is printed from.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/completion_script.h"

namespace aquifer {
namespace {

constexpr const char* kFooter = R"(
Examples:
  source <(aquifer completion bash)                         in this shell
  aquifer completion bash > /etc/bash_completion.d/aquifer  for everybody
  source <(aquifer completion zsh)                          behind compinit in .zshrc
  aquifer completion fish > ~/.config/fish/completions/aquifer.fish)";

ValueKind KindOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return ValueKind::kNone;
  const std::string type = option.get_type_name();
  if (type.starts_with("DIR")) return ValueKind::kDirectory;
  if (type.starts_with("FILE") || type.starts_with("PATH")) return ValueKind::kFile;
  return ValueKind::kText;
}

// "TEXT:{bash,zsh,fish}" is how CLI11 shows that there are only these.
std::vector<CompletedWord> ChoicesOf(const CLI::Option& option) {
  std::vector<CompletedWord> words;
  const std::string type = option.get_type_name();
  size_t at = type.find('{');
  const size_t end = type.find('}');
  if (at == std::string::npos || end == std::string::npos) return words;
  while (at < end) {
    const size_t next = std::min(type.find(',', at + 1), end);
    words.push_back({.name = type.substr(at + 1, next - at - 1), .help = option.get_description()});
    at = next;
  }
  return words;
}

void Describe(const CLI::App& app, const std::string& path,
              std::vector<CompletedCommand>* commands) {
  CompletedCommand command{.path = path, .words = {}, .options = {}};
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : below) {
    command.words.push_back({.name = sub->get_name(), .help = sub->get_description()});
  }
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // Hidden.
    if (option->get_positional()) {
      for (CompletedWord& word : ChoicesOf(*option)) command.words.push_back(std::move(word));
    }
    for (const std::string& name : option->get_lnames()) {
      command.options.push_back(
          {.name = "--" + name, .help = option->get_description(), .value = KindOf(*option)});
    }
  }
  commands->push_back(std::move(command));
  for (const CLI::App* sub : below) Describe(*sub, path + " " + sub->get_name(), commands);
}

}  // namespace

void AddCompletionCommand(CLI::App* app, int* exit_status) {
  CLI::App* const command =
      app->add_subcommand("completion", "Print a script that completes this command line");
  const auto shell = std::make_shared<std::string>();  // The callback's, and CLI11's target.
  command->add_option("SHELL", *shell, "The shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(kFooter);
  command->callback([app, shell, exit_status] {
    std::vector<CompletedCommand> commands;
    Describe(*app, app->get_name(), &commands);
    if (*shell == "bash") fmt::print("{}", BashScript(commands));
    if (*shell == "zsh") fmt::print("{}", ZshScript(commands));
    if (*shell == "fish") fmt::print("{}", FishScript(commands));
    *exit_status = kExitOk;
  });
}

}  // namespace aquifer
