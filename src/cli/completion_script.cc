#include "cli/completion_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "cli/shell_quoted.h"

namespace aquifer {
namespace {

std::string Replaced(std::string_view text, char what, std::string_view with) {
  std::string replaced;
  for (const char c : text) {
    if (c == what) {
      replaced += with;
    } else {
      replaced += c;
    }
  }
  return replaced;
}

std::string FishQuoted(std::string_view text) {
  return fmt::format("'{}'", Replaced(Replaced(text, '\\', "\\\\"), '\'', "\\'"));
}

// The commands that lie below the program, in quotes and with `separator` between them.
std::string PathsBelow(std::span<const CompletedCommand> commands, std::string_view separator) {
  std::vector<std::string> paths;
  for (const CompletedCommand& command : commands.subspan(1))
    paths.push_back(ShellQuoted(command.path));
  return fmt::format("{}", fmt::join(paths, separator));
}

// "'aquifer bench --directory' | 'aquifer demo --directory'": where a value of this kind is due.
std::string PlacesOf(ValueKind kind, std::span<const CompletedCommand> commands) {
  std::vector<std::string> places;
  for (const CompletedCommand& command : commands) {
    for (const CompletedOption& option : command.options) {
      if (option.value == kind) places.push_back(ShellQuoted(command.path + " " + option.name));
    }
  }
  return fmt::format("{}", fmt::join(places, " | "));
}

// The branches of a case over "$command $previous".
std::string ValueBranches(std::span<const CompletedCommand> commands, std::string_view directories,
                          std::string_view files) {
  std::string text;
  const auto add = [&](ValueKind kind, std::string_view action) {
    const std::string places = PlacesOf(kind, commands);
    if (!places.empty()) text += fmt::format("    {})\n      {}return ;;\n", places, action);
  };
  add(ValueKind::kDirectory, directories);
  add(ValueKind::kFile, files);
  add(ValueKind::kText, "");
  return text;
}

}  // namespace

std::string BashScript(std::span<const CompletedCommand> commands) {
  const std::string& program = commands.front().path;
  std::string branches;
  for (const CompletedCommand& command : commands) {
    std::vector<std::string> words;
    for (const CompletedWord& word : command.words) words.push_back(word.name);
    for (const CompletedOption& option : command.options) words.push_back(option.name);
    branches += fmt::format("    {}) words={} ;;\n", ShellQuoted(command.path),
                            ShellQuoted(fmt::format("{}", fmt::join(words, " "))));
  }
  return fmt::format(
      R"(# bash completion for {0}. Use it with: source <({0} completion bash)
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local command={0} words='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$command ${{COMP_WORDS[i]}}" in
      {1}) command+=" ${{COMP_WORDS[i]}}" ;;
    esac
  done
  COMPREPLY=()
  case "$command $previous" in
{2}  esac
  case "$command" in
{3}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -F _{0} {0}
)",
      program, PathsBelow(commands, " | "),
      ValueBranches(commands,
                    "compopt -o filenames 2>/dev/null\n"
                    "      mapfile -t COMPREPLY < <(compgen -d -- \"$word\")\n      ",
                    "compopt -o filenames 2>/dev/null\n"
                    "      mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n      "),
      branches);
}

std::string ZshScript(std::span<const CompletedCommand> commands) {
  const std::string& program = commands.front().path;
  std::string branches;
  for (const CompletedCommand& command : commands) {
    branches += fmt::format("    {})\n      choices=(\n", ShellQuoted(command.path));
    const auto add = [&branches](const std::string& name, const std::string& help) {
      branches += fmt::format("        {}\n", ShellQuoted(Replaced(name, ':', "\\:") + ":" + help));
    };
    for (const CompletedWord& word : command.words) add(word.name, word.help);
    for (const CompletedOption& option : command.options) add(option.name, option.help);
    branches += "      ) ;;\n";
  }
  return fmt::format(
      R"(#compdef {0}
# zsh completion for {0}. Use it with: source <({0} completion zsh)
_{0}() {{
  local command={0} i
  local -a choices
  for ((i = 2; i < CURRENT; ++i)); do
    case "$command ${{words[i]}}" in
      {1}) command+=" ${{words[i]}}" ;;
    esac
  done
  case "$command ${{words[CURRENT-1]}}" in
{2}  esac
  case "$command" in
{3}  esac
  _describe {0} choices
}}
if [[ ${{funcstack[1]}} == _{0} ]]; then
  _{0} "$@"
else
  compdef _{0} {0}
fi
)",
      program, PathsBelow(commands, " | "),
      ValueBranches(commands, "_files -/\n      ", "_files\n      "), branches);
}

std::string FishScript(std::span<const CompletedCommand> commands) {
  const std::string& program = commands.front().path;
  std::string text = fmt::format(
      R"(# fish completion for {0}. Use it with: {0} completion fish | source
function __{0}_command
  set -l command {0}
  for word in (commandline -opc)[2..-1]
    switch "$command $word"
      case {1}
        set command "$command $word"
    end
  end
  echo $command
end
complete -c {0} -f
)",
      program, PathsBelow(commands, " "));
  for (const CompletedCommand& command : commands) {
    const std::string begin =
        fmt::format("complete -c {0} -n 'test (__{0}_command) = \"{1}\"'", program, command.path);
    for (const CompletedWord& word : command.words) {
      text += fmt::format("{} -a {} -d {}\n", begin, FishQuoted(word.name), FishQuoted(word.help));
    }
    for (const CompletedOption& option : command.options) {
      std::string_view value;
      switch (option.value) {
        case ValueKind::kNone:
          break;
        case ValueKind::kText:
          value = " -x";
          break;
        case ValueKind::kFile:
          value = " -r -F";
          break;
        case ValueKind::kDirectory:
          value = " -x -a '(__fish_complete_directories)'";
          break;
      }
      text += fmt::format("{} -l {}{} -d {}\n", begin, FishQuoted(option.name.substr(2)), value,
                          FishQuoted(option.help));
    }
  }
  return text;
}

}  // namespace aquifer
