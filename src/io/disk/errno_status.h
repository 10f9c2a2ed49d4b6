// Turns a system call's errno into a Status that a caller can act on.
#pragma once

#include <string_view>

#include "aquifer/status.h"

namespace aquifer {

// "cannot write /data/segment-00000001.aq: Input/output error". A full device is kNoSpace, a
// missing file kNotFound, a lack of descriptors or kernel memory kBusy; all else is kUnavailable.
Status ErrnoStatus(int error, std::string_view what, std::string_view path);

}  // namespace aquifer
