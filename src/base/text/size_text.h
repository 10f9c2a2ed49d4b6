// Sizes as people write and read them: "64KiB", "1.5 GiB", "2GB".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aquifer/status.h"

namespace aquifer {

// KiB, MiB, GiB, TiB and the bare letters K, M, G, T are powers of 1024; KB, MB, GB, TB are powers
// of 1000. Case does not matter, a fraction and a space before the unit are fine.
Result<uint64_t> ParseSize(std::string_view text);

// Exact where it is whole: "2MiB", else "1.3GiB".
std::string SizeText(uint64_t bytes);

}  // namespace aquifer
