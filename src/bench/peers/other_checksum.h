// A checksum that others use for the same end, where its library was found: XXH3 with 128 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace aquifer {

std::string_view OtherChecksumName();  // Empty: there is none in this build.
uint64_t OtherChecksum(std::span<const std::byte> bytes);

}  // namespace aquifer
