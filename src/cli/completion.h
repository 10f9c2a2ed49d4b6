// Completes a command line in bash, zsh and fish. A shell's script asks the program itself at each
// key press, so that it cannot differ from what the program declares for its help.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>

namespace aquifer {

// The first argument of such a question; the words on the line follow it, without the program.
inline constexpr std::string_view kCompleteFlag = "--complete";

// Answers what the last of `words` may become. The first line is "words", "files" or "directories";
// behind "words" each line has a word, a tab and its help.
std::string CompletionAnswer(const CLI::App& app, std::span<const std::string> words);

}  // namespace aquifer
