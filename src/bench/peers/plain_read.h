// Reads memory and does next to nothing with it: what a checksum could cost at the least.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace aquifer {

// Some mixture of all the bytes, by the widest loads that this processor has. `bytes` is a multiple
// of 512 long.
uint64_t PlainRead(std::span<const std::byte> bytes);

// "AVX-512", "AVX2" or "64-bit": what the loads are.
std::string_view PlainReadName();

}  // namespace aquifer
