// A program that is run to its end.
#pragma once

#include <string>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

// words[0] is looked for in PATH. `quiet`: its output is dropped. Returns its status as waitpid()
// has it; kNotFound: it cannot be started, and why.
Result<int> RunProgram(std::vector<std::string> words, bool quiet);

}  // namespace aquifer
