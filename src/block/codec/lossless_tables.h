// How the lossless codec shares 256 slots among the values that it meets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "block/codec/lossless_kernel.h"

namespace aquifer {

// Some of a chunk's values with their frequencies, as a chunk's head carries them. The rest of 256
// is the escape's.
struct CodeList {
  size_t count = 0;  // At most kEscapeCode.
  std::array<uint8_t, kLosslessCodes> values;
  std::array<uint8_t, kLosslessCodes> frequencies;
};

// The list that codes values of these counts, which may be of a sample but not all zero, in the
// fewest bits. It has one code at the least.
CodeList ChooseCodes(std::span<const uint32_t, 256> counts);

// False when the frequencies leave nothing for the escape.
[[nodiscard]] bool MakeDecodeTables(const CodeList& codes, LosslessTables* tables);
void MakeEncodeTables(const CodeList& codes, LosslessTables* tables);

}  // namespace aquifer
