#include "cli/standard_output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace aquifer {

Status PrintOut(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return Status();
  }
  const int error = errno;
  return Status(Code::kUnavailable,
                fmt::format("standard output cannot be written: {}. Next step: send it where there "
                            "is room",
                            std::generic_category().message(error)));
}

}  // namespace aquifer
