// Zeroed memory for large arrays, which costs nothing before it is touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aquifer {

// Null when there is none. Give it back with std::free().
void* TakeLazyMemory(uint64_t bytes);

// Where an array that is aligned to cache lines begins in it; `bytes` of it fit from there on.
void* AlignedIn(void* memory);

// Commits it now, in huge pages where the host has them.
void Populate(void* memory, uint64_t bytes);

}  // namespace aquifer
