// A TOML file as a tree of values that know where they stand, so that whoever reads one can say
// what is wrong with it in a way that an editor jumps to: "aquifer.toml:12: dram.size: ...". It is
// read strictly: a table is taken apart by a list of the keys that it may have, and any other is an
// error with the name that was probably meant.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

class TomlValue {
 public:
  using List = std::vector<TomlValue>;
  using Table = std::vector<std::pair<std::string, TomlValue>>;  // In the file's order.
  // The last is for what no setting of ours is: dates and times.
  using Content = std::variant<bool, int64_t, double, std::string, List, Table, std::monostate>;

  TomlValue(std::string where, std::string name, Content content)
      : where_(std::move(where)), name_(std::move(name)), content_(std::move(content)) {}

  // Each is kInvalid, with place, name and what was expected, when the value is of another type.
  Result<bool> Flag() const;
  Result<std::string> Text() const;
  // From `least` to `most`, both included.
  Result<int64_t> Integer(int64_t least, int64_t most) const;
  // With or without a fraction, and never "not a number".
  Result<double> Number(double least, double most) const;
  // "512MiB", or a number of bytes.
  Result<uint64_t> Bytes() const;
  // "90s", "15m", "12h", "7d", or a number of seconds; at least `least`.
  Result<int64_t> Seconds(int64_t least) const;
  Result<std::span<const TomlValue>> Elements() const;
  // A text that is one of `names`, by its index.
  Result<size_t> OneOf(std::span<const std::string_view> names) const;

  bool is_text() const { return std::holds_alternative<std::string>(content_); }
  bool is_list() const { return std::holds_alternative<List>(content_); }
  bool is_table() const { return std::holds_alternative<Table>(content_); }
  const Table& table() const { return std::get<Table>(content_); }

  // "etc/aquifer.toml:12: dram.size: <reason>"
  Status Wrong(std::string_view reason) const;

  const std::string& where() const { return where_; }  // "etc/aquifer.toml:12"
  const std::string& name() const { return name_; }    // "nvme.directories[1]"

 private:
  std::string where_;
  std::string name_;
  Content content_;
};

// The top of a file, which is a table. Unreadable files and wrong syntax are kInvalid, with the
// line. `file` is only for messages.
Result<TomlValue> ParseToml(std::string_view text, const std::string& file);

// Reads a file for ParseToml(): at most 16 MiB, or kInvalid. `check`, where given, is asked about
// the file that is open, so that nobody can put another in its place in between.
Result<std::string> ReadSettingsFile(
    const std::string& path, const std::function<Status(const struct stat& file)>& check = nullptr);

// One key that a table may have.
struct TomlKey {
  std::string name;
  std::function<Status(const TomlValue&)> read;
};

// Calls `read` for each key that is there. An error has a line for each mistake. `explain`, where
// given, may say more of a key that is not one of these: ok if it cannot.
Status ReadTable(
    const TomlValue& table, std::span<const TomlKey> keys,
    const std::function<Status(const std::string& name, const TomlValue&)>& explain = nullptr);

}  // namespace aquifer
