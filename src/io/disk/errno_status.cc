#include "io/disk/errno_status.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace aquifer {
namespace {

Code CodeOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return Code::kNoSpace;
    case ENOENT:
      return Code::kNotFound;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return Code::kBusy;
    default:
      return Code::kUnavailable;
  }
}

}  // namespace

Status ErrnoStatus(int error, std::string_view what, std::string_view path) {
  return Status(CodeOf(error), fmt::format("cannot {} {}: {}", what, path,
                                           std::generic_category().message(error)));
}

}  // namespace aquifer
