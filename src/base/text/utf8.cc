#include "base/text/utf8.h"

namespace aquifer {

size_t CharacterBytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  if (first >= 0xC2 && first < 0xE0) length = 2;
  if (first >= 0xE0 && first < 0xF0) length = 3;
  if (first >= 0xF0 && first < 0xF5) length = 4;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // Longer than need be, halves of a pair, or beyond the last character.
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) >= 0xA0) return 0;
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) >= 0x90) return 0;
  return length;
}

size_t PrintableBytes(std::string_view text) {
  const size_t length = CharacterBytes(text);
  if (length == 0) return 0;
  const auto first = static_cast<unsigned char>(text[0]);
  const bool low = first < 0x20 || first == 0x7F;
  const bool high = first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
  return low || high ? 0 : length;
}

bool IsPrintable(std::string_view text) {
  while (!text.empty()) {
    const size_t length = PrintableBytes(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace aquifer
