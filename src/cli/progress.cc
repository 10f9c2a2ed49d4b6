#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace aquifer {

Progress::Progress() : shown_(isatty(STDERR_FILENO) != 0) {}

void Progress::Show(std::string_view line) {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K{}", line);
  std::fflush(stderr);
  dirty_ = true;
}

void Progress::Clear() {
  if (!dirty_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  dirty_ = false;
}

}  // namespace aquifer
