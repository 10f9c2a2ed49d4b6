#include "cuda/device_memory.h"

#include <dlfcn.h>

#include <cstdint>
#include <string>

namespace aquifer {
namespace {

// From cuda.h; part of the driver's ABI.
using PointerGetAttribute = int (*)(void* data, int attribute, uint64_t address);
constexpr int kAttributeMemoryType = 2;
constexpr int kAttributeIsManaged = 8;
constexpr int kAttributeDeviceOrdinal = 9;
constexpr uint32_t kMemoryTypeDevice = 2;
constexpr int kErrorInvalidValue = 1;
constexpr int kErrorNotInitialized = 3;

Status Check(int result) {
  if (result == 0) return Status();
  return Status(Code::kUnavailable,
                "the CUDA driver does not say whose memory it is: error " + std::to_string(result));
}

}  // namespace

Result<int> DeviceOfMemory(const void* address) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return kHostMemory;
  const auto ask = reinterpret_cast<PointerGetAttribute>(dlsym(library, "cuPointerGetAttribute"));
  dlclose(library);  // Whoever loaded it keeps it.
  if (ask == nullptr) return kHostMemory;
  const auto at = reinterpret_cast<uint64_t>(address);
  uint32_t type = 0;
  const int known = ask(&type, kAttributeMemoryType, at);
  // Memory that the driver has never heard of; or nobody started it, and it has no device's either.
  if (known == kErrorInvalidValue || known == kErrorNotInitialized) return kHostMemory;
  AQ_RETURN_IF_ERROR(Check(known));
  if (type != kMemoryTypeDevice) return kHostMemory;
  uint32_t managed = 0;  // Managed memory is there for the host, too.
  AQ_RETURN_IF_ERROR(Check(ask(&managed, kAttributeIsManaged, at)));
  if (managed != 0) return kHostMemory;
  int ordinal = kHostMemory;
  AQ_RETURN_IF_ERROR(Check(ask(&ordinal, kAttributeDeviceOrdinal, at)));
  return ordinal;
}

}  // namespace aquifer
