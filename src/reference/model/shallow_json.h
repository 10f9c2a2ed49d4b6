// Parses JSON that others wrote: a request's body, a checkpoint's header. Copying or printing a
// value recurses, so a million brackets would end the process. Deep nesting is therefore refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace aquifer::reference {

inline constexpr int kMaxJsonDepth = 32;

// Returns an object, or null for any other or too deep value.
nlohmann::json ParseShallowObject(std::string_view text);

}  // namespace aquifer::reference
