// The JSON body of a request, read field by field. Whatever is wrong with it, the first thing
// found, is told at the end; until then wrong fields read as if they were not there.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aquifer/status.h"

namespace aquifer {

class JsonBody {
 public:
  explicit JsonBody(std::string_view text);

  std::optional<std::string> Text(std::string_view name, size_t max_bytes);
  std::optional<int64_t> Whole(std::string_view name, int64_t least, int64_t most);
  bool Flag(std::string_view name);
  std::vector<std::string> Texts(std::string_view name);

  // kInvalid: what is wrong and what to write. A field that nobody asked for is wrong, too.
  Status Finish();

 private:
  const nlohmann::json* Find(std::string_view name);
  void Wrong(std::string message);

  nlohmann::json root_;
  std::vector<std::string> known_;
  std::string wrong_;
};

// What a body asks for, on one line of a log: its short fields as they are, of a list how many
// there are. Empty when there is nothing, or it is no JSON object.
std::string DescribeBody(std::string_view text);

}  // namespace aquifer
