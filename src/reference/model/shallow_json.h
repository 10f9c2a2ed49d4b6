// JSON that others wrote: a body of a request, a checkpoint's header. To copy or to print a value
// recurses, so one of a million brackets would end the process; more than a few are refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace aquifer::reference {

inline constexpr int kMaxJsonDepth = 32;

// An object; anything else, and what is deeper, is null.
nlohmann::json ParseShallowObject(std::string_view text);

}  // namespace aquifer::reference
