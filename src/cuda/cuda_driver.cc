#include "cuda/cuda_driver.h"

#include <dlfcn.h>

#include <string>

namespace aquifer {
namespace {

// Of the version that cuda.h names: cuMemAlloc is cuMemAlloc_v2 there.
#define AQ_CUDA_TEXT(name) #name
#define AQ_CUDA_SYMBOL(name) AQ_CUDA_TEXT(name)

Status FindFunctions(void* library, CudaDriver* driver) {
#define AQ_CUDA_FIND(name)                                                                  \
  driver->name = reinterpret_cast<decltype(&::name)>(dlsym(library, AQ_CUDA_SYMBOL(name))); \
  if (driver->name == nullptr) {                                                            \
    return Status(Code::kUnavailable,                                                       \
                  "the CUDA driver is too old: it has no " AQ_CUDA_SYMBOL(name));           \
  }
  AQ_CUDA_FUNCTIONS(AQ_CUDA_FIND)
#undef AQ_CUDA_FIND
  driver->cuMemcpyBatchAsync = reinterpret_cast<decltype(&::cuMemcpyBatchAsync)>(
      dlsym(library, AQ_CUDA_SYMBOL(cuMemcpyBatchAsync)));
  return Status();
}

Status Load(CudaDriver* driver) {
  // Stays loaded: the driver does not like to go before the process does.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Status(Code::kUnavailable, "there is no CUDA driver on this host");
  AQ_RETURN_IF_ERROR(FindFunctions(library, driver));
  return CudaStatus(*driver, driver->cuInit(0), "starting the CUDA driver");
}

}  // namespace

Result<const CudaDriver*> LoadCudaDriver() {
  static CudaDriver driver;
  static const Status status = Load(&driver);
  if (!status.ok()) return status;
  return &driver;
}

Status CudaStatus(const CudaDriver& driver, CUresult result, const char* doing) {
  if (result == CUDA_SUCCESS) return Status();
  const char* name = nullptr;
  const char* text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  const Code code = result == CUDA_ERROR_OUT_OF_MEMORY ? Code::kNoSpace : Code::kUnavailable;
  return Status(code, std::string(doing) + ": " + (name != nullptr ? name : "an unknown error") +
                          (text != nullptr ? std::string(" (") + text + ")" : ""));
}

}  // namespace aquifer
