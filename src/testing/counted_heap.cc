#include "testing/counted_heap.h"

#include <cstdlib>
#include <new>

namespace aquifer {

std::atomic<uint64_t> heap_allocations = 0;

}  // namespace aquifer

void* operator new(size_t bytes) {
  ++aquifer::heap_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
