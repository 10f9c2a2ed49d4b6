// UTF-8 that others wrote: what of it is text, and what a terminal would obey.
#pragma once

#include <cstddef>
#include <string_view>

namespace aquifer {

// How many bytes the character at the front has; 0: there is none.
size_t CharacterBytes(std::string_view text);

// The same, and 0 also where it is a control character (C0, 7F, C1).
size_t PrintableBytes(std::string_view text);

// All of it is printable characters.
bool IsPrintable(std::string_view text);

}  // namespace aquifer
