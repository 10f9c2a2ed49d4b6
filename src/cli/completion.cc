#include "cli/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace aquifer {
namespace {

constexpr const char* kFooter = R"(
Examples:
  source <(aquifer completion bash)                         in this shell
  aquifer completion bash > /etc/bash_completion.d/aquifer  for everybody
  source <(aquifer completion zsh)                          behind compinit in .zshrc
  aquifer completion fish > ~/.config/fish/completions/aquifer.fish)";

constexpr const char* kBashScript =
    R"(# bash completion for aquifer. Use it with: source <(aquifer completion bash)
_aquifer() {
  local word=${COMP_WORDS[COMP_CWORD]} kind name help
  COMPREPLY=()
  {
    read -r kind
    while IFS=$'\t' read -r name help; do COMPREPLY+=("$name"); done
  } < <("${COMP_WORDS[0]/#\~/$HOME}" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  [[ $kind == words ]] && return
  compopt -o filenames 2>/dev/null
  if [[ $kind == files ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  elif [[ $kind == directories ]]; then
    mapfile -t COMPREPLY < <(compgen -d -- "$word")
  fi
}
complete -F _aquifer aquifer
)";

constexpr const char* kZshScript = R"(#compdef aquifer
# zsh completion for aquifer. Use it with: source <(aquifer completion zsh)
_aquifer() {
  local -a answer choices
  answer=("${(@f)$("${words[1]/#\~/$HOME}" --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  case "${answer[1]}" in
    files) _files ;;
    directories) _files -/ ;;
    words)
      shift answer
      choices=("${(@)answer/$'\t'/:}")
      _describe aquifer choices ;;
  esac
}
if [[ ${funcstack[1]} == _aquifer ]]; then
  _aquifer "$@"
else
  compdef _aquifer aquifer
fi
)";

constexpr const char* kFishScript =
    R"(# fish completion for aquifer. Use it with: aquifer completion fish | source
function __aquifer_answer
  set -l words (commandline -opc)
  set -l current (commandline -ct)
  set -l program $words[1]
  set -e words[1]
  set -l answer ($program --complete $words "$current" 2>/dev/null)
  set -l kind "$answer[1]"
  set -e answer[1]
  switch $kind
    case files
      __fish_complete_path "$current"
    case directories
      __fish_complete_directories "$current"
    case words
      printf '%s\n' $answer
  end
end
complete -c aquifer -f -a '(__aquifer_answer)'
)";

// Returns the first line of the answer where a value of `option` is due.
std::string_view KindOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type.starts_with("DIR")) return "directories";
  if (type.starts_with("FILE") || type.starts_with("PATH")) return "files";
  return "words";
}

void AddWord(std::string_view name, const std::string& help, std::string_view begin,
             std::string* answer) {
  if (!name.starts_with(begin)) return;
  fmt::format_to(std::back_inserter(*answer), "{}\t{}\n", name, help.substr(0, help.find('\n')));
}

// CLI11 shows "TEXT:{bash,zsh,fish}" where there are only these.
void AddChoices(const CLI::Option& option, std::string_view begin, std::string* answer) {
  const std::string type = option.get_type_name();
  size_t at = type.find('{');
  const size_t end = type.find('}');
  if (at == std::string::npos || end == std::string::npos) return;
  while (at < end) {
    const size_t next = std::min(type.find(',', at + 1), end);
    AddWord(std::string_view(type).substr(at + 1, next - at - 1), option.get_description(), begin,
            answer);
    at = next;
  }
}

}  // namespace

std::string CompletionAnswer(const CLI::App& app, std::span<const std::string> words) {
  const std::string begin = words.empty() ? "" : words.back();
  if (!words.empty()) words = words.first(words.size() - 1);
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    const auto named = [&word](const CLI::App* below) { return below->get_name() == word; };
    const std::vector<const CLI::App*> below = command->get_subcommands(named);
    if (!below.empty()) command = below.front();
  }
  const bool behind_option = !words.empty() && words.back().starts_with("--");
  const CLI::Option* const due =
      behind_option ? command->get_option_no_throw(words.back()) : nullptr;
  std::string answer = "words\n";
  if (due != nullptr && due->get_items_expected_max() > 0) {
    AddChoices(*due, begin, &answer);
    return KindOf(*due) == "words" ? answer : fmt::format("{}\n", KindOf(*due));
  }
  for (const CLI::App* below : command->get_subcommands([](const CLI::App*) { return true; })) {
    AddWord(below->get_name(), below->get_description(), begin, &answer);
  }
  for (const CLI::Option* option : command->get_options()) {
    if (option->get_group().empty()) continue;  // Hidden.
    if (option->get_positional()) AddChoices(*option, begin, &answer);
    for (const std::string& name : option->get_lnames()) {
      AddWord("--" + name, option->get_description(), begin, &answer);
    }
  }
  return answer;
}

void AddCompletionCommand(CLI::App* app, int* exit_status) {
  CLI::App* const command =
      app->add_subcommand("completion", "Print a script that completes this command line");
  const auto shell = std::make_shared<std::string>();  // The callback's, and CLI11's target.
  command->add_option("SHELL", *shell, "The shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer(kFooter);
  command->callback([shell, exit_status] {
    fmt::print("{}", *shell == "bash" ? kBashScript : *shell == "zsh" ? kZshScript : kFishScript);
    *exit_status = kExitOk;
  });
}

}  // namespace aquifer
