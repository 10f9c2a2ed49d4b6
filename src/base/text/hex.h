// Bytes as hexadecimal digits of lower case: ids in names of files and blobs.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace aquifer {

std::string HexOf(std::span<const std::byte> bytes);

// False, and `bytes` is not to be used, where `text` is anything else than their digits.
bool FromHex(std::string_view text, std::span<std::byte> bytes);

}  // namespace aquifer
