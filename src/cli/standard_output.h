// What a command has to say, on standard output. It is written at once: on a full disk that is an
// error, and not a file that lacks its end.
#pragma once

#include <string_view>

#include "aquifer/status.h"

namespace aquifer {

Status PrintOut(std::string_view text);

}  // namespace aquifer
