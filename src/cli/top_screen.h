// One screen of `aquifer top`: what a node did between two looks at it. Pure: JSON in, text out.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace aquifer {

// The answers of /v1/status and /v1/tenants at one moment.
struct TopSample {
  nlohmann::json status;
  nlohmann::json tenants;
};

struct ScreenSize {
  size_t columns = 100;
  size_t rows = 40;
};

// `before` may be null: then it is since the node started. Lines end with "\n", none is longer than
// the screen is wide, and there are no more than it has rows.
std::string TopScreen(const TopSample* before, const TopSample& now, const ScreenSize& size);

}  // namespace aquifer
