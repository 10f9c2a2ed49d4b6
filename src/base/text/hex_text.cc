#include "base/text/hex_text.h"

#include <cstddef>
#include <cstdint>

namespace aquifer {
namespace {

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Result<Sha256Digest> ParseSha256(std::string_view text) {
  // The text is not repeated: whoever pasted the token itself should not find it in a log.
  const Status wrong(Code::kInvalid,
                     "this is not a SHA-256 digest, which has 64 hexadecimal digits; make one of a "
                     "token with: printf %s \"$TOKEN\" | sha256sum");
  Sha256Digest digest{};
  if (text.size() != 2 * digest.size()) return wrong;
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = DigitOf(text[2 * i]);
    const int low = DigitOf(text[2 * i + 1]);
    if (high < 0 || low < 0) return wrong;
    digest[i] = static_cast<std::byte>(high * 16 + low);
  }
  return digest;
}

std::string Sha256Text(const Sha256Digest& digest) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : digest) {
    const auto value = std::to_integer<size_t>(byte);
    text.push_back(kDigits[value / 16]);
    text.push_back(kDigits[value % 16]);
  }
  return text;
}

}  // namespace aquifer
