// A text as one word of a command line in bash, zsh or any other shell that is like sh.
#pragma once

#include <string>
#include <string_view>

namespace aquifer {

std::string ShellQuoted(std::string_view text);

}  // namespace aquifer
