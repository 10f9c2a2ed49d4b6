#include "tenant/keys/master_keys.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "base/text/secret_file.h"

namespace aquifer {
namespace {

constexpr size_t kMaxKeys = 16;
constexpr size_t kHexDigits = 64;
constexpr size_t kBase64Digits = 43;  // One "=" may follow.
constexpr std::string_view kApart = " \t\r\n,";

Status Invalid(std::string message) { return Status(Code::kInvalid, std::move(message)); }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<SecretKey> FromHex(std::string_view text) {
  SecretKey key;
  for (size_t i = 0; i < SecretKey::kBytes; ++i) {
    const int high = HexDigit(text[2 * i]);
    const int low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    key.writable()[i] = static_cast<std::byte>(high * 16 + low);
  }
  return key;
}

std::optional<SecretKey> FromBase64(std::string_view text) {
  constexpr size_t kQuads = (kBase64Digits + 1) / 4;
  std::array<std::byte, kQuads * 4> padded;
  std::memcpy(padded.data(), text.data(), kBase64Digits);
  padded.back() = static_cast<std::byte>('=');
  std::array<std::byte, kQuads * 3> bytes{};
  const int count =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(padded.data()), padded.size());
  std::optional<SecretKey> key;
  if (count == static_cast<int>(bytes.size())) {
    key = SecretKey(std::span(bytes).first<SecretKey::kBytes>());
  }
  WipeSecret(padded);
  WipeSecret(bytes);
  return key;
}

std::optional<SecretKey> KeyFrom(std::string_view text) {
  if (text.size() == kHexDigits) return FromHex(text);
  if (text.size() == kBase64Digits + 1 && text.ends_with('=')) text.remove_suffix(1);
  return text.size() == kBase64Digits ? FromBase64(text) : std::nullopt;
}

// The words of a line; none if it is a comment.
Status ReadLine(std::string_view line, const std::string& place, std::vector<SecretKey>* keys) {
  while (true) {
    const size_t begin = line.find_first_not_of(kApart);
    if (begin == std::string_view::npos || line[begin] == '#') return Status();
    line.remove_prefix(begin);
    const size_t length = std::min(line.find_first_of(kApart), line.size());
    const std::optional<SecretKey> key = KeyFrom(line.substr(0, length));
    if (!key) {
      return Invalid(
          fmt::format("{}: this is not a master key, which is 32 bytes in hexadecimal or base64; "
                      "make one with: openssl rand -hex 32",
                      place));
    }
    if (*key == SecretKey()) return Invalid(fmt::format("{}: this key is all zeros", place));
    if (keys->size() == kMaxKeys) {
      return Invalid(fmt::format("{}: at most {} master keys are possible", place, kMaxKeys));
    }
    keys->push_back(*key);
    line.remove_prefix(length);
  }
}

}  // namespace

Result<std::vector<SecretKey>> ParseMasterKeys(std::string_view text, const std::string& where) {
  std::vector<SecretKey> keys;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    AQ_RETURN_IF_ERROR(ReadLine(text.substr(0, end), fmt::format("{}:{}", where, number), &keys));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (!keys.empty()) return keys;
  return Invalid(
      fmt::format("{}: there is no master key here; make one with: openssl rand -hex 32", where));
}

Result<std::vector<SecretKey>> ReadMasterKeyFile(const std::string& path, uid_t self) {
  AQ_ASSIGN_OR_RETURN(std::string text, ReadSecretFile(path, self));
  Result<std::vector<SecretKey>> keys = ParseMasterKeys(text, path);
  WipeSecret(std::as_writable_bytes(std::span(text)));
  return keys;
}

std::string TakeFromEnvironment(const char* variable) {
  char* const value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): once, at start.
  if (value == nullptr) return "";
  std::string taken(value);
  WipeSecret(std::as_writable_bytes(std::span(value, taken.size())));
  ::unsetenv(variable);  // NOLINT(concurrency-mt-unsafe): the same.
  return taken;
}

}  // namespace aquifer
