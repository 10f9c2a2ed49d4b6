#include "node/api/json_body.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/text/nearest_name.h"

namespace aquifer {
namespace {

constexpr int kMaxDepth = 8;  // Of brackets: a parser that recurses is not led into the deep.

}  // namespace

JsonBody::JsonBody(std::string_view text) {
  if (text.empty()) text = "{}";
  bool too_deep = false;
  root_ = nlohmann::json::parse(
      text.begin(), text.end(),
      [&too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        too_deep = too_deep || depth > kMaxDepth;
        return !too_deep;
      },
      false);
  if (too_deep || !root_.is_object()) {
    Wrong("the body is not a JSON object, as in {\"session\": \"chat-7\"}");
    root_ = nlohmann::json::object();
  }
}

void JsonBody::Wrong(std::string message) {
  if (wrong_.empty()) wrong_ = std::move(message);
}

const nlohmann::json* JsonBody::Find(std::string_view name) {
  known_.emplace_back(name);
  const auto found = root_.find(known_.back());
  return found == root_.end() ? nullptr : &*found;
}

std::optional<std::string> JsonBody::Text(std::string_view name, size_t max_bytes) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const auto* const text = value->get_ptr<const std::string*>();
  if (text == nullptr || text->empty() || text->size() > max_bytes) {
    Wrong(fmt::format("'{}' is not a text of 1 to {} bytes", name, max_bytes));
    return std::nullopt;
  }
  return *text;
}

std::optional<int64_t> JsonBody::Whole(std::string_view name, int64_t least, int64_t most) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  // What does not fit 63 bits is unsigned to the parser.
  const bool whole = value->is_number_integer() &&
                     !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!whole || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    Wrong(fmt::format("'{}' is not a whole number from {} to {}", name, least, most));
    return std::nullopt;
  }
  return value->get<int64_t>();
}

bool JsonBody::Flag(std::string_view name) {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) Wrong(fmt::format("'{}' is neither true nor false", name));
  return value->is_boolean() && value->get<bool>();
}

std::vector<std::string> JsonBody::Texts(std::string_view name) {
  std::vector<std::string> texts;
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return texts;
  const bool fine =
      value->is_array() && !value->empty() &&
      std::all_of(value->begin(), value->end(), [](const auto& each) { return each.is_string(); });
  if (!fine) {
    Wrong(fmt::format("'{}' is not a list of texts with at least one", name));
    return texts;
  }
  for (const nlohmann::json& each : *value) texts.push_back(each.get<std::string>());
  return texts;
}

Status JsonBody::Finish() {
  for (const auto& [name, value] : root_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string meant = NearestName(name, known_);
    Wrong(fmt::format("there is no field '{}'; {}", name,
                      meant.empty() ? fmt::format("there are: {}", fmt::join(known_, ", "))
                                    : fmt::format("did you mean '{}'?", meant)));
  }
  return wrong_.empty() ? Status() : Status(Code::kInvalid, wrong_);
}

std::string DescribeBody(std::string_view text) {
  constexpr size_t kMaxBytes = 300;
  const nlohmann::json root = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return "";
  std::string line;
  for (const auto& [name, value] : root.items()) {
    // Written as JSON: nothing in it can end the line.
    using nlohmann::json;
    constexpr auto kEscaped = json::error_handler_t::replace;
    const std::string shown = value.is_structured()
                                  ? fmt::format("{} of them", value.size())
                                  : value.dump(-1, ' ', /*ensure_ascii=*/true, kEscaped);
    line += fmt::format(" {}={}", json(name).dump(-1, ' ', true, kEscaped), shown);
  }
  if (line.size() > kMaxBytes) line.replace(kMaxBytes, std::string::npos, "...");
  return line;
}

}  // namespace aquifer
