#include "index/lazy_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace aquifer {
namespace {

constexpr uintptr_t kAlignment = 64;
constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;

uintptr_t RoundUp(uintptr_t value, uintptr_t to) { return (value + to - 1) / to * to; }

}  // namespace

// calloc gives fresh zero pages for what is large, without touching them.
void* TakeLazyMemory(uint64_t bytes) { return std::calloc(1, bytes + kAlignment); }

void* AlignedIn(void* memory) {
  return reinterpret_cast<void*>(RoundUp(reinterpret_cast<uintptr_t>(memory), kAlignment));
}

void Populate(void* memory, uint64_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t end = begin + bytes + kAlignment;
  const uintptr_t first = RoundUp(begin, kHugePageBytes);
  const uintptr_t last = end / kHugePageBytes * kHugePageBytes;
  // Only advice: without huge pages lookups cost more, and nothing else changes.
  if (first < last) (void)madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  std::memset(memory, 0, end - begin);
}

}  // namespace aquifer
