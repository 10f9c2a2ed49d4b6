#include "base/text/setting_readers.h"

#include <fmt/format.h>

#include <filesystem>

namespace aquifer {

std::string NormalPath(std::string_view path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

Result<std::string> AbsolutePathFrom(const TomlValue& value, bool of_secret) {
  AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
  if (text.starts_with('/')) return NormalPath(text);
  if (of_secret) return value.Wrong("this is not an absolute path; begin it with '/'");
  return value.Wrong(fmt::format("'{}' is not an absolute path; begin it with '/'", text));
}

Status ReadPathOr(std::string_view word, bool of_secret, const TomlValue& value,
                  std::string* path) {
  AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
  if (text == word) {
    path->clear();
    return Status();
  }
  if (!std::string_view(text).starts_with("/")) {
    return value.Wrong(fmt::format("{} neither an absolute path nor \"{}\"; begin it with '/'",
                                   of_secret ? "this is" : fmt::format("'{}' is", text), word));
  }
  *path = NormalPath(text);
  return Status();
}

Result<uint64_t> WriteBudgetFrom(const TomlValue& value) {
  constexpr uint64_t kLeast = uint64_t{1} << 20;
  if (value.is_text()) {
    AQ_ASSIGN_OR_RETURN(const std::string text, value.Text());
    if (text == "unlimited") return uint64_t{0};
  }
  AQ_ASSIGN_OR_RETURN(const uint64_t bytes, value.Bytes());
  if (bytes >= kLeast) return bytes;
  return value.Wrong("that is less than 1MiB a second; write \"unlimited\", or more");
}

}  // namespace aquifer
