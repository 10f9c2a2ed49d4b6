// Times as people write them: "90s", "15m", "12h", "7d".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aquifer/status.h"

namespace aquifer {

// In whole seconds. A bare number is seconds; s, m, h and d are units; a space before one is fine.
Result<int64_t> ParseSeconds(std::string_view text);

// In the largest unit that is exact: "90s", "2h", "7d".
std::string SecondsText(int64_t seconds);

}  // namespace aquifer
