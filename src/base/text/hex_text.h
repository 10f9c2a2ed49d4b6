// Digests as sha256sum prints them.
#pragma once

#include <string>
#include <string_view>

#include "aquifer/status.h"
#include "base/crypto/sha256.h"

namespace aquifer {

// 64 hexadecimal digits of either case.
Result<Sha256Digest> ParseSha256(std::string_view text);

std::string Sha256Text(const Sha256Digest& digest);

}  // namespace aquifer
