#include "cuda/device_memory.h"

#include <dlfcn.h>

#include <cstdint>

namespace aquifer {
namespace {

// From cuda.h; part of the driver's ABI.
using PointerGetAttribute = int (*)(void* data, int attribute, uint64_t address);
constexpr int kAttributeMemoryType = 2;
constexpr int kAttributeIsManaged = 8;
constexpr int kAttributeDeviceOrdinal = 9;
constexpr uint32_t kMemoryTypeDevice = 2;

}  // namespace

int DeviceOfMemory(const void* address) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return kHostMemory;
  const auto ask = reinterpret_cast<PointerGetAttribute>(dlsym(library, "cuPointerGetAttribute"));
  dlclose(library);  // Whoever loaded it keeps it.
  const auto at = reinterpret_cast<uint64_t>(address);
  uint32_t type = 0;
  if (ask == nullptr || ask(&type, kAttributeMemoryType, at) != 0) return kHostMemory;
  uint32_t managed = 0;  // Managed memory is there for the host, too.
  if (ask(&managed, kAttributeIsManaged, at) == 0 && managed != 0) return kHostMemory;
  int ordinal = kHostMemory;
  if (type != kMemoryTypeDevice || ask(&ordinal, kAttributeDeviceOrdinal, at) != 0) {
    return kHostMemory;
  }
  return ordinal;
}

}  // namespace aquifer
