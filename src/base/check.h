// AQ_CHECK is for what cannot happen unless our own code is wrong. It stays on in release builds.
#pragma once

namespace aquifer {

// Called after the message and before the end, by a program that can say what it was doing.
void SetCheckHandler(void (*handler)());

[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

}  // namespace aquifer

#define AQ_CHECK(condition)                                   \
  do {                                                        \
    if (!(condition)) [[unlikely]] {                          \
      ::aquifer::CheckFailed(#condition, __FILE__, __LINE__); \
    }                                                         \
  } while (false)
