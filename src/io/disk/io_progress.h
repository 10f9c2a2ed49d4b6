// How one read or write goes on after the kernel's answer; the same for both engines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "io/disk/disk.h"

namespace aquifer {

enum class IoStep : uint8_t {
  kFinished,  // request->status is set.
  kContinue,  // Ask for the rest, from `*done` on.
};

// `result` is what the kernel said: bytes moved, or -errno. `*done` is how much of the request's
// data had been moved before, and is moved on. `path_of` gives the file's name, for an error.
IoStep TakeResult(int64_t result, IoRequest* request, size_t* done,
                  const std::function<std::string(uint32_t)>& path_of);

// Whether the request lies within a file of so many bytes.
Status CheckWithin(const IoRequest& request, uint64_t file_bytes,
                   const std::function<std::string(uint32_t)>& path_of);

}  // namespace aquifer
