#include "testing/scratch_directory.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/check.h"

namespace aquifer {

ScratchDirectory::ScratchDirectory() {
  const char* parent = std::getenv("TMPDIR");
  path_ = std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/aquifer-XXXXXX";
  AQ_CHECK(mkdtemp(path_.data()) != nullptr);
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;  // Nothing depends on it, and a destructor cannot report.
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace aquifer
