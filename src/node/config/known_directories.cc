#include "node/config/known_directories.h"

#include <fstream>

namespace aquifer {
namespace {

bool IsIn(const std::string& file, const std::string& directory) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line == directory) return true;
  }
  return false;
}

}  // namespace

KnownDirectories::KnownDirectories(const std::string& state, bool may_add)
    : file_(state.empty() ? "" : state + "/posix-tiers"), may_add_(may_add) {}

bool KnownDirectories::Has(const std::string& directory) const {
  const MutexLock lock(&mutex_);
  return !file_.empty() && IsIn(file_, directory);
}

void KnownDirectories::Add(const std::string& directory) {
  const MutexLock lock(&mutex_);
  if (file_.empty() || !may_add_ || IsIn(file_, directory)) return;
  // In front as well: whoever died in the middle of a line has not ended it.
  std::ofstream(file_, std::ios::app) << "\n" << directory << "\n";
}

}  // namespace aquifer
