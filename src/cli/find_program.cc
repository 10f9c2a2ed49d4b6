#include "cli/find_program.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <vector>

namespace aquifer {
namespace {

namespace fs = std::filesystem;

}  // namespace

ProgramPlaces SystemProgramPlaces() {
  std::error_code error;
  const char* const path = std::getenv("PATH");
  return {.own = fs::read_symlink("/proc/self/exe", error).parent_path(),
          .path = path != nullptr ? path : ""};
}

std::string FindProgram(std::string_view name, const ProgramPlaces& places) {
  std::vector<fs::path> folders;
  if (!places.own.empty()) {
    folders = {places.own, places.own / "../libexec/aquifer", places.own / "../../bin"};
  }
  for (std::string_view rest = places.path; !rest.empty();) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) folders.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  for (const fs::path& folder : folders) {
    const fs::path program = (folder / name).lexically_normal();
    std::error_code error;
    if (fs::is_regular_file(program, error) && ::access(program.c_str(), X_OK) == 0) {
      return program.string();
    }
  }
  return "";
}

}  // namespace aquifer
