#include "base/text/toml_value.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>

// It throws, and is caught in ParseToml(). Some wrong syntax ("[[[") fails an assertion of version
// 3.3, which must not end the program: that throws too.
struct TomlAssertionFailed {};
constexpr void CheckForToml(bool holds) {
  if (!holds) throw TomlAssertionFailed();
}
#define TOML_ASSERT(expr) CheckForToml(static_cast<bool>(expr))
#define TOML_EXCEPTIONS 1
#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

#include "base/text/duration_text.h"
#include "base/text/mistakes.h"
#include "base/text/nearest_name.h"
#include "base/text/size_text.h"

namespace aquifer {
namespace {

constexpr size_t kMaxFileBytes = size_t{16} << 20;

std::string PlaceOf(const std::string& file, const toml::node& node) {
  return fmt::format("{}:{}", file, node.source().begin.line);
}

TomlValue Convert(const toml::node& node, const std::string& file, std::string name);

TomlValue::Table ConvertTable(const toml::table& table, const std::string& file,
                              const std::string& name) {
  TomlValue::Table entries;
  for (const auto& [key, value] : table) {
    const std::string text(key.str());
    entries.emplace_back(
        text, Convert(value, file, name.empty() ? text : fmt::format("{}.{}", name, text)));
  }
  // toml++ sorts by name; a reader wants to hear of the first mistake first.
  const auto place = [&table](const std::pair<std::string, TomlValue>& entry) {
    const toml::source_position begin = table.find(entry.first)->first.source().begin;
    return std::pair(begin.line, begin.column);
  };
  std::sort(entries.begin(), entries.end(),
            [&place](const auto& a, const auto& b) { return place(a) < place(b); });
  return entries;
}

TomlValue Convert(const toml::node& node, const std::string& file, std::string name) {
  const std::string where = PlaceOf(file, node);
  TomlValue::Content content = std::monostate();
  if (const auto* table = node.as_table()) {
    content = ConvertTable(*table, file, name);
  } else if (const auto* array = node.as_array()) {
    TomlValue::List list;
    for (size_t i = 0; i < array->size(); ++i) {
      list.push_back(Convert((*array)[i], file, fmt::format("{}[{}]", name, i)));
    }
    content = std::move(list);
  } else if (const auto* text = node.as_string()) {
    content = text->get();
  } else if (const auto* integer = node.as_integer()) {
    content = integer->get();
  } else if (const auto* number = node.as_floating_point()) {
    content = number->get();
  } else if (const auto* flag = node.as_boolean()) {
    content = flag->get();
  }
  return TomlValue(where, std::move(name), std::move(content));
}

std::string_view TypeName(const TomlValue::Content& content) {
  constexpr std::string_view kNames[] = {"true or false", "an integer", "a number",      "a text",
                                         "a list",        "a table",    "a date or time"};
  return kNames[content.index()];
}

Status UnknownKey(const std::string& name, const TomlValue& value, std::span<const TomlKey> keys) {
  std::vector<std::string> names;
  for (const TomlKey& key : keys) names.push_back(key.name);
  const std::string nearest = NearestName(name, names);
  return value.Wrong(
      nearest.empty()
          ? fmt::format("there is no such key here; there are: {}", fmt::join(names, ", "))
          : fmt::format("there is no such key; did you mean '{}'?", nearest));
}

}  // namespace

Status TomlValue::Wrong(std::string_view reason) const {
  return Status(Code::kInvalid, name_.empty() ? fmt::format("{}: {}", where_, reason)
                                              : fmt::format("{}: {}: {}", where_, name_, reason));
}

Result<bool> TomlValue::Flag() const {
  if (const bool* flag = std::get_if<bool>(&content_)) return *flag;
  return Wrong(fmt::format("this is {}; write true or false, without quotes", TypeName(content_)));
}

Result<std::string> TomlValue::Text() const {
  if (const std::string* text = std::get_if<std::string>(&content_)) return *text;
  return Wrong(fmt::format("this is {}; write a text in quotes", TypeName(content_)));
}

Result<int64_t> TomlValue::Integer(int64_t least, int64_t most) const {
  const int64_t* integer = std::get_if<int64_t>(&content_);
  if (integer == nullptr) {
    return Wrong(fmt::format("this is {}; write an integer from {} to {}, without quotes",
                             TypeName(content_), least, most));
  }
  if (*integer < least || *integer > most) {
    return Wrong(fmt::format("{} is not from {} to {}", *integer, least, most));
  }
  return *integer;
}

Result<double> TomlValue::Number(double least, double most) const {
  double number = 0;
  if (const int64_t* integer = std::get_if<int64_t>(&content_)) {
    number = static_cast<double>(*integer);
  } else if (const double* fraction = std::get_if<double>(&content_)) {
    number = *fraction;
  } else {
    return Wrong(fmt::format("this is {}; write a number from {} to {}, without quotes",
                             TypeName(content_), least, most));
  }
  if (number >= least && number <= most) return number;
  return Wrong(fmt::format("{} is not from {} to {}", number, least, most));
}

Result<uint64_t> TomlValue::Bytes() const {
  if (const int64_t* integer = std::get_if<int64_t>(&content_)) {
    if (*integer >= 0) return static_cast<uint64_t>(*integer);
    return Wrong(fmt::format("{} is negative; write a size like \"512MiB\"", *integer));
  }
  const std::string* text = std::get_if<std::string>(&content_);
  if (text == nullptr) {
    return Wrong(fmt::format("this is {}; write a size like \"512MiB\"", TypeName(content_)));
  }
  const Result<uint64_t> bytes = ParseSize(*text);
  if (!bytes.ok()) return Wrong(bytes.status().message());
  return *bytes;
}

Result<int64_t> TomlValue::Seconds(int64_t least) const {
  Result<int64_t> seconds = Status(Code::kInvalid);
  if (const int64_t* integer = std::get_if<int64_t>(&content_)) {
    seconds = ParseSeconds(fmt::format("{}", *integer));
  } else if (const std::string* text = std::get_if<std::string>(&content_)) {
    seconds = ParseSeconds(*text);
  } else {
    return Wrong(fmt::format("this is {}; write a time like \"90s\"", TypeName(content_)));
  }
  if (!seconds.ok()) return Wrong(seconds.status().message());
  if (*seconds < least) {
    return Wrong(fmt::format("{} is too short; write at least {}", SecondsText(*seconds),
                             SecondsText(least)));
  }
  return *seconds;
}

Result<std::span<const TomlValue>> TomlValue::Elements() const {
  if (const List* list = std::get_if<List>(&content_)) return std::span<const TomlValue>(*list);
  return Wrong(
      fmt::format("this is {}; write a list, as in [\"one\", \"two\"]", TypeName(content_)));
}

Result<size_t> TomlValue::OneOf(std::span<const std::string_view> names) const {
  AQ_ASSIGN_OR_RETURN(const std::string text, Text());
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return i;
  }
  return Wrong(fmt::format("\"{}\" is not one of \"{}\"", text, fmt::join(names, "\", \"")));
}

