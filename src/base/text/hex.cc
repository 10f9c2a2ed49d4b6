#include "base/text/hex.h"

namespace aquifer {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

std::string HexOf(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<size_t>(byte) >> 4];
    text += kDigits[std::to_integer<size_t>(byte) & 15];
  }
  return text;
}

bool FromHex(std::string_view text, std::span<std::byte> bytes) {
  if (text.size() != 2 * bytes.size()) return false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]);
    const size_t low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    bytes[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

}  // namespace aquifer
