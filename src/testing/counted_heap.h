// How often this program took memory from the heap. Linking it replaces operator new, so its tests
// are release-only: sanitizers replace that too.
#pragma once

#include <atomic>
#include <cstdint>

namespace aquifer {

extern std::atomic<uint64_t> heap_allocations;

}  // namespace aquifer
