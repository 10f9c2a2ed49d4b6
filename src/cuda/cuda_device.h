// The GPU of this host behind gpu_device.h. Where the build has no CUDA compiler,
// cuda_device_absent.cc stands in, and there is none.
#pragma once

#include <memory>
#include <string>

#include "aquifer/status.h"
#include "cuda/gpu_device.h"

namespace aquifer {

struct CudaOptions {
  // Thread blocks of a launch, each of 512 threads: at most so many SMs work for us, and these only
  // now and then. One moves 44 GB/s, so that two fill the link; with more, each is back sooner for
  // the engine's kernels, which beside two or four are slower than beside these.
  uint32_t thread_blocks = 12;
};

// In the device's primary context, which is also that of PyTorch and of every program that uses the
// CUDA runtime. kUnavailable, with why, where there is no such device.
Result<std::unique_ptr<GpuDevice>> NewCudaDevice(int ordinal, const CudaOptions& options = {});

// Its name. kUnavailable, with why, where there is no such device.
Result<std::string> DescribeCudaDevice(int ordinal);

}  // namespace aquifer