Result<TomlValue> ParseToml(std::string_view text, const std::string& file) {
  try {
    return Convert(toml::parse(text), file, "");
  } catch (const toml::parse_error& error) {
    return Status(Code::kInvalid,
                  fmt::format("{}:{}: {}", file, error.source().begin.line, error.description()));
  } catch (const TomlAssertionFailed&) {
    return Status(
        Code::kInvalid,
        fmt::format("{}: this is not TOML; look for a line with too many brackets", file));
  }
}

Result<std::string> ReadSettingsFile(const std::string& path,
                                     const std::function<Status(const struct stat&)>& check) {
  const auto failed = [&path](const std::string& why) {
    return Status(Code::kInvalid, fmt::format("{} cannot be read: {}", path, why));
  };
  // A pipe that nobody writes to would keep us in open().
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return failed(std::generic_category().message(errno));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(::fdopen(descriptor, "r"),
                                                             &std::fclose);
  struct stat info{};
  if (file == nullptr || fstat(descriptor, &info) != 0) {
    return failed(std::generic_category().message(errno));
  }
  if (!S_ISREG(info.st_mode)) return failed("it is no regular file");
  if (check != nullptr) AQ_RETURN_IF_ERROR(check(info));
  std::string text;
  char piece[1 << 14];
  while (const size_t count = std::fread(piece, 1, sizeof(piece), file.get())) {
    text.append(piece, count);
    if (text.size() > kMaxFileBytes) return failed("it is larger than 16MiB");
  }
  if (std::ferror(file.get()) != 0) return failed(std::generic_category().message(errno));
  return text;
}

Status ReadTable(const TomlValue& table, std::span<const TomlKey> keys,
                 const std::function<Status(const std::string&, const TomlValue&)>& explain) {
  if (!table.is_table()) return table.Wrong("this must be a table");
  Mistakes mistakes;
  for (const auto& [name, value] : table.table()) {
    const auto known = std::find_if(
        keys.begin(), keys.end(), [&name = name](const TomlKey& key) { return key.name == name; });
    if (known != keys.end()) {
      mistakes.Add(known->read(value));
      continue;
    }
    Status unknown = explain == nullptr ? Status() : explain(name, value);
    mistakes.Add(unknown.ok() ? UnknownKey(name, value, keys) : std::move(unknown));
  }
  return mistakes.All();
}

}  // namespace aquifer
