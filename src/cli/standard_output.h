// Writes a command's text to standard output, at once: on a full disk that is an error, and not a
// file that lacks its end.
#pragma once

#include <string_view>

#include "aquifer/status.h"

namespace aquifer {

Status PrintOut(std::string_view text);

}  // namespace aquifer
