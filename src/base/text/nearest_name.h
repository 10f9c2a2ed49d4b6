// "Did you mean ...?"
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace aquifer {

// The name that `typed` was most likely meant to be: one that it begins, or at most two slips away.
// Empty when there is none.
std::string NearestName(std::string_view typed, std::span<const std::string> names);

}  // namespace aquifer
