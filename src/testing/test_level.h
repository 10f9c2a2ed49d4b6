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

// Whether this is a sanitizer's build. GCC and Clang tell it in their own ways.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

// The number for this run. Sanitizers cost up to tenfold, so with them a run does what one a level
// below does without.
template <class T>
T ByTestLevel(T quick, T normal, T full) {
  const char* set = std::getenv("AQUIFER_TEST_LEVEL");
  const std::string_view level = set == nullptr ? "quick" : set;
  if constexpr (kSanitized) return level == "full" ? normal : quick;
  return level == "full" ? full : level == "normal" ? normal : quick;
}

}  // namespace aquifer
