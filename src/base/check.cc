#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace aquifer {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "aquifer: check failed: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace aquifer
