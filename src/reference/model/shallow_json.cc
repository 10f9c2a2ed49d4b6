#include "reference/model/shallow_json.h"

#include <nlohmann/json.hpp>

namespace aquifer::reference {
namespace {

using nlohmann::json;

struct TooDeep {};

}  // namespace

json ParseShallowObject(std::string_view text) {
  const auto watch = [](int depth, json::parse_event_t, json&) {
    if (depth > kMaxJsonDepth) throw TooDeep();  // There is no other way to end the parser at once.
    return true;
  };
  try {
    json parsed = json::parse(text, watch, false);
    if (parsed.is_object()) return parsed;
  } catch (const TooDeep&) {
    return {};
  }
  return {};
}

}  // namespace aquifer::reference
