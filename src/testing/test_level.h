// How thorough this run of the tests is. ./test says so through AQUIFER_TEST_LEVEL; without it, a
// run is quick.
#pragma once

#include <cstdlib>
#include <string_view>

namespace aquifer {

inline bool IsFullRun() {
  const char* set = std::getenv("AQUIFER_TEST_LEVEL");
  return set != nullptr && std::string_view(set) == "full";
}

// The number for this run. Sanitizers cost up to tenfold, so with them a run does what one a level
// below does without.
template <class T>
T ByTestLevel(T quick, T normal, [[maybe_unused]] T full) {
  const char* set = std::getenv("AQUIFER_TEST_LEVEL");
  const std::string_view level = set == nullptr ? "quick" : set;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return level == "full" ? normal : quick;
#else
  return level == "full" ? full : level == "normal" ? normal : quick;
#endif
}

}  // namespace aquifer
