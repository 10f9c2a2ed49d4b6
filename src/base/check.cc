#include "base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace aquifer {
namespace {

std::atomic<void (*)()> check_handler = nullptr;

}  // namespace

void SetCheckHandler(void (*handler)()) { check_handler = handler; }

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "aquifer: check failed: %s (%s:%d)\n", condition, file, line);
  // Only once: it may fail itself.
  if (void (*handler)() = check_handler.exchange(nullptr); handler != nullptr) handler();
  std::abort();
}

}  // namespace aquifer
