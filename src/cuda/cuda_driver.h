// The CUDA driver's functions, looked up when first needed: a program with the GPU path inside
// starts on hosts without a GPU, and no CUDA library has to be installed to build or to run it.
#pragma once

#include <cuda.h>

#include "aquifer/status.h"

namespace aquifer {

// Those that every driver from CUDA 12 on has.
#define AQ_CUDA_FUNCTIONS(X)     \
  X(cuCtxGetStreamPriorityRange) \
  X(cuCtxPopCurrent)             \
  X(cuCtxPushCurrent)            \
  X(cuDeviceGet)                 \
  X(cuDeviceGetName)             \
  X(cuDevicePrimaryCtxRelease)   \
  X(cuDevicePrimaryCtxRetain)    \
  X(cuEventCreate)               \
  X(cuEventDestroy)              \
  X(cuEventQuery)                \
  X(cuEventRecord)               \
  X(cuGetErrorName)              \
  X(cuGetErrorString)            \
  X(cuInit)                      \
  X(cuLaunchKernel)              \
  X(cuMemAlloc)                  \
  X(cuMemFree)                   \
  X(cuMemFreeHost)               \
  X(cuMemHostAlloc)              \
  X(cuMemHostGetDevicePointer)   \
  X(cuMemHostRegister)           \
  X(cuMemHostUnregister)         \
  X(cuMemcpyAsync)               \
  X(cuModuleGetFunction)         \
  X(cuModuleLoadData)            \
  X(cuModuleUnload)              \
  X(cuStreamCreateWithPriority)  \
  X(cuStreamDestroy)             \
  X(cuStreamSynchronize)         \
  X(cuStreamWaitEvent)

// NOLINTBEGIN(readability-identifier-naming): the driver's names.
struct CudaDriver {
#define AQ_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  AQ_CUDA_FUNCTIONS(AQ_CUDA_MEMBER)
#undef AQ_CUDA_MEMBER
  // Null before driver 580.
  decltype(&::cuMemcpyBatchAsync) cuMemcpyBatchAsync = nullptr;
};
// NOLINTEND(readability-identifier-naming)

// Loads the driver, once a process. kUnavailable, with why, where there is none or no device.
Result<const CudaDriver*> LoadCudaDriver();

// `doing` and the driver's name for what went wrong. kNoSpace when memory ran out.
Status CudaStatus(const CudaDriver& driver, CUresult result, const char* doing);

}  // namespace aquifer
