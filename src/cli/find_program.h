// Programs of ours that another one starts: aquifer starts aquifer-bench, and that starts nodes.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace aquifer {

// The folders in which FindProgram() looks, in this order.
struct ProgramPlaces {
  std::filesystem::path own{};  // The folder of the program that runs.
  std::string path{};           // As the environment's PATH has it.
};
ProgramPlaces SystemProgramPlaces();

// Returns the program's path; empty where there is none. It is looked for beside the program that
// runs, where an installation has it from there (bin and libexec/aquifer), and in PATH.
std::string FindProgram(std::string_view name, const ProgramPlaces& places = SystemProgramPlaces());

}  // namespace aquifer
